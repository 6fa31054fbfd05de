"""Compiles the kernels into a shared library, once for each source, compiler, torch and CPU.

No torch header is included and nothing of torch is linked but its OpenMP runtime, which is loaded already when the
library is; so a build takes seconds and depends on a C++20 compiler alone.
"""

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

SOURCES = Path(__file__).parent / "src"
FLAGS = (
    *("-std=c++20", "-O3", "-march=native", "-fopenmp", "-fno-math-errno", "-fno-trapping-math"),
    *("-shared", "-fPIC", "-fvisibility=hidden", "-w"),
)
TIMEOUT_S = 180.0


class NativeUnavailable(Exception):
    """The kernels cannot be built or loaded here; the message says why and what would help."""


def build(cache_dir: Path, progress: Callable[[str], None] | None = None) -> Path:
    """Return the library's path, compiling it first where the cache has none.

    Two processes may build at once: each writes a file of its own and renames it into place.

    Raises:
        NativeUnavailable: no compiler, a failed build, or a cache folder that cannot be written.
    """
    compiler = find_compiler()
    library = cache_dir / f"kernels-{_key(compiler)}.so"
    if library.exists():
        return library
    if progress:
        progress(f"building the CPU kernels with {compiler[0]} (once for this machine)")
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache_dir, prefix="build-") as folder:
            made = Path(folder) / library.name
            _compile(compiler, made)
            os.replace(made, library)
    except OSError as error:
        raise NativeUnavailable(f"the CPU kernels cannot be built in {cache_dir}: {error}") from error
    return library


def find_compiler() -> list[str]:
    """`$CXX` or the first compiler on the path, as an argument list; options in `$CXX` override ours.

    Raises:
        NativeUnavailable: there is none.
    """
    named = shlex.split(os.environ.get("CXX", ""))
    for command in [named] if named else [["g++"], ["c++"], ["clang++"]]:
        path = shutil.which(command[0])
        if path:
            return [path, *command[1:]]
    wanted = named[0] if named else "g++, c++ or clang++"
    raise NativeUnavailable(f"no C++ compiler ({wanted}) on the path; install one, e.g. `apt install g++`")


def _compile(compiler: list[str], output: Path) -> None:
    command = [
        compiler[0],
        *FLAGS,
        *compiler[1:],
        str(SOURCES / "api.cpp"),
        "-o",
        str(output),
    ]  # $CXX has the last word
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise NativeUnavailable(f"{compiler[0]} took longer than {TIMEOUT_S:.0f} s to build the CPU kernels") from error
    if done.returncode != 0:
        first_error = next((line for line in done.stderr.splitlines() if "error" in line.lower()), done.stderr[-300:])
        raise NativeUnavailable(f"{shlex.join(command)} failed with {done.returncode}: {first_error.strip()}")


def _key(compiler: list[str]) -> str:
    """Everything that the built code depends on."""
    digest = hashlib.sha256()
    version = subprocess.run([*compiler, "--version"], capture_output=True, text=True, check=False).stdout
    for part in (*compiler, version, *FLAGS, torch.__version__, platform.machine(), cpu_flags()):
        digest.update(f"{len(part)}:{part}".encode())
    for source in sorted(SOURCES.iterdir()):
        digest.update(f"{source.name}:".encode() + source.read_bytes())
    return digest.hexdigest()[:20]


def cpu_flags() -> str:
    """The instruction sets of this CPU, as far as the system names them."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.lower().startswith(("flags", "features"))), platform.processor())
