"""How layers become one tree: defaults, stage, team and app are merged, then ceilings, then the model's bounds."""

from collections.abc import Iterator

import msgspec
from msgspec import UNSET

from policies.schema import Policy
from policies.written import Branch, Value, Written, branch, find, is_known, leaves, merge

PROMPT_BOUND = ("context", "max_prompt_tokens")
RESERVE = ("context", "reserve_output_tokens")
_TEAM_ONLY = ("keys", "apps")


def team_overlay(team: Branch) -> Branch:
    """A team's policy part, without its keys and apps."""
    return {key: below for key, below in team.items() if key not in _TEAM_ONLY}


def overlays(document: Branch) -> Iterator[Branch]:
    """Every policy-shaped part that ceilings bind, in file order of the kinds."""
    yield branch(document, "defaults")
    for stage in branch(document, "stages"):
        yield branch(document, "stages", stage)
    for team in branch(document, "teams"):
        yield team_overlay(branch(document, "teams", team))
        for app in branch(document, "teams", team, "apps"):
            yield branch(document, "teams", team, "apps", app)


def key_entries(document: Branch, *teams: str | None) -> Iterator[tuple[str, Branch]]:
    """(team, entry) of every API key, of all teams or of those named."""
    for team in teams or branch(document, "teams"):
        keys = find(document, ("teams", team, "keys")) if team else None
        for entry in keys.value if keys and is_known(keys) else ():
            if isinstance(entry, dict):
                yield str(team), entry


def effective_tree(document: Branch, team: str | None, app: str | None, stage: str | None, model: str | None) -> Branch:
    """Every value that applies, schema defaults included, each with its origin. None leaves a layer out."""
    tree = merge(_DEFAULTS, branch(document, "defaults"))
    if stage:
        tree = merge(tree, branch(document, "stages", stage))
    if team:
        tree = merge(tree, team_overlay(branch(document, "teams", team)))
        if app:
            tree = merge(tree, branch(document, "teams", team, "apps", app))
    for path, ceiling in leaves(branch(document, "ceilings")):
        tree = cap(tree, path, ceiling)
    bounds = branch(document, "models", model) if model else {}
    for path, name in ((PROMPT_BOUND, "max_context_tokens"), (RESERVE, "max_output_tokens")):
        if bound := find(bounds, (name,)):
            tree = cap(tree, path, bound)
    return tree


def cap(tree: Branch, path: tuple[str, ...], ceiling: Value) -> Branch:
    """`tree` with the value at `path` no larger than `ceiling`; null means unlimited, so it becomes the ceiling."""
    value = find(tree, path)
    if not is_known(ceiling) or value is None or value.value is UNSET:
        return tree
    if value.value is not None and value.value <= ceiling.value:
        return tree
    capped: Written = ceiling
    for name in reversed(path):
        capped = {name: capped}
    return merge(tree, capped) if isinstance(capped, dict) else tree


def _as_values(built: dict[str, object]) -> Branch:
    return {
        key: _as_values(below) if isinstance(below, dict) else Value(_frozen(below)) for key, below in built.items()
    }


def _frozen(value: object) -> object:
    return tuple(Value(item) for item in value) if isinstance(value, list | tuple) else value


_DEFAULTS: Branch = _as_values(msgspec.to_builtins(Policy()))
