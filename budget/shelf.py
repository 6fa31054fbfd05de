"""The passages of one request, ranked and in units, ready to be fitted into whatever room there is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from budget.allocate import fit
from budget.dedupe import Candidate
from budget.passages import render
from budget.ports import Ports
from budget.rank import Ranking, rank
from budget.sentence_rank import sentence_scores
from budget.trim import Passage, split
from budget.types import DocumentReason, Message, PlanRequest
from budget.worth import Scored, Units, scored


@dataclass(frozen=True)
class Chosen:
    """One passage's fate. Without `units` it is dropped. `rank` counts from 1, `position` in the prompt from 0."""

    passage: Passage
    units: Units
    text: str
    """As it stands in the prompt, separators aside."""
    score: float | None = None
    rank: int | None = None
    reason: DocumentReason | None = None
    position: int | None = None
    moved: int = 0

    @cached_property
    def spans(self) -> Mapping[int, list[tuple[int, int]]]:
        """What is kept of each document that the passage was merged from, as [start, end) offsets into its text."""
        return self.passage.candidate.spans(self.passage.spans(self.units))

    @property
    def index(self) -> int:
        """The document that stands for the passage: the candidate's, or the first of which something is kept."""
        own = self.passage.candidate.index
        return own if own in self.spans or not self.spans else min(self.spans)


@dataclass(frozen=True)
class Shelf:
    """Passages, the most relevant first, with their scores and their tokens (separator included) when kept whole."""

    request: PlanRequest
    ports: Ports
    query: str
    context: Sequence[Message]
    ranking: Ranking
    passages: Sequence[Passage]
    scores: Sequence[float]
    whole: Sequence[int]

    @property
    def optional_tokens(self) -> int:
        """Tokens that all would take that may be kept or dropped."""
        cap = self.request.context.trim.max_tokens_per_document
        return sum(self.whole[at] if cap is None else min(self.whole[at], cap) for at in self._optional)

    def fit(self, room: int) -> list[Chosen]:
        """Every passage's fate where those that are not pinned have `room` tokens together."""
        kept = {at: p.everything for at, p in enumerate(self.passages) if p.candidate.pinned}
        passages = list(self.passages)
        if room >= sum(self.whole[at] for at in self._optional) and not self._is_capped:
            kept |= {at: passages[at].everything for at in self._optional}
        elif room > 0 and self._optional:
            own = self._scored
            diversity = self.request.context.rank.diversity
            fitted = fit(own, room, lambda n, units: self.cost(own[n].passage, units), diversity=diversity)
            for n, at in enumerate(self._optional):
                kept[at], passages[at] = fitted[n], own[n].passage
        return [self._chosen(at, passage, kept.get(at, frozenset())) for at, passage in enumerate(passages)]

    def text(self, passage: Passage, units: Units) -> str:
        """A passage as it stands in the prompt, separators aside."""
        policy = self.request.context
        text = passage.text(units, ellipsis=policy.trim.ellipsis)
        return render(policy.render.document, passage.label, passage.title, text)

    def cost(self, passage: Passage, units: Units) -> int:
        """Exact tokens of a passage with its separator."""
        return self._count(self.text(passage, units))

    def _count(self, rendered: str) -> int:
        counter, separator = self.ports.counter, self.request.context.render.separator
        return counter.count(separator + rendered if counter.separator_side == "leading" else rendered + separator)

    @cached_property
    def _optional(self) -> list[int]:
        least = self.request.context.rank.min_score
        pinned = [passage.candidate.pinned for passage in self.passages]
        return [at for at, score in enumerate(self.scores) if not pinned[at] and score >= least]

    @cached_property
    def _is_capped(self) -> bool:
        cap = self.request.context.trim.max_tokens_per_document
        return cap is not None and any(self.whole[at] > cap for at in self._optional)

    @cached_property
    def _scored(self) -> list[Scored]:
        passages = [self.passages[at] for at in self._optional]
        scores = sentence_scores(
            self.query,
            [p.candidate.text for p in passages],
            [p.units for p in passages],
            passage_scores=[self.scores[at] for at in self._optional],
            titles=[p.title for p in passages],
            embedder=self.ports.embedder,
            context=self.context,
        )
        found = []
        for at, passage, own in zip(self._optional, passages, scores, strict=True):
            frame = self._count(render(self.request.context.render.document, passage.label, passage.title, ""))
            found.append(self._capped(scored(passage, own, self.whole[at], frame), self.whole[at]))
        return found

    def _capped(self, own: Scored, whole: int) -> Scored:
        """A passage held to the policy's cap: its best sentences, or the beginning of the best one."""
        cap = self.request.context.trim.max_tokens_per_document
        if cap is None or whole <= cap:
            return own
        allowed = fit([own], cap, lambda _, units: self.cost(own.passage, units))[0]
        if allowed:
            return own.limited_to(allowed)
        best = own.content[0]
        room = cap - round(own.frame_tokens)
        passage = own.passage.cut(best, room, self.ports.counter)
        while passage.units and self.cost(passage, passage.everything) > cap:
            room -= 1
            passage = own.passage.cut(best, room, self.ports.counter)
        return scored(passage, [own.scores[best]][: len(passage.units)], cap, round(own.frame_tokens))

    def _chosen(self, at: int, passage: Passage, units: Units) -> Chosen:
        reason: DocumentReason | None = None
        least, cap = self.request.context.rank.min_score, self.request.context.trim.max_tokens_per_document
        if not units:
            reason = "below_min_score" if self.scores[at] < least else "over_budget"
        elif not passage.covers_all(units):
            capped = (
                cap is not None and self.whole[at] > cap and units == self._scored[self._optional.index(at)].allowed
            )
            reason = "token_cap" if capped else "sentence_trim"
        text = self.text(passage, units) if units else ""
        return Chosen(passage, units, text, self.scores[at], at + 1, reason)


def stock(
    request: PlanRequest,
    ports: Ports,
    candidates: Sequence[Candidate],
    labels: Mapping[int, str],
    *,
    query: str,
    context: Sequence[Message],
) -> Shelf:
    """Ranks candidates and cuts them into units.

    Args:
        request: documents and policy.
        ports: counter and scorers.
        candidates: the passages, copies out.
        labels: by document index.
        query: the question.
        context: the turns before it, newest last.
    """
    policy = request.context
    titles = {document.index: (document.title or "").strip() for document in request.documents}
    ranking = rank(
        query,
        [c.text for c in candidates],
        policy=policy.rank,
        titles=[titles[c.index] for c in candidates],
        caller_scores=[c.score for c in candidates],
        embedder=ports.embedder,
        cross_encoder=ports.cross_encoder,
        context=context,
    )
    ranked = [candidates[at] for at in ranking.order]
    passages = [split(c, labels[c.index], titles[c.index], whole=policy.trim.unit == "none") for c in ranked]
    shelf = Shelf(request, ports, query, context, ranking, passages, [ranking.scores[at] for at in ranking.order], ())
    return replace(shelf, whole=[shelf.cost(p, p.everything) for p in passages])
