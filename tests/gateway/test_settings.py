"""Settings: three places, one set of rules, every problem at once."""

import stat
from pathlib import Path

import msgspec
import pytest

from gateway.configure import SettingsError, load_settings, stray_variables
from gateway.keys import development_key, key_lines
from gateway.settings import Settings, embedded_model
from policies.keys import hash_key, new_key
from policies.load import load_text


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def problems_of(text: str, tmp_path: Path) -> list[str]:
    """The lines with which a settings file of this text is refused."""
    path = tmp_path / "given.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SettingsError) as refused:
        load_settings({}, config=str(path))
    return str(refused.value).splitlines()


def test_defaults_without_a_file(here: Path) -> None:
    """Nothing given, nothing there: the defaults."""
    assert load_settings({}) == Settings()


def test_file_in_the_working_directory_is_read(here: Path) -> None:
    """`tidegate.yaml` needs no option."""
    (here / "tidegate.yaml").write_text("port: 9000\nkv_bytes: 1.5GiB\ndrain: 1500ms\n")
    settings = load_settings({})
    assert (settings.port, settings.kv_bytes, settings.drain) == (9000, 3 * 2**29, 1.5)


def test_variables_override_the_file_and_options_override_both(here: Path) -> None:
    """File, then environment, then command line."""
    (here / "tidegate.yaml").write_text("port: 1\nhost: a\nmodel_name: file\n")
    settings = load_settings({"TIDEGATE_PORT": "2", "TIDEGATE_HOST": "b"}, {"port": "3", "model_name": None})
    assert (settings.port, settings.host, settings.model_name) == (3, "b", "file")


def test_file_may_be_named_by_a_variable(here: Path) -> None:
    """TIDEGATE_CONFIG stands in for --config."""
    (here / "other.yaml").write_text("port: 7\n")
    assert load_settings({"TIDEGATE_CONFIG": "other.yaml"}).port == 7


def test_a_named_file_must_exist(here: Path) -> None:
    """A file that was asked for is never silently skipped."""
    with pytest.raises(SettingsError, match=r"nowhere\.yaml: No such file"):
        load_settings({}, config="nowhere.yaml")


def test_every_problem_of_every_place_is_told_at_once(here: Path) -> None:
    """One line each, with the place, what was read and what to write."""
    (here / "tidegate.yaml").write_text("prot: 8080\ndrain: 5\n")
    environ = {"TIDEGATE_DTYPE": "bf16", "TIDEGATE_NUM_BLOKS": "4"}
    with pytest.raises(SettingsError) as refused:
        load_settings(environ, {"port": "70000"})
    lines = str(refused.value).splitlines()
    assert len(lines) == 5
    assert lines[0].startswith("tidegate.yaml:1:1: prot: unknown key")
    assert "`port`" in lines[0]
    assert lines[1].startswith("tidegate.yaml:2:8: drain:")
    assert "5s" in lines[1]
    assert any("TIDEGATE_DTYPE" in line and "bfloat16" in line for line in lines)
    assert any("TIDEGATE_NUM_BLOKS" in line and "TIDEGATE_NUM_BLOCKS" in line for line in lines)
    assert lines[4].startswith("--port: 70000")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("port: 20:22\n", "port"),
        ("port: '8080'\n", "port"),
        ("port: 08080\n", "leading zero"),
        ("model: 1.10\n", "quotes"),
        ("kv_bytes: 2 GB\n", "2GiB"),
        ("drain: 30 sekunden\n", "drain"),
        ("drain: -5s\n", "negative"),
        ("num_threads: 0\n", "num_threads"),
        ("port: 1\nport: 2\n", "twice"),
        ("base: &b {port: 1}\n<<: *b\n", "merge"),
        ("port: 1\n---\nport: 2\n", "second document"),
        ("- port\n", "mapping"),
        ("port: [1\n", "bracket"),
        ("auth:\n  requierd: true\n", "auth"),
    ],
)
def test_a_faulty_file_is_refused(text: str, expected: str, tmp_path: Path) -> None:
    """No value is guessed: base 60, octal, units, duplicates, merges, unknown keys."""
    lines = problems_of(text, tmp_path)
    assert any(expected in line for line in lines), lines
    assert all(line.startswith(str(tmp_path / "given.yaml") + ":") for line in lines)


