"""What an operator decides about the engine: model, memory, batch and queue bounds."""

from dataclasses import dataclass, field
from typing import Literal

Dtype = Literal["auto", "float32", "bfloat16", "float16"]


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Sizes are in tokens, blocks or bytes as the names say; nothing here changes after start."""

    model: str
    """A folder, a hub id, or a `.gguf` file."""
    device: str = "auto"
    dtype: Dtype = "auto"
    """`auto`: bfloat16 where the device computes in it, else float32."""
    block_size: int = 16
    """Tokens a KV block holds."""
    num_blocks: int | None = None
    """KV blocks in the pool; None sizes the pool from `kv_bytes`."""
    kv_bytes: int | None = None
    """Bytes for the KV pool; None takes a share of the memory that is free at start."""
    max_context_tokens: int | None = None
    """Prompt and output together; None takes the model's own bound."""
    max_running: int = 32
    """Sequences decoded together in one step."""
    step_tokens: int = 512
    """Tokens computed in one step at most: decodes first, the rest is prefill chunks."""
    max_itl_stretch: float = 2.0
    """How many times as long as without prefill a step may take while somebody reads an interactive answer."""
    overcommit: float = 1.0
    """Outputs are promised KV blocks for 1 / `overcommit` of their tokens. At 1.0 nothing that runs is ever preempted;
    above, the last arrived gives way, and is computed again, when the blocks run out."""
    max_queue_requests: int = 256
    max_queue_tokens: int = 262_144
    num_threads: int | None = None
    prefix_sharing: bool = True


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a loaded model is and can hold; `revision` tells one set of weights from another."""

    id: str
    revision: str
    max_context_tokens: int
    vocab_size: int
    eos_token_ids: frozenset[int] = field(default_factory=frozenset)
    kv_bytes_per_token: int = 0
    sliding_window: int | None = None
