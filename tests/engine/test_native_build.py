"""The kernels' build: once, cached, optional."""

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from engine.native import NativeUnavailable, load
from engine.native.build import build

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ on this machine to build with")

QUICK = "g++ -O0"


def test_builds_once_and_says_so_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first start builds and reports; the second finds the library and is silent."""
    monkeypatch.setenv("CXX", QUICK)
    said: list[str] = []
    first = load(tmp_path / "cache", said.append)
    assert len(said) == 1
    assert "g++" in said[0]
    assert build(tmp_path / "cache", said.append) == first.path
    assert len(said) == 1


def test_other_options_make_another_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the code depends on is in the name, so that a change never loads a stale library."""
    monkeypatch.setenv("CXX", QUICK)
    first = build(tmp_path)
    monkeypatch.setenv("CXX", f"{QUICK} -g0")
    assert build(tmp_path) != first


def test_two_processes_build_at_once(tmp_path: Path) -> None:
    """Both get a whole library, and nothing else is left in the folder."""
    code = "import sys; from pathlib import Path; from engine.native import load; print(load(Path(sys.argv[1])).level)"
    command = [sys.executable, "-c", code, str(tmp_path)]
    environment = os.environ | {"CXX": QUICK, "PYTHONPATH": os.pathsep.join(sys.path)}
    both = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = {process.communicate(timeout=100)[0] for process in both}
    assert [process.returncode for process in both] == [0, 0]
    assert len(outputs) == 1
    assert [path.suffix for path in tmp_path.iterdir()] == [".so"]


def test_no_compiler_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a compiler the reason names what to install."""
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NativeUnavailable, match=r"no C\+\+ compiler.*install"):
        load(tmp_path)


def test_failed_build_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler that fails gives its first error, and leaves nothing that a later start would load."""
    monkeypatch.setenv("CXX", "g++ -march=pentium-of-the-future")
    with pytest.raises(NativeUnavailable, match="pentium-of-the-future"):
        load(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_unwritable_cache_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache folder that cannot be made is told with its path."""
    monkeypatch.setenv("CXX", QUICK)
    (tmp_path / "file").touch()
    with pytest.raises(NativeUnavailable, match="file/cache"):
        load(tmp_path / "file" / "cache")


def test_broken_library_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that cannot be loaded says which file to delete."""
    monkeypatch.setenv("CXX", QUICK)
    build(tmp_path).write_bytes(b"not a library")
    with pytest.raises(NativeUnavailable, match="delete it"):
        load(tmp_path)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the option is for x86-64")
def test_level_follows_the_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A build without AVX-512 says that it computes in float arithmetic."""
    monkeypatch.setenv("CXX", f"{QUICK} -march=x86-64-v3")
    assert load(tmp_path).level == "float arithmetic"
