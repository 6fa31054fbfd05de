"""Resolution: precedence, ceilings, model bounds, origins, keys and the revision."""

import re
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML
from ruamel.yaml.compat import StringIO

from policies.errors import PolicyError
from policies.explain import explain, flatten
from policies.keys import KEY_PREFIX, hash_key, new_key
from policies.load import load_text
from policies.resolve import PolicySet, UnknownName
from policies.schema import KeyEntry
from policies.written import Branch, Value, merge, plain

SET = """version: 1
models:
  chat: {id: small, max_context_tokens: 1000, max_output_tokens: 100}
  big: {id: big}
ceilings:
  limits: {rate: {requests_per_minute: 500}}
  timeouts: {total: 50s}
defaults:
  weight: 2
  context: {max_prompt_tokens: 2048, order: edges}
  fallbacks: [big]
stages:
  development: {weight: 3, limits: {rate: {requests_per_minute: 60}}}
teams:
  support:
    weight: 4
    context: {sections: {history: {max_share: 0.3}}}
    keys:
      - {hash: "sha256:%s", app: helpdesk, stage: pilot, models: [chat]}
    apps:
      helpdesk: {weight: 5, context: {max_prompt_tokens: null}, fallbacks: []}
  other: {}
""" % ("0a" * 32)  # fmt: skip


@pytest.fixture(scope="module")
def policies() -> PolicySet:
    """A set in which every layer says something about `weight`."""
    return load_text(SET, file="p.yaml")


def test_the_last_layer_that_says_something_wins(policies: PolicySet) -> None:
    """Defaults, stage, team, app; a layer that is silent hides nothing."""
    weights = {
        ("other", "default", "production"): 2,
        ("other", "default", "development"): 3,
        ("support", "default", "development"): 4,
        ("support", "helpdesk", "development"): 5,
    }
    assert {key: policies.resolve(*key).policy.weight for key in weights} == weights
    assert policies.resolve("support", "helpdesk", "development").policy.context.order == "edges"
    assert policies.resolve("support", "helpdesk", "pilot").policy.context.sections.history.max_share == 0.3


def test_null_and_an_empty_list_are_said(policies: PolicySet) -> None:
    """An explicit null or empty list overrides; that is not the same as absent."""
    assert policies.resolve("support", "default", "pilot").policy.context.max_prompt_tokens == 2048
    helpdesk = policies.resolve("support", "helpdesk", "pilot").policy
    assert helpdesk.context.max_prompt_tokens is None
    assert helpdesk.fallbacks == ()
    assert policies.resolve("support", "default", "pilot").policy.fallbacks == ("big",)


def test_ceilings_bind_defaults_and_what_is_unlimited(policies: PolicySet) -> None:
    """None becomes the ceiling, a schema default is lowered, a lower value stays."""
    production = policies.resolve("other", "default", "production")
    assert production.policy.limits.rate.requests_per_minute == 500
    assert production.policy.timeouts.total == 50
    assert production.origins["timeouts.total"] == "p.yaml:7"
    assert policies.resolve("other", "default", "development").policy.limits.rate.requests_per_minute == 60


def test_the_model_bounds_the_prompt_and_the_reserve(policies: PolicySet) -> None:
    """Only where a model is named, and only where it has bounds."""
    chat = policies.resolve("support", "helpdesk", "pilot", "chat")
    assert chat.policy.context.max_prompt_tokens == 1000
    assert chat.policy.context.reserve_output_tokens == 100
    assert chat.origins["context.max_prompt_tokens"] == "p.yaml:3"
    big = policies.resolve("support", "helpdesk", "pilot", "big").policy.context
    assert (big.max_prompt_tokens, big.reserve_output_tokens) == (None, 256)


def test_an_effective_policy_says_what_it_is(policies: PolicySet) -> None:
    """Name, revision, models, and the same object for the same question."""
    effective = policies.resolve("support", "helpdesk", "pilot")
    assert effective.name == "support/helpdesk"
    assert effective.revision == policies.revision
    assert re.fullmatch("[0-9a-f]{12}", effective.revision)
    assert effective.models["chat"].max_context_tokens == 1000
    assert policies.resolve("support", "helpdesk", "pilot") is effective


@pytest.mark.parametrize(
    ("question", "hint"),
    [
        (("suport", "default", "pilot", None), "team 'suport'; did you mean support?"),
        (("support", "helpdsk", "pilot", None), "did you mean helpdesk?"),
        (("support", "default", "prod", None), "did you mean production?"),
        (("support", "default", "pilot", "gpt"), "model 'gpt'; known: chat, big"),
    ],
)
def test_an_unknown_name_is_told_apart(policies: PolicySet, question: Any, hint: str) -> None:
    """Which name, and what it may have meant."""
    with pytest.raises(UnknownName, match=re.escape(hint)):
        policies.resolve(*question)


