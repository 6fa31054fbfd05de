"""A loaded policy set: who a key belongs to, and which policy applies to a team, app, stage and model."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, get_args

import msgspec

from policies.layers import effective_tree
from policies.leaves import nearest
from policies.schema import KeyEntry, ModelPolicy, Policy, PolicyDocument, Stage
from policies.written import Branch, leaves, plain

REVISION_DIGITS = 12
_STAGES: tuple[str, ...] = get_args(Stage)


class UnknownName(LookupError):
    """A team, app, stage or model that the set does not have; the message lists what it has."""


class KeyMatch(NamedTuple):
    """Whose key it is."""

    team: str
    entry: KeyEntry


@dataclass(frozen=True, slots=True)
class Effective:
    """What applies to one team, app, stage and model, and where each value comes from."""

    name: str
    """`team/app`."""
    revision: str
    policy: Policy
    models: Mapping[str, ModelPolicy]
    """All models of the set, by the name that requests use."""
    origins: Mapping[str, str]
    """Dotted path within the policy -> `file:line` or `default`."""


class PolicySet:
    """Immutable; resolved policies are remembered. Safe to read from any thread."""

    def __init__(self, document: Branch, typed: PolicyDocument, revision: str, keys: Mapping[str, KeyMatch]) -> None:
        self.document = typed
        self.revision = revision
        self._tree = document
        self._keys = keys
        self._resolved: dict[tuple[str, str, str, str | None], Effective] = {}

    @classmethod
    def of(cls, tree: Branch) -> "PolicySet":
        """The set of a tree that was checked."""
        content = plain(tree)
        typed = msgspec.convert(content, PolicyDocument)
        keys = {entry.hash: KeyMatch(name, entry) for name, team in typed.teams.items() for entry in team.keys}
        return cls(tree, typed, revision_of(content), keys)

    @property
    def models(self) -> Mapping[str, ModelPolicy]:
        """By the name that requests use."""
        return self.document.models

    def find_key(self, digest: str) -> KeyMatch | None:
        """Whose key has this hash (see `policies.keys.hash_key`); expiry is the caller's to check."""
        return self._keys.get(digest)

    def resolve(self, team: str, app: str, stage: str, model: str | None = None) -> Effective:
        """What applies: defaults, stage, team, app as written, then ceilings, then the model's bounds.

        Raises:
            UnknownName: the set has no such team, app, stage or model.
        """
        key = (team, app, stage, model)
        found = self._resolved.get(key)
        if found is None:
            self._require_known(team, app, stage, model)
            found = self._resolved[key] = self._resolve(team, app, stage, model)
        return found

    def with_key(self, team: str, entry: KeyEntry) -> "PolicySet":
        """The same set, and the same revision, with one more key, which lives in memory only.

        Raises:
            UnknownName: the set has no such team, or the entry names a model that it does not have.
            ValueError: another entry has this hash.
        """
        if entry.hash in self._keys:
            raise ValueError(f"team {self._keys[entry.hash].team} has a key with this hash already")
        more = PolicySet(self._tree, self.document, self.revision, {**self._keys, entry.hash: KeyMatch(team, entry)})
        for model in entry.models or (None,):
            more._require_known(team, entry.app, entry.stage, model)
        return more

    def _resolve(self, team: str, app: str, stage: str, model: str | None) -> Effective:
        tree = effective_tree(self._tree, team, app, stage, model)
        return Effective(
            name=f"{team}/{app}",
            revision=self.revision,
            policy=msgspec.convert(plain(tree), Policy),
            models=self.document.models,
            origins={".".join(path): value.origin for path, value in leaves(tree)},
        )

    def _require_known(self, team: str, app: str, stage: str, model: str | None) -> None:
        _require(team, list(self.document.teams), "team")
        keys = (match for match in self._keys.values() if match.team == team)
        apps = dict.fromkeys(["default", *self.document.teams[team].apps, *(match.entry.app for match in keys)])
        _require(app, list(apps), f"app of team {team}")
        _require(stage, list(_STAGES), "stage")
        if model is not None:
            _require(model, list(self.document.models), "model")


def revision_of(content: Any) -> str:
    """The first 12 hex digits of the SHA-256 of the content, whatever its formatting, comments and key order."""
    canonical = json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()[:REVISION_DIGITS]


def _require(name: str, known: list[str], what: str) -> None:
    if name not in known:
        meant = nearest(name, known)
        hint = f"did you mean {meant}?" if meant else f"known: {', '.join(known) or 'none'}"
        raise UnknownName(f"there is no {what} {name!r}; {hint}")
