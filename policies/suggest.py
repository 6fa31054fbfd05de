"""What an unknown key was probably meant to be: a near name here, or a known key that belongs elsewhere."""

from functools import cache

from msgspec import inspect

from policies.leaves import nearest
from policies.nodes import Path, dotted

ANY = "*"
"""Stands for a name that the author chooses: a team, an app, a model."""


def unknown_key_fix(key: str, here: Path, fields: list[str], root: type) -> str:
    """Advice on `key`, read in the mapping at `here` whose keys may be `fields`."""
    if ":" in key:
        return f"put a space after the colon: `{key.replace(':', ': ', 1)}`"
    if (home := _home(key, here, root)) is not None:
        return f"`{key}` belongs under `{dotted(home)}`" if home else f"`{key}` belongs at the top of the file"
    if meant := nearest(key.replace("-", "_"), fields):
        return f"did you mean `{meant}`?"
    names = {str(path[-1]) for path in key_paths(root)}
    if (meant := nearest(key.replace("-", "_"), sorted(names))) and (home := _home(meant, here, root)):
        return f"did you mean `{meant}`, which belongs under `{dotted(home)}`?"
    return f"remove it; the keys here are {', '.join(fields)}"


@cache
def key_paths(root: type) -> tuple[Path, ...]:
    """Every key of the struct `root` and of what it holds, as paths; chosen names are `*`."""
    return tuple(_walk(inspect.type_info(root), ()))


def _walk(type_: inspect.Type, path: Path) -> list[Path]:
    if isinstance(type_, inspect.StructType):
        found = []
        for field in type_.fields:
            found += [(*path, field.name), *_walk(field.type, (*path, field.name))]
        return found
    if isinstance(type_, inspect.DictType):
        return _walk(type_.value_type, (*path, ANY))
    if isinstance(type_, inspect.VarTupleType):
        return _walk(type_.item_type, (*path, ANY))
    return []


def _home(key: str, here: Path, root: type) -> Path | None:
    """Where `key` is known, nearest to `here`: the longest way together, then the shortest path."""
    # Reversed: of equals the last, so that `defaults` is named rather than `ceilings`.
    homes = [path[:-1] for path in reversed(key_paths(root)) if path[-1] == key]
    best = min(homes, key=lambda home: (-_together(home, here), len(home)), default=None)
    if best is None:
        return None
    shared = _together(best, here)
    return (*here[:shared], *("…" if name == ANY else name for name in best[shared:]))


def _together(home: Path, here: Path) -> int:
    shared = 0
    for name, mine in zip(home, here, strict=False):
        if name not in (mine, ANY):
            break
        shared += 1
    return shared
