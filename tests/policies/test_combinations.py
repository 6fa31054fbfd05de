"""Combinations that may look wrong and are not, and wrong ones that only one combination shows."""

import pytest

from policies.errors import PolicyError
from policies.load import load_text

HASH = "sha256:" + "ef" * 32


def refused(yaml: str) -> list[str]:
    """The messages of a refused set."""
    with pytest.raises(PolicyError) as caught:
        load_text(yaml)
    return [p.message for p in caught.value.problems]


def test_a_large_reserve_is_fine_for_a_large_model() -> None:
    """A reserve over a small model's context is a fault only for keys that may use that model."""
    models = "models: {small: {id: s, max_context_tokens: 512}, big: {id: b, max_context_tokens: 8192}}\n"
    head = f"version: 1\n{models}defaults: {{context: {{reserve_output_tokens: 1k}}}}\n"
    load_text(head)
    load_text(head + f"teams: {{a: {{keys: [{{hash: '{HASH}', models: [big]}}]}}}}\n")
    (message,) = refused(head + f"teams: {{a: {{keys: [{{hash: '{HASH}'}}]}}}}\n")
    assert "512 tokens of model small" in message
    assert "team a, app default" in message


def test_a_default_reserve_names_the_model_that_is_too_small() -> None:
    """Nothing was written about the reserve: the problem stands at the model's bound."""
    (message,) = refused("version: 1\nmodels: {tiny: {id: t, max_context_tokens: 256}}\n")
    assert "reserve_output_tokens 256 (default)" in message


def test_a_lowered_share_makes_the_sum_right() -> None:
    """An app may take from one section and give to another."""
    load_text(
        "version: 1\ndefaults: {context: {sections: {history: {max_share: 0.3}, documents: {max_share: 0.7}}}}\n"
        "teams: {a: {context: {sections: {history: {max_share: 0.1}, documents: {max_share: 0.9}}}}}\n"
    )


def test_shares_of_tenths_add_up_to_one() -> None:
    """0.1 + 0.2 + 0.7 is 1, whatever floats say."""
    load_text(
        "version: 1\ndefaults: {context: {sections: "
        "{system: {max_share: 0.1}, facts: {max_share: 0.2}, documents: {max_share: 0.7}}}}\n"
    )


def test_a_ceiling_that_undercuts_a_minimum_is_named() -> None:
    """The ceiling lowers max_tokens below a min_tokens that was fine without it."""
    (message,) = refused(
        "version: 1\nceilings: {context: {sections: {facts: {max_tokens: 100}}}}\n"
        "defaults: {context: {sections: {facts: {min_tokens: 200}}}}\n"
    )
    assert "min_tokens 200 (<text>:3) is more than max_tokens 100 (<text>:2)" in message


def test_an_inherited_fault_is_reported_once() -> None:
    """Fifty teams inherit it; there is one place to mend."""
    teams = ", ".join(f"t{i}: {{}}" for i in range(50))
    head = "version: 1\ndefaults: {context: {sections: {facts: {min_tokens: 9, max_tokens: 8}}}}\n"
    assert len(refused(f"{head}teams: {{{teams}}}\n")) == 1


def test_a_fault_of_one_stage_names_the_stage() -> None:
    """Stages are looked at one by one."""
    (message,) = refused(
        "version: 1\ndefaults: {context: {sections: {history: {max_share: 0.5}}}}\n"
        "stages: {pilot: {context: {sections: {documents: {max_share: 0.6}}}}}\n"
    )
    assert "for the defaults, stage pilot" in message


def test_an_app_of_a_key_needs_no_overlay_where_the_team_has_none() -> None:
    """Apps may be names for attribution only; a team without keys is fine too."""
    loaded = load_text(f"version: 1\nteams: {{a: {{keys: [{{hash: '{HASH}', app: bot}}]}}, b: {{}}}}\n")
    assert loaded.resolve("a", "bot", "production").name == "a/bot"
