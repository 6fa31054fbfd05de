"""One request inside the engine: its tokens, its lease of KV blocks, its text, its standing."""

import math
from dataclasses import dataclass, field

from engine.detokenize import TextStream
from engine.lease import Lease
from engine.meter import Meter
from engine.prefix import Node
from engine.request import EngineRequest, FinishReason, Phase
from engine.teams import Team


@dataclass(slots=True, eq=False)
class SequenceState:
    """A live request. `tokens` is the prompt and the output so far; the first `num_computed` are in KV."""

    request: EngineRequest
    seq_id: int
    tokens: list[int]
    num_prompt: int
    text: TextStream
    stop_ids: frozenset[int]
    meter: Meter
    team: Team
    num_blocks: int
    """KV blocks that it can need at most."""
    lease: Lease | None = None
    """Set while it runs."""
    num_computed: int = 0
    num_known: int = 0
    """The most of `tokens` that ever was in KV; what is computed below is computed again."""
    deadline: float = math.inf
    """The earliest instant that would end it in its present phase."""
    found: list[Node] = field(default_factory=list)
    """While it waits: what was cached of its tokens when they were last looked up."""
    num_uncached: int = 0
    """While it waits: the tokens that were not."""
    order: float = 0.0
    """While it waits: its place in its team's queue, in seconds; the lowest is first."""
    ordered_by: int = 0
    """`num_uncached` when `order` was set."""
    tag: float | None = None
    """Its finish tag when it was first admitted."""
    charged: float = 0.0
    """Service tokens that its team was charged for it."""
    blocked_at: int = -1
    """`KVCache.num_releases` when it last did not fit."""

    @property
    def num_output(self) -> int:
        """Tokens generated so far."""
        return len(self.tokens) - self.num_prompt

    @property
    def num_pending(self) -> int:
        """Known tokens that are not in KV yet; 1 while decoding."""
        return len(self.tokens) - self.num_computed

    @property
    def decoding(self) -> bool:
        """Whether only the last drawn token is to compute."""
        return self.num_computed >= self.num_prompt and len(self.tokens) == self.num_computed + 1

    @property
    def interactive(self) -> bool:
        """Whether somebody waits for each token, not for the whole."""
        return self.request.objective == "interactive"

    @property
    def start_tag(self) -> float:
        """While it waits: its team's counter, by which the next is picked; who was preempted comes before all."""
        return self.team.committed if self.tag is None else -math.inf

    @property
    def finish_tag(self) -> float:
        """Its team's counter with it; prefills that run are computed in this order (Demers et al., 1989)."""
        return self.team.committed + self.cost / self.request.weight if self.tag is None else self.tag

    @property
    def cost(self) -> float:
        """While it waits: the service tokens that it will probably take."""
        return self.team.cost(self.num_uncached, self.request.max_tokens)

    @property
    def expected_output_left(self) -> float:
        """Tokens that are probably still to come, at least one."""
        return max(1.0, self.team.expected_output(self.request.max_tokens) - self.num_output)

    def proceed(self, num_tokens: int, cached: bool) -> int:
        """The next `num_tokens` are in KV, found there or computed; returns how many tokens of the prompt are new."""
        end = self.num_computed + num_tokens
        if self.num_prompt <= self.num_computed == self.num_known:  # a decode, nearly always
            self.num_computed = self.num_known = end
            return 0
        new = max(0, end - max(self.num_computed, self.num_known))
        meter, new_prompt = self.meter, min(new, max(0, self.num_prompt - (end - new)))
        if cached:
            meter.num_cached += new_prompt
        else:
            meter.num_computed += new_prompt
            meter.num_recomputed += num_tokens - new
        self.num_computed = end
        self.num_known = max(self.num_known, end)
        return new_prompt

    def open_phases(self) -> list[tuple[float, Phase]]:
        """Deadlines that can still pass, with their phases."""
        limits = self.request.deadlines
        phases: list[tuple[float | None, Phase]] = [(limits.total, "total")]
        if self.meter.first_token is None:
            phases.insert(0, (limits.first_token, "first_token"))
        if self.meter.scheduled is None:
            phases.insert(0, (limits.queue, "queue"))
        return [(instant, phase) for instant, phase in phases if instant is not None]

    def read(self, token: int) -> tuple[str, FinishReason | None]:
        """Text that a token makes safe to send, and the reason if it is the last. Stop tokens have no text."""
        if token in self.stop_ids:
            return "", "stop"
        text = self.text.push(token)
        if self.text.stopped:
            return text, "stop"
        if self.num_output >= self.request.max_tokens:
            return text, "length"
        return text, None

    def next_phase(self) -> None:
        """Recompute `deadline` after a phase has passed."""
        self.deadline = min((instant for instant, _ in self.open_phases()), default=math.inf)
