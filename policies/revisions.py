"""Which policy set serves now: swapped whole, and kept when a reload fails."""

from collections.abc import Callable
from pathlib import Path

from policies.errors import PolicyError
from policies.load import load
from policies.resolve import PolicySet


class ActivePolicies:
    """Holds the serving set. A request takes `current()` once and keeps it to its end, so that it sees one revision."""

    def __init__(self, policies: PolicySet, prepare: Callable[[PolicySet], PolicySet] | None = None) -> None:
        """`prepare` is applied to every set before it serves, this one included: it adds keys that live in memory."""
        self._prepare = prepare or _as_it_is
        self._current = self._prepare(policies)
        self._last_error: PolicyError | None = None

    @property
    def last_error(self) -> PolicyError | None:
        """Why the newest reload failed; None when it succeeded."""
        return self._last_error

    def current(self) -> PolicySet:
        """The set that serves."""
        return self._current

    def swap(self, policies: PolicySet) -> PolicySet:
        """Serve `policies` from now on; returns the set that served before."""
        before, self._current, self._last_error = self._current, self._prepare(policies), None
        return before

    def reload(self, path: Path | str) -> PolicySet:
        """Serve what is at `path` now. On a problem the old set goes on serving.

        Raises:
            PolicyError: the new set is refused; `last_error` remembers it.
        """
        try:
            policies = load(path)
        except PolicyError as error:
            self._last_error = error
            raise
        self.swap(policies)
        return self._current


def _as_it_is(policies: PolicySet) -> PolicySet:
    return policies