def test_byte_order_mark_is_not_part_of_a_key(here: Path) -> None:
    """Editors on Windows put one there."""
    (here / "tidegate.yaml").write_bytes(b"\xef\xbb\xbfport: 9\n")
    assert load_settings({}).port == 9


def test_text_from_the_environment_needs_no_quotes(here: Path) -> None:
    """A model called 1.10 or null is a text, as a shell has no other type."""
    assert load_settings({"TIDEGATE_MODEL": "1.10", "TIDEGATE_MODEL_NAME": "null"}).model == "1.10"


def test_kubernetes_service_variables_are_not_settings(here: Path) -> None:
    """A service called "tidegate" sets TIDEGATE_PORT=tcp://…, which is no port of ours."""
    environ = {"TIDEGATE_PORT": "tcp://10.0.0.1:8080", "TIDEGATE_SERVICE_HOST": "10.0.0.1", "TIDEGATE_PORT_80_TCP": "x"}
    assert load_settings(environ).port == 8080
    assert stray_variables(environ) == []


def test_unknown_variables_that_are_no_typo_are_only_mentioned(here: Path) -> None:
    """TIDEGATE_API_KEY may be a client's; it stops nothing."""
    environ = {"TIDEGATE_API_KEY": "x", "TIDEGATE_DATA": "y", "PATH": "z"}
    assert load_settings(environ) == Settings()
    assert stray_variables(environ) == ["TIDEGATE_API_KEY"]


def test_engine_config_carries_every_engine_setting() -> None:
    """A setting that has a namesake in the engine's config reaches it."""
    settings = Settings(model="m", num_blocks=7, block_size=32, dtype="float32", max_running=3, prefix_sharing=False)
    config = settings.engine_config()
    for field in msgspec.structs.fields(Settings):
        if hasattr(config, field.name):
            assert getattr(config, field.name) == getattr(settings, field.name), field.name


def test_the_embedded_model_is_the_default() -> None:
    """No model named: the packaged GGUF."""
    assert Settings().engine_config().model == str(embedded_model())


def test_a_given_development_key_is_not_written_down(tmp_path: Path) -> None:
    """TIDEGATE_DEV_KEY stays in memory."""
    assert development_key("secret", tmp_path / "d").text == "secret"
    assert not (tmp_path / "d").exists()


def test_a_development_key_is_made_once_and_kept_private(tmp_path: Path) -> None:
    """First start: made, in a file of mode 600. Second start: the same, not "made"."""
    first = development_key(None, tmp_path / "d")
    assert first.made_in == tmp_path / "d" / "dev.key"
    assert stat.S_IMODE(first.made_in.stat().st_mode) == 0o600
    second = development_key(None, tmp_path / "d")
    assert (second.text, second.made_in) == (first.text, None)


def test_a_readable_or_empty_key_file_is_mended(tmp_path: Path) -> None:
    """Wrong rights are tightened; an empty file gets a key."""
    path = tmp_path / "dev.key"
    path.write_text("kept\n")
    path.chmod(0o644)
    assert development_key(None, tmp_path).text == "kept"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_text("\n")
    assert development_key(None, tmp_path).text.startswith("tg-")


def test_the_line_for_a_new_key_is_valid_policy() -> None:
    """What `keys new` prints can be pasted into a policy set, and finds the key's owner."""
    text, digest = new_key()
    lines = key_lines(
        "support", digest, app="help:desk", stage="pilot", models=["chat"], expires="2099-01-01", admin=True
    )
    policies = load_text(f"version: 1\nmodels: {{chat: {{id: chat}}}}\n{lines}\n")
    match = policies.find_key(hash_key(text))
    assert match is not None
    assert (match.team, match.entry.app, match.entry.admin) == ("support", "help:desk", True)


def test_the_documentation_names_every_setting() -> None:
    """docs/settings.md has each key."""
    text = (Path(__file__).parents[2] / "docs" / "settings.md").read_text(encoding="utf-8")
    assert [field.name for field in msgspec.structs.fields(Settings) if f"`{field.name}`" not in text] == []
