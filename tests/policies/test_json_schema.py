"""The JSON Schema accepts what loads, in YAML's own spelling, and refuses what its words can refuse."""

from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from ruamel.yaml import YAML

import policies
from policies.errors import PolicyError
from policies.json_schema import json_schema
from policies.load import load_text


@pytest.fixture(scope="module")
def validator() -> Any:
    """A draft 2020-12 validator of the schema."""
    return jsonschema_rs.validator_for(json_schema())


def read(text: str) -> Any:
    """As a YAML 1.2 library reads it."""
    return YAML(typ="safe", pure=True).load(text)


def test_the_shipped_set_fits(validator: Any) -> None:
    """Durations as texts, sizes and counts with suffixes."""
    validator.validate(read((Path(policies.__file__).parent / "default.yaml").read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    "text",
    [
        "version: 2",
        "{}",
        "{version: 1, modells: {}}",
        "{version: 1, defaults: {timeouts: {total: 300}}}",
        "{version: 1, defaults: {timeouts: {total: 5 minutes}}}",
        "{version: 1, defaults: {limits: {request: {max_bytes: 2M}}}}",
        "{version: 1, defaults: {context: {planning: true}}}",
        "{version: 1, defaults: {context: {sections: {history: {max_share: 1.5}}}}}",
        "{version: 1, stages: {prod: {}}}",
        "{version: 1, teams: {a b: {}}}",
        "{version: 1, teams: {a: {keys: [{hash: x}]}}}",
        "{version: 1, models: {m: {}}}",
    ],
)
def test_what_the_schema_refuses_the_loader_refuses(validator: Any, text: str) -> None:
    """The two never disagree in that direction."""
    assert not validator.is_valid(read(text))
    with pytest.raises(PolicyError):
        load_text(text)


@pytest.mark.parametrize(
    "text",
    [
        "{version: 1, defaults: {timeouts: {total: 1.5m, queue: null}, report: {retention: 30d}}}",
        "{version: 1, defaults: {limits: {request: {max_bytes: 4096}, rate: {tokens_per_minute: 400k}}}}",
        "{version: 1, teams: {东部: {apps: {bot: {weight: 2}}, fallbacks: []}}}",
        "{version: 1, stages: {pilot: {limits: {quota: {alert_at: [0.5, 1]}}}}}",
    ],
)
def test_what_loads_fits_the_schema(validator: Any, text: str) -> None:
    """Null, plain numbers and overlays anywhere."""
    load_text(text)
    validator.validate(read(text))


def test_defaults_are_spelled_as_yaml() -> None:
    """An editor that inserts a default inserts something that loads."""
    definitions = json_schema()["$defs"]
    assert definitions["Timeouts"]["properties"]["total"]["default"] == "10m"
    assert definitions["RequestLimits"]["properties"]["max_bytes"]["default"] == "8MiB"
    assert definitions["Quota"]["properties"]["alert_at"]["default"] == [0.8, 1.0]
    assert all(d["additionalProperties"] is False and d["description"] for d in definitions.values())
