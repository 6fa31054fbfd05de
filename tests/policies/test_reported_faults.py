"""Faults that other projects reported about their YAML: each case as reported, then others of its kind."""

import json
import os
from pathlib import Path
from typing import Annotated, Any

import pytest
from msgspec import Meta, Struct

from policies.errors import PolicyError
from policies.load import load_text
from policies.schema import Duration
from policies.strict import read_struct

CASES = Path(os.environ.get("TIDEGATE_CASES", Path(__file__).parents[2] / "../shared/cases")) / "reported_faults.jsonl"


class Strict(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the small configurations that the cases speak of."""


class Times(Strict, frozen=True):
    """Case 81: texts that look like base-60 numbers."""

    listen: str
    quota_reset: str
    window: str


class Auth(Strict, frozen=True):
    """Case 85."""

    required: bool = True


class RateLimit(Strict, frozen=True):
    """Case 85."""

    requests_per_minute: int = 0


class Cache(Strict, frozen=True):
    """Case 85."""

    per_tenant_salt: bool = True


class Secured(Strict, frozen=True):
    """Case 85: security keys."""

    auth: Auth = Auth()
    rate_limit: RateLimit = RateLimit()
    cache: Cache = Cache()


class Phases(Strict, frozen=True):
    """Case 87: durations."""

    request: Duration | None = None
    idle: Duration | None = None
    connect: Duration | None = None
    drain: Duration | None = None
    bad: Duration | None = None
    neg: Duration | None = None


class Timed(Strict, frozen=True):
    """Case 87."""

    timeouts: Phases


class Listening(Strict, frozen=True):
    """Case 89."""

    listen: str = "nothing"
    model: str = "none"


def case_yaml(number: int) -> str:
    """The YAML of a reported case."""
    if not CASES.exists():
        pytest.skip(f"{CASES} is absent; set TIDEGATE_CASES to the folder of reported_faults.jsonl")
    cases = (json.loads(line) for line in CASES.read_text(encoding="utf-8").splitlines())
    return str(next(case for case in cases if case["n"] == number)["input"]["yaml"])


def problems_of(text: str, type_: Any) -> list[tuple[str, str, str]]:
    """(path, message, fix) of a refused text."""
    with pytest.raises(PolicyError) as caught:
        read_struct(text, "c.yaml", type_)
    return [(p.path, p.message, p.fix) for p in caught.value.problems]


def test_81_base_60_numbers_are_texts() -> None:
    """`2122:22` is read as it stands; where a number is wanted, it is refused with line and key."""
    read = read_struct(case_yaml(81), "c.yaml", Times)
    assert (read.listen, read.quota_reset, read.window) == ("2122:22", "12:30", "1:00")

    class Numbers(Strict, frozen=True):
        listen: Annotated[int, Meta(ge=0)]
        quota_reset: float
        window: Duration

    paths = [path for path, _, _ in problems_of(case_yaml(81), Numbers)]
    assert paths == ["listen", "quota_reset", "window"]


@pytest.mark.parametrize(
    "text", ["1:30", "190:20:30", "0b11", "0o14", "0x1f", "1_000", "+1:00", "2027-06-30", "=", "y"]
)
def test_what_only_other_yaml_versions_take_for_a_number_is_text(text: str) -> None:
    """Dates, base 2, 8, 16 and 60, digit groups: the text arrives unchanged."""
    assert read_struct(f"model: {text}\n", "c.yaml", Listening).model == text


@pytest.mark.parametrize("text", ["no", "NO", "off", "on", "y", "n", "Yes"])
def test_what_only_yaml_1_1_takes_for_a_bool_is_text(text: str) -> None:
    """Norway stays Norway; a switch that wants true or false says so."""
    assert read_struct(f"model: {text}\n", "c.yaml", Listening).model == text
    ((path, message, fix),) = problems_of(f"auth: {{required: {text}}}\n", Secured)
    assert path == "auth.required"
    assert repr(text) in message
    assert "true" in fix or "false" in fix


def test_83_merge_keys_are_refused_clearly() -> None:
    """The merge, its anchor and the alias are named; nothing is called a duplicate."""
    with pytest.raises(PolicyError) as caught:
        load_text(case_yaml(83))
    messages = [p.message for p in caught.value.problems]
    assert any("merge keys are not read" in m for m in messages)
    assert any("&b is an anchor" in m for m in messages)
    assert not any("twice" in m for m in messages)


def test_overlays_merge_deeply_where_a_yaml_merge_would_not() -> None:
    """What the reporter wanted: one limit changed, the other kept."""
    yaml = (
        "version: 1\ndefaults: {limits: {rate: {requests_per_minute: 10, tokens_per_minute: 1000}}}\n"
        "teams: {k1: {limits: {rate: {requests_per_minute: 20}}}}\n"
    )
    rate = load_text(yaml).resolve("k1", "default", "production").policy.limits.rate
    assert (rate.requests_per_minute, rate.tokens_per_minute) == (20, 1000)


def test_85_every_mistyped_key_is_named_with_a_suggestion() -> None:
    """Three typos, three problems, nothing falls back to a default."""
    assert problems_of(case_yaml(85), Secured) == [
        ("auth.requierd", "unknown key", "did you mean `required`?"),
        ("rate_limit.requests_per_minut", "unknown key", "did you mean `requests_per_minute`?"),
        ("cache.per_tenant_slat", "unknown key", "did you mean `per_tenant_salt`?"),
    ]
    with pytest.raises(PolicyError) as caught:
        load_text("version: 1\n" + case_yaml(85))
    assert [p.path for p in caught.value.problems] == ["auth", "rate_limit", "cache"]


@pytest.mark.parametrize("key", ["Required", "REQUIRED", "required ", "réquired", "requir‌ed"])
def test_a_key_that_only_looks_right_is_unknown(key: str) -> None:
    """Another case, white space, accents or an invisible character: none of them is the key."""
    ((path, message, fix),) = problems_of(f'auth: {{"{key}": true}}\n', Secured)
    assert key in path
    assert message == "unknown key"
    assert "`required`" in fix


def test_87_one_unit_rule_for_all_durations() -> None:
    """The good ones are read; the bare number, the words and the negative one are problems with their path."""
    found = problems_of(case_yaml(87), Timed)
    assert [(path, fix) for path, _, fix in found] == [
        ("timeouts.request", "write 300s or 300ms"),
        ("timeouts.bad", "write one number and one of ms, s, m, h, d without a space, such as 30s"),
        ("timeouts.neg", "write a duration such as 30s"),
    ]
    good = "\n".join(
        line for line in case_yaml(87).splitlines() if not any(k in line for k in ("request", "bad", "neg"))
    )
    phases = read_struct(good, "c.yaml", Timed).timeouts
    assert (phases.idle, phases.connect, phases.drain) == (30.0, 0.75, 90.0)


def test_89_a_byte_order_mark_hides_no_key() -> None:
    """As text and as bytes."""
    yaml = case_yaml(89)
    assert yaml.startswith("\ufeff")
    for data in (yaml, yaml.encode("utf-8")):
        assert read_struct(data, "c.yaml", Listening).listen == "127.0.0.1:8080"


def test_a_section_whose_lines_are_all_commented_out_is_a_problem() -> None:
    """It reads as null: neither the defaults in silence nor a crash."""
    ((path, message, fix),) = problems_of("auth:\n  # required: true\n", Secured)
    assert (path, message) == ("auth", "read null where a mapping is expected")
    assert "{}" in fix


def test_two_spellings_of_one_key_are_duplicates() -> None:
    """The later one does not win."""
    ((path, message, _),) = problems_of('model: a\n"model": b\n', Listening)
    assert path == "model"
    assert "twice" in message
