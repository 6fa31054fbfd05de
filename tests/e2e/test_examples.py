"""What the README and `examples/` show is run, as it stands."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.model

ROOT = Path(__file__).parents[2]
DEFAULT_URL = "http://127.0.0.1:8080"


def blocks(language: str) -> list[str]:
    """The README's code blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / "README.md").read_text("utf-8"), re.DOTALL | re.MULTILINE)


@pytest.fixture
def run(gateway: Any, environment: Callable[..., dict[str, str]], tmp_path: Path) -> Callable[..., str]:
    """Runs code against the session's gateway, in a folder that has its key where the README says."""
    (tmp_path / ".tidegate").mkdir()
    (tmp_path / ".tidegate" / "dev.key").write_text(gateway.key + "\n")

    def run_code(*command: str) -> str:
        adapted = [part.replace(DEFAULT_URL, gateway.url) for part in command]
        env = environment(TIDEGATE_URL=gateway.url, TIDEGATE_DEV_KEY=gateway.key)
        result = subprocess.run(adapted, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    return run_code


def test_readme_curl(run: Callable[..., str]) -> None:
    """The first request with curl answers, and drops the copy."""
    (block,) = blocks("bash")
    out = run("bash", "-euo", "pipefail", "-c", block)
    assert '"budget_report"' in out
    assert '"exact_duplicate"' in out


def test_readme_python(run: Callable[..., str]) -> None:
    """The first request with the openai client prints an answer, the passages' fates and the bill."""
    (block,) = blocks("python")
    out = run(sys.executable, "-c", block)
    assert "保修-450b dropped exact_duplicate" in out
    assert "ms to the first token" in out


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_examples_run(path: Path, run: Callable[..., str]) -> None:
    """Every example script ends well and prints something."""
    assert run(sys.executable, str(path)).strip()


def test_there_are_examples() -> None:
    """The parametrised test above is not empty."""
    assert list((ROOT / "examples").glob("*.py"))
