"""What loads: files, folders, byte order marks, YAML 1.2 texts; whole or not at all, and fast."""

import os
import time
from pathlib import Path

import pytest

import policies
from policies.errors import PolicyError
from policies.load import load, load_text

DEFAULT = Path(policies.__file__).parent / "default.yaml"
HASH = "sha256:" + "cd" * 32


def messages(path: Path) -> list[str]:
    """The problems of a path, as lines."""
    with pytest.raises(PolicyError) as caught:
        load(path)
    return [str(p) for p in caught.value.problems]


def test_the_shipped_set_loads_and_leaves_dev_free() -> None:
    """Ordinary teams get bounds; team dev has no budget below the model's, no rate, no quota, no section bound."""
    shipped = load(DEFAULT)
    policy = shipped.resolve("dev", "default", "development").policy
    assert policy.context.max_prompt_tokens is None
    assert policy.limits.rate.requests_per_minute is policy.limits.rate.tokens_per_minute is None
    assert policy.limits.quota.tokens_per_day is policy.limits.quota.cost_per_month is None
    assert policy.limits.concurrency.requests is policy.limits.concurrency.kv_share is None
    sections = policy.context.sections
    assert all(s.max_tokens is s.max_share is None for s in (sections.system, sections.facts, sections.documents))
    assert sections.history.max_tokens is sections.history.max_share is None
    assert "chat" in shipped.models
    assert not shipped.document.teams["dev"].keys


def test_a_string_path_is_a_path(tmp_path: Path) -> None:
    """Callers may pass text."""
    (tmp_path / "p.yaml").write_text("version: 1\n")
    assert load(str(tmp_path / "p.yaml")).revision == load_text("version: 1").revision


def test_a_folder_is_one_set(tmp_path: Path) -> None:
    """Files add teams, models and stages; the revision is that of the same content in one file."""
    (tmp_path / "a.yaml").write_text("version: 1\ndefaults: {weight: 2}\nteams: {a: {}}\nmodels: {m: {id: x}}\n")
    (tmp_path / "b.yml").write_text("version: 1\nteams: {b: {weight: 3}}\nstages: {pilot: {priority: 1}}\n")
    (tmp_path / "README.md").write_text("not a policy")
    (tmp_path / ".b.yml.swp.yaml").write_text("an editor's")
    (tmp_path / "below.yaml").mkdir()
    together = load(tmp_path)
    assert together.resolve("b", "default", "pilot").policy.weight == 3
    assert together.resolve("a", "default", "pilot").policy.priority == 1
    one = load_text(
        "version: 1\ndefaults: {weight: 2}\nteams: {a: {}, b: {weight: 3}}\n"
        "models: {m: {id: x}}\nstages: {pilot: {priority: 1}}\n"
    )
    assert together.revision == one.revision


def test_a_definition_in_two_files_names_both(tmp_path: Path) -> None:
    """Whichever file is read last must not win in silence."""
    (tmp_path / "a.yaml").write_text("version: 1\ndefaults: {weight: 2}\nteams:\n  a: {}\n")
    (tmp_path / "b.yaml").write_text("version: 1\nteams: {c: {},\n  a: {}}\ndefaults: {}\n")
    first, second = messages(tmp_path)
    assert first.startswith(f"{tmp_path}/b.yaml:3:3: teams.a: defined in two files; the first is {tmp_path}/a.yaml:4")
    assert second.startswith(f"{tmp_path}/b.yaml:4:1: defaults: defined in two files; the first is {tmp_path}/a.yaml:2")


def test_every_file_of_a_folder_is_checked(tmp_path: Path) -> None:
    """A syntax error in one file hides no problem of another; a missing version is named per file."""
    (tmp_path / "a.yaml").write_text("version: 1\nteams: [\n")
    (tmp_path / "b.yaml").write_text("teams: {b: {wieght: 1}}\n")
    (tmp_path / "c.yaml").write_text("")
    found = messages(tmp_path)
    assert [line.split(": ")[0].removeprefix(f"{tmp_path}/") for line in found] == [
        "a.yaml:3:1",
        "b.yaml:1:1",
        "b.yaml:1:13",
        "c.yaml:1:1",
    ]


@pytest.mark.parametrize("name", ["absent.yaml", "absent"])
def test_a_path_that_is_not_there_is_a_problem(tmp_path: Path, name: str) -> None:
    """No bare OSError reaches the caller."""
    (line,) = messages(tmp_path / name)
    assert "cannot be read: No such file" in line


