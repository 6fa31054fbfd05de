"""What the operator decides: `tidegate.yaml`, overridden by `TIDEGATE_…` variables, overridden by command-line options."""

from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct

from policies.schema import Duration, PositiveCount, Size

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
