"""Times steps of the native and the torch forward on a random model of 135M parameters, and writes JSON.

python benchmarks/kernels.py [--out kernels.json] [--threads 2] [--forward native torch] [--dtype bfloat16]
"""

import argparse
import json
import platform
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig

from engine.batch import SequenceWork
from engine.llama import LlamaForward, load_forward
from engine.llama.shape import LlamaShape, read_shape
from engine.native import Kernels, NativeUnavailable, load
from engine.request import SamplingParams

CONFIG = LlamaConfig(
    vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
    num_key_value_heads=3, head_dim=64, max_position_embeddings=8192, rms_norm_eps=1e-5, tie_word_embeddings=True,
)  # fmt: skip
PAST, BLOCK_SIZE, SEQUENCES = 929, 16, 16
BLOCKS_A_SEQUENCE = -(-(PAST + 64) // BLOCK_SIZE)


def random_state(shape: LlamaShape, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    def weight(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns).mul_(columns**-0.5).to(dtype)

    queries, keys, values = shape.qkv_sizes
    sizes = {
        "self_attn.q_proj": (queries, shape.hidden),
        "self_attn.k_proj": (keys, shape.hidden),
        "self_attn.v_proj": (values, shape.hidden),
        "self_attn.o_proj": (shape.hidden, queries),
        "mlp.gate_proj": (shape.intermediate, shape.hidden),
        "mlp.up_proj": (shape.intermediate, shape.hidden),
        "mlp.down_proj": (shape.hidden, shape.intermediate),
    }
    state = {
        "model.embed_tokens.weight": weight(shape.vocab, shape.hidden),
        "model.norm.weight": torch.ones(shape.hidden),
    }
    for layer in range(shape.num_layers):
        prefix = f"model.layers.{layer}."
        state |= {f"{prefix}{name}.weight": weight(*size) for name, size in sizes.items()}
        state |= {
            f"{prefix}{n}.weight": torch.ones(shape.hidden) for n in ("input_layernorm", "post_attention_layernorm")
        }
    return state


class Bench:
    """Sequences that share no blocks, and the steps to time on them."""

    def __init__(self, forward: LlamaForward, repeats: int) -> None:
        self.forward, self.repeats = forward, repeats
        blocks = random.Random(0).sample(range(SEQUENCES * BLOCKS_A_SEQUENCE), SEQUENCES * BLOCKS_A_SEQUENCE)
        self.tables = [blocks[i::SEQUENCES] for i in range(SEQUENCES)]

    def work(self, sequence: int, start: int, num: int) -> SequenceWork:
        """The part of a sequence that starts at `start`."""
        tokens = [(start + i) * 7919 % CONFIG.vocab_size for i in range(num)]
        return SequenceWork(sequence, tokens, start, self.tables[sequence], True, SamplingParams(temperature=0))

    def run(self) -> dict[str, dict[str, float]]:
        """Fill the pool, then time each kind of step."""
        for sequence in range(SEQUENCES):
            self.forward.step([self.work(sequence, 0, PAST)])
        steps = {f"decode of {n} behind {PAST}": [self.work(i, PAST, 1) for i in range(n)] for n in (1, 4, 16)}
        steps |= {f"prefill of {n}": [self.work(0, 0, n)] for n in (128, 512, 912)}
        steps["prefill of 592 behind 320"] = [self.work(0, 320, 592)]
        steps["15 decodes and a chunk of 497 behind 320"] = [
            *(self.work(i, PAST, 1) for i in range(15)),
            self.work(15, 320, 497),
        ]
        return {name: self.time(lambda step=step: self.forward.step(step)) for name, step in steps.items()}

    def time(self, call: Callable[[], Any]) -> dict[str, float]:
        """Milliseconds of a call, after one that does not count."""
        call()
        taken = []
        for _ in range(self.repeats):
            start = time.perf_counter()
            call()
            taken.append((time.perf_counter() - start) * 1e3)
        return {"median_ms": round(statistics.median(taken), 2), "min_ms": round(min(taken), 2)}


def build() -> tuple[Kernels | None, dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        try:
            kernels = load(Path(folder))
        except NativeUnavailable as reason:
            return None, {"native": str(reason)}
        return kernels, {"native": kernels.level, "build_s": round(time.perf_counter() - start, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--forward", nargs="+", choices=["native", "torch"], default=["native", "torch"])
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    dtype = getattr(torch, options.dtype)
    kernels, result = build()
    result |= {"cpu": platform.processor() or platform.machine(), "torch": torch.__version__, **vars(options)}
    for name in options.forward:
        if name == "native" and kernels is None:
            continue
        state = random_state(read_shape(CONFIG), dtype)
        start = time.perf_counter()
        forward = load_forward(
            state, CONFIG, num_blocks=SEQUENCES * BLOCKS_A_SEQUENCE, block_size=BLOCK_SIZE, dtype=dtype,
            kernels=kernels if name == "native" else None, threads=options.threads,
        )  # fmt: skip
        loaded = round(time.perf_counter() - start, 2)
        result[name] = {"load_s": loaded, "name": forward.name, "steps": Bench(forward, options.repeats).run()}
        forward.close()
        print(forward.name, f"loaded in {loaded} s")
        for step, taken in result[name]["steps"].items():
            print(f"  {step:45} {taken['median_ms']:8.2f} ms (min {taken['min_ms']:.2f})")
    if options.out:
        options.out.write_text(json.dumps(result, indent=2, default=str) + "\n")


if __name__ == "__main__":
    main()
