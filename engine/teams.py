"""Fair shares between teams: each has a virtual token counter (Sheng et al., Fairness in Serving LLMs, OSDI 2024).

A team's counter is the service it was given over its weight; who was given the least is next. Service is counted in
tokens: a computed prompt token is one, an output token `OUTPUT_COST`; tokens from the prefix cache are free. What a
request will probably still take counts from its admission on, so that places that become free together are shared.
"""

from collections.abc import Iterator
from dataclasses import dataclass

OUTPUT_COST = 2.0
"""Service tokens that an output token counts as."""
RATIO_GAIN = 0.1
"""How much the newest answer moves a team's expected answer length."""


@dataclass(slots=True, eq=False)
class Team:
    """One team's standing. Counters are of live requests."""

    name: str
    weight: float = 1.0
    served: float = 0.0
    """Service over weight so far."""
    committed: float = 0.0
    """The same, and what its running requests will probably still take; the lowest is next."""
    output_ratio: float = 1.0
    """What its answers lately had of the tokens that they were granted."""
    num_waiting: int = 0
    waiting_tokens: int = 0
    num_running: int = 0
    num_blocks: int = 0
    """KV blocks that its running requests may need at most, together."""

    def expected_output(self, max_tokens: int) -> float:
        """Tokens that an answer of at most `max_tokens` will probably have."""
        return max(1.0, self.output_ratio * max_tokens)

    def cost(self, num_uncached: int, max_tokens: int) -> float:
        """Service tokens that a request will probably take."""
        return num_uncached + OUTPUT_COST * self.expected_output(max_tokens)


class Teams:
    """Teams with live requests, and those that took more than their share lately."""

    def __init__(self) -> None:
        self._teams: dict[str, Team] = {}
        self._output_ratio = 1.0
        self._floor = 0.0
        """The highest counter of a team that was next: where newcomers start while nobody waits."""

    def __len__(self) -> int:
        return len(self._teams)

    def __iter__(self) -> Iterator[Team]:
        return iter(self._teams.values())

    def live(self) -> list[Team]:
        """Teams with live requests; from any thread."""
        return [team for team in self._teams.copy().values() if team.num_waiting or team.num_running]

    def of(self, name: str, weight: float) -> Team:
        """The team of this name."""
        team = self._teams.get(name)
        if team is None:
            team = self._teams[name] = Team(name, output_ratio=self._output_ratio)
        team.weight = weight
        return team

    def join(self, team: Team) -> None:
        """One more request of this team waits."""
        if not team.num_waiting:
            self.lift(team)
        team.num_waiting += 1

    def lift(self, team: Team) -> None:
        """Let a team that asked for less than its share, or could not have it, start level with those that wait."""
        others = [other.served for other in self._teams.values() if other.num_waiting and other is not team]
        floor = min(others, default=self._floor)
        team.served = max(team.served, floor)
        team.committed = max(team.committed, floor)

    def charge(self, team: Team, service: float, weight: float) -> None:
        """A request of this team begins that will probably take so much."""
        self._floor = max(self._floor, team.served)
        team.committed += service / weight

    def settle(self, team: Team, difference: float, weight: float) -> None:
        """A request ended and took `difference` more than it was charged for; a negative one is given back."""
        team.committed += difference / weight

    def observe(self, team: Team, num_output: int, max_tokens: int) -> None:
        """An answer ended by itself after `num_output` tokens."""
        ratio = num_output / max_tokens
        team.output_ratio += RATIO_GAIN * (ratio - team.output_ratio)
        self._output_ratio += RATIO_GAIN * (ratio - self._output_ratio)

    def leave(self, team: Team) -> None:
        """A request of this team is gone; forget the team if nothing is left to remember."""
        if team.num_waiting or team.num_running:
            return
        if team.committed <= self._floor:
            del self._teams[team.name]
        if not self.live():
            self._teams.clear()
            self._floor = 0.0

    def fair_places(self, team: Team, num_places: int) -> float:
        """The team's share of `num_places` by weight, among the teams that have live requests and itself."""
        others = sum(other.weight for other in self.live() if other is not team)
        return num_places * team.weight / (others + team.weight)