def test_explain_has_every_value_once_with_its_origin(policies: PolicySet) -> None:
    """All leaves of the policy, in YAML's spelling, as `file:line` or `default`."""
    lines = explain(policies, "support", "helpdesk", "development", "chat")
    by_path = {line.path: line for line in lines}
    assert len(by_path) == len(lines)
    assert set(by_path) == set(policies.resolve("support", "helpdesk", "development", "chat").origins)
    assert by_path["weight"] == ("weight", 5.0, "p.yaml:21")
    assert by_path["limits.rate.requests_per_minute"][1:] == (60, "p.yaml:13")
    assert by_path["timeouts.total"][1:] == ("50s", "p.yaml:7")
    assert by_path["timeouts.queue"][1:] == ("30s", "default")
    assert by_path["limits.request.max_bytes"][1:] == ("8MiB", "default")
    assert by_path["context.order"][2] == "p.yaml:10"


def test_a_key_is_found_by_its_hash(policies: PolicySet) -> None:
    """Team and entry, or None."""
    found = policies.find_key("sha256:" + "0a" * 32)
    assert found is not None
    assert (found.team, found.entry.app, found.entry.stage, found.entry.models) == (
        "support",
        "helpdesk",
        "pilot",
        ("chat",),
    )
    assert policies.find_key("sha256:" + "0b" * 32) is None


def test_new_keys_differ_and_hash_as_policies_store_them() -> None:
    """Recognisable, unguessable, and accepted as a KeyEntry's hash."""
    (first, digest), (second, _) = new_key(), new_key()
    assert first != second
    assert first.startswith(KEY_PREFIX)
    assert len(first) > 40
    assert digest == hash_key(first)
    load_text(f"version: 1\nteams: {{a: {{keys: [{{hash: '{digest}'}}]}}}}\n")
    assert hash_key("tg-a") == "sha256:35cf4e57583680e38f13af6d5f89ccc3e70ab1fc63bc540e5f80b74c003d1b58"


def test_a_key_in_memory_changes_no_revision(policies: PolicySet) -> None:
    """The old set does not see it; the new one finds and resolves it."""
    entry = KeyEntry(hash=hash_key("tg-dev"), app="scratch", stage="development", admin=True)
    more = policies.with_key("other", entry)
    assert policies.find_key(entry.hash) is None
    found = more.find_key(entry.hash)
    assert found == ("other", entry)
    assert more.revision == policies.revision
    assert more.resolve("other", "scratch", "development").policy.weight == 3
    with pytest.raises(ValueError, match="team other"):
        more.with_key("support", entry)
    with pytest.raises(UnknownName):
        policies.with_key("nobody", entry)


# Overlays as authors write them: a few leaves of every kind, each present or not.
LEAVES: dict[str, st.SearchStrategy[Any]] = {
    "weight": st.integers(1, 9),
    "objective": st.sampled_from(["interactive", "throughput"]),
    "timeouts.total": st.sampled_from(["5s", "1500ms", "2m", None]),
    "timeouts.queue": st.sampled_from(["1s", None]),
    "limits.rate.requests_per_minute": st.integers(1, 99) | st.none(),
    "limits.request.max_bytes": st.sampled_from(["1KiB", "2MB", 77]),
    "context.max_prompt_tokens": st.sampled_from([100, "2k", None]),
    "context.sections.history.keep_last_turns": st.integers(0, 5),
    "context.sections.system.max_tokens": st.integers(1, 50) | st.none(),
    "limits.quota.alert_at": st.lists(st.sampled_from([0.5, 0.9]), max_size=2),
}
NUMBERS = [path for path in LEAVES if path not in ("objective", "limits.quota.alert_at")]


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    """Dotted paths as nested mappings."""
    tree: dict[str, Any] = {}
    for path, value in flat.items():
        *parents, last = path.split(".")
        below = tree
        for name in parents:
            below = below.setdefault(name, {})
        below[last] = value
    return tree


flat_overlays = st.fixed_dictionaries({}, optional=LEAVES)


def dump(document: Any) -> str:
    """As YAML text."""
    out = StringIO()
    YAML(typ="safe", pure=True).dump(document, out)
    return out.getvalue()


def written(flat: dict[str, Any]) -> Branch:
    """As the loader holds it."""

    def values(tree: dict[str, Any]) -> Branch:
        return {k: values(v) if isinstance(v, dict) else Value(v, None, str(id(tree))) for k, v in tree.items()}

    return values(nested(flat))


