"""The built library as Python sees it. The structures mirror those of `src/llama.h` and `src/attention.h`."""

import ctypes
from collections.abc import Callable
from ctypes import POINTER, c_float, c_int, c_int32, c_int64, c_void_p
from pathlib import Path

from engine.native.build import NativeUnavailable, build

LEVELS = ("float arithmetic", "AVX-512 BF16", "AMX tiles")


class Config(ctypes.Structure):
    """A model's sizes and shared tensors."""

    _fields_ = (
        *((name, c_int32) for name in ("layers", "hidden", "heads", "kv_heads", "head_dim", "intermediate", "vocab")),
        ("block_size", c_int32),
        *((name, c_float) for name in ("norm_eps", "softmax_scale", "rope_scale")),
        *((name, c_void_p) for name in ("inv_freq", "embedding", "head", "final_norm")),
    )


class Layer(ctypes.Structure):
    """Pointers to one layer's packed weights and its part of the KV pool."""

    _fields_ = (
        *((name, c_void_p) for name in ("qkv", "o", "gate_up", "down", "qkv_bias", "o_bias")),
        *((name, c_void_p) for name in ("attn_norm", "mlp_norm", "q_norm", "k_norm", "kv")),
        ("window", c_int64),
    )


class Batch(ctypes.Structure):
    """One step's tokens, sequences and where its logits go."""

    _fields_ = (
        *((name, c_void_p) for name in ("token_ids", "sequences", "tables", "rows", "logits")),
        *((name, c_int32) for name in ("num_tokens", "num_sequences", "num_rows", "threads")),
    )


class Kernels:
    """A loaded library. Calls release the GIL for as long as they compute."""

    def __init__(self, path: Path) -> None:
        try:
            library = ctypes.CDLL(str(path))
        except OSError as error:
            raise NativeUnavailable(f"{path} cannot be loaded ({error}); delete it to have it built again") from error
        self.path = path
        self.llama_new = library.tg_llama_new
        self.llama_new.argtypes = (POINTER(Config), POINTER(Layer), c_int, c_int)
        self.llama_new.restype = c_void_p
        self.llama_step = library.tg_llama_step
        self.llama_step.argtypes = (c_void_p, POINTER(Batch))
        self.llama_step.restype = c_int
        self.llama_delete = library.tg_llama_delete
        self.llama_delete.argtypes = (c_void_p,)
        self.llama_delete.restype = None
        self.level = LEVELS[library.tg_level()]


def load(cache_dir: Path, progress: Callable[[str], None] | None = None) -> Kernels:
    """Build where needed and load; `progress` gets one line if a build starts.

    Raises:
        NativeUnavailable: with the reason.
    """
    return Kernels(build(cache_dir, progress))
