"""Fitting sentences of passages into a number of tokens."""

from hypothesis import given, settings
from hypothesis import strategies as st

from budget.allocate import fit
from budget.dedupe import Candidate
from budget.trim import split
from budget.windows import Piece
from budget.worth import scored


def candidate(index, text):
    """A passage of one document."""
    return Candidate(index, text, (Piece(index, 0, len(text)),), None, False)


class Case:
    """Passages of words, a word a token and three for the frame, with scores a unit."""

    def __init__(self, *passages):
        self.passages = [split(candidate(n, text), f"d{n}", "") for n, (text, _) in enumerate(passages)]
        self.scored = [
            scored(passage, scores, self.cost(n, passage.everything), 3)
            for n, (passage, (_, scores)) in enumerate(zip(self.passages, passages, strict=True))
        ]

    def cost(self, n, units):
        """Words of the rendered passage."""
        return 3 + len(self.passages[n].text(units).split())

    def fit(self, room, **changes):
        """Kept units as sorted lists."""
        return [sorted(units) for units in fit(self.scored, room, self.cost, **changes)]

    def used(self, kept):
        """Tokens of a result."""
        return sum(self.cost(n, frozenset(units)) for n, units in enumerate(kept) if units)

    def worth(self, kept):
        """Score times words, over all that is kept."""
        return sum(
            self.scored[n].scores[unit] * len(self._text(n, unit).split())
            for n, units in enumerate(kept)
            for unit in units
        )

    def _text(self, n, unit):
        span = self.passages[n].units[unit]
        return self.passages[n].candidate.text[span.start : span.end]


def test_all_is_kept_where_all_fits():
    """Whole passages, whatever their scores."""
    case = Case(("One two three.", [0.0]), ("Four five.", [1.0]))
    assert case.fit(11) == [[0], [0]]


def test_the_most_useful_sentences_go_in_first():
    """Across passages, not passage by passage."""
    case = Case(
        ("Alpha beta gamma delta. Rain fell there often.", [0.9, 0.1]),
        ("Epsilon zeta eta theta. Snow lay here long.", [0.8, 0.1]),
    )
    assert case.fit(14) == [[0], [0]]


def test_what_is_left_is_filled_with_what_still_fits():
    """A long sentence that does not fit is passed over for a short one."""
    case = Case(
        ("Alpha beta gamma.", [0.9]),
        ("One two three four five six seven eight nine ten.", [0.8]),
        ("Delta epsilon.", [0.5]),
    )
    assert case.fit(12) == [[0], [], [0]]


def test_a_sentence_brings_what_it_needs():
    """And counts its tokens."""
    case = Case(("The dam is old. It holds much water today.", [0.0, 0.9]), ("Nothing here at all.", [0.2]))
    assert case.fit(13)[0] == [0, 1]
    assert case.fit(10)[0] == []


def test_what_was_said_is_worth_little():
    """A repeated sentence waits behind new ones."""
    case = Case(
        ("The return window is thirty days.", [0.9]),
        ("The return window is thirty days.", [0.89]),
        ("Shipping takes four working days.", [0.3]),
    )
    assert case.fit(19) == [[0], [], [0]]


def test_diversity_prefers_news():
    """Partly repeated text steps back as far as the policy says."""
    case = Case(
        ("Red river flows north.", [0.9]), ("Red river flows south.", [0.8]), ("Green valley grows wheat.", [0.6])
    )
    assert case.fit(14) == [[0], [0], []]
    assert case.fit(14, diversity=0.9) == [[0], [], [0]]


def test_passages_that_say_nothing_go_in_whole_by_order():
    """Without scores the first passages are kept."""
    case = Case(*((f"Word{n} thing{n} here. Other{n} thing follows.", [0.0, 0.0]) for n in range(4)))
    assert case.fit(20) == [[0, 1], [0, 1], [], []]


def test_no_room_keeps_nothing():
    """Nor does room for less than one sentence."""
    case = Case(("Alpha beta gamma.", [0.9]))
    assert case.fit(0) == case.fit(5) == [[]]


@st.composite
def cases(draw):
    """A few passages of distinct words."""
    found = []
    for n in range(draw(st.integers(1, 5))):
        lengths = draw(st.lists(st.integers(1, 7), min_size=1, max_size=5))
        words = [[f"W{n}x{k}y{i}" for i in range(length)] for k, length in enumerate(lengths)]
        scores = [draw(st.integers(0, 20)) / 20 for _ in lengths]
        found.append((" ".join(" ".join(sentence) + "." for sentence in words), scores))
    return Case(*found)


@settings(deadline=None)
@given(case=cases(), room=st.integers(0, 90), more=st.integers(1, 30))
def test_more_room_is_never_worth_less(case, room, more):
    """And none is exceeded."""
    less, larger = case.fit(room), case.fit(room + more)
    assert case.used(less) <= room
    assert case.used(larger) <= room + more
    assert case.worth(larger) >= case.worth(less) - 1e-9
    assert case.fit(room) == less