def test_an_empty_folder_and_a_pipe_are_problems(tmp_path: Path) -> None:
    """Neither hangs nor loads as nothing."""
    assert "holds no *.yaml file" in messages(tmp_path)[0]
    os.mkfifo(tmp_path / "pipe.yaml")
    assert "not a regular file" in messages(tmp_path / "pipe.yaml")[0]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"version: 1\nmodels: {a: {id: caf\xe9}}\n", "x.yaml:2:21: byte 0xe9 is not UTF-8"),
        ("version: 1\n".encode("utf-16"), "x.yaml:1:1: the file is UTF-16"),
        (b"version: 1\n#" + b"x" * 2**20, "larger than 1048576 bytes"),
    ],
)
def test_bytes_that_are_no_utf8_text_are_refused(tmp_path: Path, data: bytes, message: str) -> None:
    """With the place of the first wrong byte, or the encoding that was probably used."""
    (tmp_path / "x.yaml").write_bytes(data)
    assert message in messages(tmp_path / "x.yaml")[0]


def test_a_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    """As bytes and as text; the first key keeps its name and the places do not move."""
    (tmp_path / "x.yaml").write_bytes(b"\xef\xbb\xbfversion: 1\nteams: {a: {}}\n")
    assert "a" in load(tmp_path / "x.yaml").document.teams
    assert "a" in load_text("\ufeffversion: 1\nteams: {a: {}}\n").document.teams
    (tmp_path / "x.yaml").write_bytes(b"\xef\xbb\xbfversoin: 1\n")
    assert "x.yaml:1:1: versoin" in messages(tmp_path / "x.yaml")[0]


def test_windows_line_ends_change_nothing() -> None:
    """Neither values nor places."""
    unix = "version: 1\nteams:\n  a: {weight: 2}\n"
    assert load_text(unix.replace("\n", "\r\n")).revision == load_text(unix).revision
    with pytest.raises(PolicyError) as caught:
        load_text(unix.replace("weight", "wieght").replace("\n", "\r\n"))
    assert (caught.value.problems[0].line, caught.value.problems[0].column) == (3, 7)


def test_yaml_1_2_texts_stay_texts() -> None:
    """Names that YAML 1.1 takes for booleans, base-60 numbers and octals are names."""
    yaml = "version: 1\nteams: {no: {}, on: {}, 12:30: {}, 0o17: {}, 007: {}, 东部: {}}\nmodels: {y: {id: no}}\n"
    loaded = load_text(yaml)
    assert list(loaded.document.teams) == ["no", "on", "12:30", "0o17", "007", "东部"]
    assert loaded.models["y"].id == "no"


def test_json_is_yaml() -> None:
    """An upload in JSON means the same."""
    json = '{"version": 1, "defaults": {"timeouts": {"total": "60s"}, "limits": {"rate": {"tokens_per_minute": 5}}}}'
    yaml = "version: 1\ndefaults:\n  timeouts: {total: 1m}\n  limits: {rate: {tokens_per_minute: 5}}\n"
    assert load_text(json).revision == load_text(yaml).revision


def test_a_named_pattern_a_regular_expression_and_a_template_load() -> None:
    """The three ways to say how passages look."""
    for pattern in ("numbered", "tags", "fenced", "'<doc>(?P<text>.*?)</doc>'", "null"):
        load_text(f"version: 1\ndefaults: {{context: {{extract_documents: {pattern}}}}}\n")
    load_text("version: 1\ndefaults: {context: {render: {document: '{{{id}}} {title}: {text}'}}}\n")


def test_a_thousand_problems_are_all_there() -> None:
    """Nothing is cut from the list."""
    yaml = "version: 1\nteams:\n" + "".join(f"  t{i}: {{wieght: {i}}}\n" for i in range(1000))
    with pytest.raises(PolicyError) as caught:
        load_text(yaml)
    assert len(caught.value.problems) == 1000


def test_a_hundred_teams_load_in_well_under_a_second() -> None:
    """Measured: about 0.2 s on one core. Resolving again is a dictionary look-up."""
    team = (
        "  team{i}:\n    keys: [{{hash: 'sha256:{i:064x}', app: helpdesk, models: [chat], expires: 2027-06-30}}]\n"
        "    apps:\n      helpdesk: {{context: {{max_prompt_tokens: 1200, order: edges}}}}\n"
        "      other: {{limits: {{rate: {{requests_per_minute: 60, tokens_per_minute: 400k}}}}}}\n"
    )
    yaml = "version: 1\nmodels: {chat: {id: x}}\nteams:\n" + "".join(team.format(i=i) for i in range(100))
    times = []
    for _ in range(3):
        start = time.perf_counter()
        loaded = load_text(yaml)
        times.append(time.perf_counter() - start)
    assert min(times) < 0.9
    loaded.resolve("team7", "other", "pilot", "chat")
    start = time.perf_counter()
    for _ in range(1000):
        loaded.resolve("team7", "other", "pilot", "chat")
    assert (time.perf_counter() - start) / 1000 < 10e-6
