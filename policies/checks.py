"""What types cannot tell: values above a ceiling, names that nothing stands behind, combinations that cannot work."""

from collections.abc import Iterator
from itertools import chain
from typing import Any

from msgspec import UNSET

from policies.combinations import check_combinations
from policies.errors import Problem
from policies.layers import key_entries, overlays
from policies.leaves import nearest
from policies.scalars import ScalarError, spell
from policies.values import VALUE_CHECKS, check_date
from policies.written import Branch, Value, branch, find, is_known, leaves, problem_at

_NO_CEILING = (("context", "dedupe"), ("context", "rank"), ("prices",))
"""Numbers that are not amounts: more of a threshold or a price is not more of a right."""


def check(document: Branch) -> list[Problem]:
    """All that is wrong with a whole set, in the order of `(file, line, column)`, each place and message once."""
    found = chain(
        _ceiling_shapes(document),
        _above_ceilings(document),
        _single_values(document),
        _models(document),
        _keys(document),
        _unknown_models(document),
        check_combinations(document),
    )
    unique = {(p.file, p.line, p.column, p.path, p.message): p for p in found}
    return [unique[place] for place in sorted(unique)]


def _ceiling_shapes(document: Branch) -> Iterator[Problem]:
    for path, ceiling in leaves(branch(document, "ceilings")):
        if is_known(ceiling) and (not _is_number(ceiling.value) or any(path[: len(p)] == p for p in _NO_CEILING)):
            fix = "move it to `defaults`; ceilings take amounts: tokens, bytes, counts, times, weights, shares of room"
            yield problem_at(ceiling, "there is no ceiling for this key", fix)


def _above_ceilings(document: Branch) -> Iterator[Problem]:
    ceilings = [c for c in leaves(branch(document, "ceilings")) if _is_number(c[1].value)]
    for overlay in overlays(document):
        for path, ceiling in ceilings:
            value = find(overlay, path)
            if value and _is_number(value.value) and value.value > ceiling.value:
                bound = spell(ceiling.value, ceiling.unit)
                message = f"{spell(value.value, value.unit)} is above the ceiling {bound} ({ceiling.origin})"
                yield problem_at(value, message, f"write {bound} or less, or raise the ceiling")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _single_values(document: Branch) -> Iterator[Problem]:
    for overlay in overlays(document):
        for path, check_value in VALUE_CHECKS.items():
            value = find(overlay, path)
            if value and is_known(value):
                yield from _checked(value, check_value)


def _checked(value: Value, check_value: Any) -> Iterator[Problem]:
    try:
        check_value(value.value)
    except ScalarError as error:
        yield problem_at(value, error.message, error.fix)


def _models(document: Branch) -> Iterator[Problem]:
    for name in branch(document, "models"):
        context = find(document, ("models", name, "max_context_tokens"))
        output = find(document, ("models", name, "max_output_tokens"))
        if context and output and is_known(context) and is_known(output) and output.value > context.value:
            message = f"{output.value} output tokens do not fit a context of {context.value}"
            yield problem_at(output, message, f"write {context.value} or less")


def _keys(document: Branch) -> Iterator[Problem]:
    seen: dict[str, Value] = {}
    for team, entry in key_entries(document):
        digest, app, expires = (find(entry, (name,)) for name in ("hash", "app", "expires"))
        if digest and is_known(digest):
            if first := seen.get(digest.value):
                message = f"this hash is also that of {first.path} ({first.origin})"
                yield problem_at(digest, message, "give every entry a key of its own")
            seen.setdefault(digest.value, digest)
        apps = list(branch(document, "teams", team, "apps"))
        if app and is_known(app) and apps and app.value not in (*apps, "default"):
            meant = nearest(app.value, apps)
            fix = (
                f"did you mean {meant}?" if meant else f"add it under teams.{team}.apps, `{app.value}: {{}}` is enough"
            )
            yield problem_at(app, f"team {team} has no app {app.value!r}", fix)
        if expires and is_known(expires):
            yield from _checked(expires, check_date)


def _unknown_models(document: Branch) -> Iterator[Problem]:
    known = list(branch(document, "models"))
    lists = [find(entry, ("models",)) for _, entry in key_entries(document)]
    for names in lists:
        if names and names.value == ():
            yield problem_at(names, "an empty list allows no model", "name models, or remove the key to allow all")
    lists += [find(overlay, ("fallbacks",)) for overlay in overlays(document)]
    for names in lists:
        for name in names.value if names and is_known(names) else ():
            if name.value is not UNSET and name.value not in known:
                meant = nearest(name.value, known)
                fix = (
                    f"did you mean {meant}?" if meant else f"add it under `models`; known: {', '.join(known) or 'none'}"
                )
                yield problem_at(name, f"there is no model {name.value!r}", fix)
