"""The active set: swapped whole, kept when a reload fails."""

from pathlib import Path

import pytest

from policies.errors import PolicyError
from policies.keys import hash_key
from policies.load import load, load_text
from policies.revisions import ActivePolicies
from policies.schema import KeyEntry


def test_a_reload_swaps_and_a_broken_one_does_not(tmp_path: Path) -> None:
    """A typo leaves the old revision serving and is remembered until the next good load."""
    file = tmp_path / "p.yaml"
    file.write_text("version: 1\ndefaults: {weight: 1}\n")
    active = ActivePolicies(load(file))
    first = active.current()
    file.write_text("version: 1\ndefaults: {wieght: 2}\n")
    with pytest.raises(PolicyError):
        active.reload(file)
    assert active.current() is first
    assert active.last_error is not None
    assert "did you mean `weight`?" in str(active.last_error)
    file.write_text("version: 1\ndefaults: {weight: 2}\n")
    second = active.reload(file)
    assert active.current() is second
    assert active.last_error is None
    assert first.revision != second.revision


def test_a_set_taken_before_a_swap_stays_what_it_was() -> None:
    """A request that holds a set sees one revision from start to end."""
    active = ActivePolicies(load_text("version: 1\ndefaults: {weight: 1}\nteams: {a: {}}"))
    held = active.current()
    assert active.swap(load_text("version: 1\ndefaults: {weight: 2}\nteams: {a: {}}")) is held
    assert held.resolve("a", "default", "pilot").policy.weight == 1
    assert active.current().resolve("a", "default", "pilot").policy.weight == 2


def test_a_key_in_memory_outlives_a_reload(tmp_path: Path) -> None:
    """What `prepare` adds is there in every set that serves."""
    file = tmp_path / "p.yaml"
    file.write_text("version: 1\nteams: {dev: {}}\n")
    entry = KeyEntry(hash=hash_key("tg-dev"), stage="development")
    active = ActivePolicies(load(file), lambda policies: policies.with_key("dev", entry))
    assert active.current().find_key(entry.hash) == ("dev", entry)
    file.write_text("version: 1\nteams: {dev: {weight: 2}}\n")
    assert active.reload(file).find_key(entry.hash) == ("dev", entry)
    assert active.current().resolve("dev", "default", "development").policy.weight == 2
