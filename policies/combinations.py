"""Combinations that cannot work: looked at per team, app and stage, because each layer alone may be fine."""

from collections.abc import Iterator

from msgspec import UNSET

from policies.errors import Problem
from policies.layers import effective_tree, key_entries
from policies.written import Branch, branch, find, is_known, problem_at

SECTIONS = ("system", "facts", "history", "documents")


def check_combinations(document: Branch) -> Iterator[Problem]:
    """Every team and app in every stage, as it will be resolved: shares, minimums and the reserve must work out.

    What several of them inherit is reported once, for the first.
    """
    seen = set()
    for problem in _all_combinations(document):
        place = (problem.file, problem.line, problem.column, problem.path, problem.fix)
        if place not in seen:
            seen.add(place)
            yield problem


def _all_combinations(document: Branch) -> Iterator[Problem]:
    stages: list[str | None] = [None, *branch(document, "stages")]
    for team, app in _team_apps(document):
        for stage in stages:
            tree = effective_tree(document, team, app, stage, None)
            where = f"team {team}, app {app}" if team else "the defaults"
            where += f", stage {stage}" if stage else ""
            yield from _shares(tree, where)
            yield from _minimums(tree, where)
            yield from _reserve(document, tree, where, _models_of(document, team, app, stage))


def _team_apps(document: Branch) -> Iterator[tuple[str | None, str | None]]:
    yield None, None
    for team in branch(document, "teams"):
        yield from ((team, app) for app in ("default", *branch(document, "teams", team, "apps")))


def _shares(tree: Branch, where: str) -> Iterator[Problem]:
    shares = [(s, find(tree, ("context", "sections", s, "max_share"))) for s in SECTIONS]
    written = [(name, share) for name, share in shares if share and is_known(share)]
    total = sum(share.value for _, share in written)
    if total > 1 + 1e-9:
        parts = ", ".join(f"{name} {share.value:g} ({share.origin})" for name, share in written)
        message = f"shares of sections add up to {total:g} for {where}: {parts}"
        yield problem_at(written[-1][1], message, "lower them to 1 or less in sum")


def _minimums(tree: Branch, where: str) -> Iterator[Problem]:
    for section in SECTIONS:
        least = find(tree, ("context", "sections", section, "min_tokens"))
        most = find(tree, ("context", "sections", section, "max_tokens"))
        if least and most and is_known(least) and is_known(most) and least.value > most.value:
            message = (
                f"min_tokens {least.value} ({least.origin}) is more than max_tokens {most.value} ({most.origin}) "
                f"for {where}"
            )
            yield problem_at(least if least.place else most, message, f"write {most.value} or less for min_tokens")


def _models_of(document: Branch, team: str | None, app: str | None, stage: str | None) -> list[str] | None:
    """Models that a key of this combination names; None where no key is limited to some."""
    named: list[str] = []
    for _, entry in key_entries(document, team):
        own_app, own_stage, models = (find(entry, (name,)) for name in ("app", "stage", "models"))
        matches = (own_app.value if own_app else "default") == app
        matches &= stage is None or (own_stage.value if own_stage else "production") == stage
        if matches:
            if not models or not is_known(models):
                return list(branch(document, "models"))
            named += [name.value for name in models.value if name.value is not UNSET]
    return named or None


def _reserve(document: Branch, tree: Branch, where: str, used: list[str] | None) -> Iterator[Problem]:
    reserve = find(tree, ("context", "reserve_output_tokens"))
    contexts = {name: find(document, ("models", name, "max_context_tokens")) for name in branch(document, "models")}
    bounds = {name: bound for name, bound in contexts.items() if bound and is_known(bound)}
    if used is None and len(bounds) < len(contexts):
        return  # some model has room of its own, unknown here
    names = used if used is not None else sorted(bounds, key=lambda name: -bounds[name].value)[:1]
    for name in names:
        bound = bounds.get(name)
        if bound and reserve and is_known(reserve) and reserve.value >= bound.value:
            message = (
                f"reserve_output_tokens {reserve.value} ({reserve.origin}) leaves no room for a prompt in the "
                f"{bound.value} tokens of model {name} ({bound.origin}), for {where}"
            )
            yield problem_at(reserve if reserve.place else bound, message, f"reserve less than {bound.value}")