@given(flat_overlays, flat_overlays, flat_overlays)
def test_merging_is_associative(a: Any, b: Any, c: Any) -> None:
    """Layers may be merged in any grouping; nothing is changed in place."""
    first, second, third = written(a), written(b), written(c)
    before = plain(first), plain(second), plain(third)
    assert merge(merge(first, second), third) == merge(first, merge(second, third))
    assert merge(first, {}) == first == merge({}, first)
    assert (plain(first), plain(second), plain(third)) == before


@settings(max_examples=40, deadline=None)
@given(flat_overlays, flat_overlays, flat_overlays, flat_overlays)
def test_every_value_is_that_of_the_last_layer_that_wrote_it(d: Any, s: Any, t: Any, a: Any) -> None:
    """Precedence of defaults, stage, team and app, leaf by leaf; origins name the layer."""
    document = {
        "version": 1,
        "defaults": nested(d),
        "stages": {"pilot": nested(s)},
        "teams": {"t": {**nested(t), "apps": {"a": nested(a)}}},
    }
    resolved = load_text(dump(document)).resolve("t", "a", "pilot")
    bare = load_text(dump({"version": 1, "defaults": nested(d | s | t | a), "teams": {"t": {}}}))
    assert resolved.policy == bare.resolve("t", "default", "pilot").policy
    said = set(d) | set(s) | set(t) | set(a)
    assert {path for path, origin in resolved.origins.items() if origin != "default"} == said


numeric_overlays = st.fixed_dictionaries({}, optional={p: LEAVES[p].filter(lambda v: v is not None) for p in NUMBERS})


@settings(max_examples=60, deadline=None)
@given(flat_overlays, numeric_overlays)
def test_no_value_exceeds_its_ceiling(overlay: Any, ceilings: Any) -> None:
    """What is written above is refused at load; whatever loads stays at or below, unlimited included."""
    document = {"version": 1, "ceilings": nested(ceilings), "teams": {"t": nested(overlay)}}
    bounds, wanted = (
        _values(load_text(dump({"version": 1, "teams": {"t": nested(flat)}})).resolve("t", "default", "pilot").policy)
        for flat in (ceilings, overlay)
    )
    above = {p for p in ceilings if p in overlay and wanted[p] is not None and wanted[p] > bounds[p]}
    if above:
        with pytest.raises(PolicyError) as caught:
            load_text(dump(document))
        assert {p.path.removeprefix("teams.t.") for p in caught.value.problems} == above
        return
    values = _values(load_text(dump(document)).resolve("t", "default", "pilot").policy)
    for path in ceilings:
        assert values[path] is not None
        assert values[path] <= bounds[path]


def _values(policy: Any) -> dict[str, Any]:
    return flatten(msgspec.to_builtins(policy))


@settings(max_examples=40, deadline=None)
@given(flat_overlays, st.randoms(use_true_random=False))
def test_the_revision_ignores_order_comments_and_format(overlay: Any, random: Any) -> None:
    """The same content has the same revision, however it is laid out."""
    document = {"version": 1, "defaults": nested(overlay), "teams": {"a": {}, "b": {}}}
    shuffled = _shuffled(document, random)
    block = YAML(typ="safe", pure=True)
    block.default_flow_style = False
    block.sort_base_mapping_type_on_output = False
    out = StringIO()
    block.dump(shuffled, out)
    commented = "# a comment\n" + out.getvalue().replace("\n", "   # why\n", 1)
    assert load_text(commented).revision == load_text(dump(document)).revision


def _shuffled(tree: Any, random: Any) -> Any:
    if not isinstance(tree, dict):
        return tree
    keys = list(tree)
    random.shuffle(keys)
    return {key: _shuffled(tree[key], random) for key in keys}


@settings(max_examples=60, deadline=None)
@given(flat_overlays, flat_overlays)
def test_the_revision_changes_with_any_value(one: Any, two: Any) -> None:
    """Two contents with one revision are one content; `60s` and `1m` are the same value."""
    sets = [load_text(dump({"version": 1, "defaults": nested(flat)})) for flat in (one, two)]
    assert (sets[0].revision == sets[1].revision) == (nested(one) == nested(two))


def test_equal_amounts_in_other_units_are_the_same_revision() -> None:
    """The content is what is meant, not how it is spelled."""
    minute = load_text("version: 1\ndefaults: {timeouts: {total: 1m}, limits: {rate: {tokens_per_minute: 1k}}}")
    seconds = load_text("version: 1\ndefaults: {timeouts: {total: 60s}, limits: {rate: {tokens_per_minute: 1000}}}")
    assert minute.revision == seconds.revision
