"""The command line as an operator sees it: real processes, their output and their exit codes."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from policies.keys import hash_key
from policies.load import load

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def tidegate(tmp_path: Path) -> Run:
    """Runs a command in an empty folder, with no settings of ours around."""
    root = Path(__file__).parents[2]
    env = {name: value for name, value in os.environ.items() if not name.startswith("TIDEGATE_")}
    env |= {"PYTHONPATH": str(root), "NO_COLOR": "1"}

    def run(*args: str, **variables: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "gateway.cli", *args]
        return subprocess.run(
            command, cwd=tmp_path, env=env | variables, capture_output=True, text=True, timeout=60, check=False
        )

    return run


def test_help_lists_the_commands(tidegate: Run) -> None:
    """`tidegate --help` is the table of contents."""
    result = tidegate("--help")
    assert result.returncode == 0
    for command in ("serve", "demo", "plan", "policy", "keys", "doctor", "version"):
        assert f"  {command} " in result.stdout


@pytest.mark.parametrize("args", [["--help"], ["keys", "new"], ["policy", "check", "p.yaml"], ["version"]])
def test_quick_commands_load_no_torch(args: list[str], tmp_path: Path) -> None:
    """What needs no model starts in a fraction of a second."""
    (tmp_path / "p.yaml").write_text("version: 1\n")
    code = f"import sys\nsys.argv = ['tidegate', *{args!r}]\nfrom gateway.cli import main\n"
    code += (
        "try:\n    main()\nexcept SystemExit:\n    pass\nprint('heavy:', {'torch', 'transformers'} & set(sys.modules))"
    )
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, check=True
    )
    assert result.stdout.endswith("heavy: set()\n"), result.stdout


def test_policy_check_tells_every_problem_on_a_line_of_its_own(tidegate: Run, tmp_path: Path) -> None:
    """File, line, column, path, problem and fix, for all of them at once; no traceback."""
    path = tmp_path / "broken.yaml"
    path.write_text(
        "version: 1\ndefaults:\n  timeouts: {queue: 2}\n  contxt: {}\n  limits: {rate: {requests_per_minute: no}}\n"
    )
    result = tidegate("policy", "check", str(path))
    lines = result.stderr.splitlines()
    assert result.returncode == 1
    assert [line.split(":")[1] for line in lines] == ["3", "4", "5"]
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("name", ["policies/default.yaml", "examples/policy.yaml"])
def test_policy_check_accepts_what_ships(name: str, tidegate: Run) -> None:
    """The packaged set and the example load."""
    path = Path(__file__).parents[2] / name
    result = tidegate("policy", "check", str(path))
    assert result.returncode == 0, result.stderr
    assert load(path).revision in result.stdout


def test_policy_explain_names_the_origin_of_each_value(tidegate: Run, tmp_path: Path) -> None:
    """A value that the file sets has its line; the others say `default`."""
    (tmp_path / "p.yaml").write_text("version: 1\nteams:\n  a:\n    weight: 2.5\n")
    result = tidegate("policy", "explain", "p.yaml", "--team", "a")
    rows = {line.split()[0]: line.split()[1:] for line in result.stdout.splitlines() if line.strip()}
    assert rows["weight"] == ["2.5", "p.yaml:4"]
    assert rows["priority"] == ["0", "default"]


def test_policy_explain_of_an_unknown_team(tidegate: Run, tmp_path: Path) -> None:
    """One line, with what was probably meant."""
    (tmp_path / "p.yaml").write_text("version: 1\nteams:\n  support: {}\n")
    result = tidegate("policy", "explain", "p.yaml", "--team", "suport")
    assert result.returncode == 2
    assert "support" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_new_key_works_with_the_lines_that_come_with_it(tidegate: Run, tmp_path: Path) -> None:
    """The key is printed once; the lines hold its hash only."""
    result = tidegate("keys", "new", "--team", "客服", "--app", "helpdesk", "--stage", "pilot", "--admin")
    assert result.returncode == 0, result.stderr
    text, _, lines = result.stdout.partition("\n\n")
    assert text not in lines
    (tmp_path / "p.yaml").write_text(f"version: 1\n{lines}", encoding="utf-8")
    match = load(tmp_path / "p.yaml").find_key(hash_key(text))
    assert match is not None
    assert (match.team, match.entry.app, match.entry.stage, match.entry.admin) == ("客服", "helpdesk", "pilot", True)


@pytest.mark.parametrize(
    "args", [["--team", "a b"], ["--stage", "test"], ["--expires", "2027-13-01"], ["--models", "a b"]]
)
def test_a_key_that_no_policy_would_take_is_not_made(args: list[str], tidegate: Run) -> None:
    """Bad names, stages and days end with 2 and print no key."""
    result = tidegate("keys", "new", *args)
    assert result.returncode == 2
    assert "tg-" not in result.stdout
    assert result.stderr.strip()
    assert "Traceback" not in result.stderr


def test_doctor_shows_threads_and_finds_the_model(tidegate: Run) -> None:
    """One sheet: versions, thread counts, memory, model, embedders, store, port."""
    result = tidegate("doctor", TIDEGATE_NUM_THREADS="1")
    assert result.returncode == 0, result.stderr
    shown = "".join(result.stdout.split())  # long paths are folded
    for word in ("python", "torch", "OMP_NUM_THREADS", "RAYON_NUM_THREADS", "memory", "SmolLM2-135M", "store", "port"):
        assert word in shown
    assert ",1threads" in shown


def test_doctor_fails_where_nothing_can_be_served(tidegate: Run) -> None:
    """A model that is not there is fatal."""
    result = tidegate("doctor", "--model", "/no/such/model")
    assert result.returncode == 1
    assert "/no/such/model" in result.stdout


def assert_refused(result: subprocess.CompletedProcess[str], *words: str, lines: int = 1) -> None:
    """It ended with an error and said so in that many lines, without a traceback."""
    assert result.returncode in (1, 2), (result.returncode, result.stderr)
    assert len(result.stderr.splitlines()) == lines, result.stderr
    for word in words:
        assert word in result.stderr


def test_serve_refuses_bad_settings(tidegate: Run) -> None:
    """All of them at once, before anything is loaded."""
    assert_refused(tidegate("serve", "--port", "x", "--kv-bytes", "2 GB"), "--port", "--kv-bytes", lines=2)


def test_serve_refuses_a_broken_policy_file(tidegate: Run, tmp_path: Path) -> None:
    """Every problem on a line of its own."""
    (tmp_path / "p.yaml").write_text("version: 1\ndefaults:\n  wieght: 1\n  timeouts: {total: 60}\n")
    assert_refused(tidegate("serve", "--port", "0", "--policy", "p.yaml"), "p.yaml:3:3", "p.yaml:4:21", lines=2)


def test_serve_refuses_a_taken_port_before_it_loads_the_model(tidegate: Run) -> None:
    """The port is tried first: a model that does not exist is not even looked for."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        assert_refused(tidegate("serve", "--port", port, "--model", "/no/such/model"), port, "taken", "--port")


def test_serve_refuses_a_host_that_is_not_ours(tidegate: Run) -> None:
    """192.0.2.1 is nobody's address (RFC 5737)."""
    assert_refused(tidegate("serve", "--host", "192.0.2.1", "--port", "0"), "192.0.2.1", "--host")


def test_serve_without_a_model(tidegate: Run) -> None:
    """One line that names what was looked for."""
    assert_refused(tidegate("serve", "--port", "0", "--model", "/no/such/model"), "/no/such/model")
