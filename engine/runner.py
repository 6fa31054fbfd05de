"""The torch runner: loads a model, owns the KV pool, computes steps."""

from collections.abc import Sequence
from pathlib import Path

import torch

from engine.attention import PagedStep, Span
from engine.batch import SequenceWork
from engine.config import EngineConfig
from engine.gguf import Progress
from engine.locate import resolve_model
from engine.model import PagedModel
from engine.pool import KVPool, pool_blocks
from engine.request import SamplingParams
from engine.sampler import sample
from engine.weights import describe, load_weights


class TorchRunner:
    """Computes steps of packed sequences over one KV pool; an `engine.batch.Runner`.

    Attributes:
        model: what the loaded model is.
        path: the folder that it was loaded from, where its tokenizer is too.
    """

    def __init__(
        self, config: EngineConfig, *, cache_dir: Path | None = None, progress: Progress = lambda line: None
    ) -> None:
        """Load the model and allocate the pool.

        Raises:
            ModelLoadError: the model cannot be loaded, or has a feature that the engine does not support.
            OutOfMemoryError: the weights or the pool do not fit in free memory.
        """
        if config.num_threads is not None:
            torch.set_num_threads(config.num_threads)
        self._max_running, self._step_tokens = config.max_running, config.step_tokens
        device = torch.device(
            ("cuda" if torch.cuda.is_available() else "cpu") if config.device == "auto" else config.device
        )
        self.path = resolve_model(config.model, cache_dir, progress)
        with torch.inference_mode():
            self._model = PagedModel(load_weights(self.path, device, config.dtype))
            self._model.verify()
            self._device, layers, dtype = device, self._model.layers, self._model.dtype
            self.model = describe(self.path, self._model, config.max_context_tokens)
            self.block_size = config.block_size
            self.num_blocks = pool_blocks(config, self.model.kv_bytes_per_token, device)
            self._pool = KVPool(layers, self.num_blocks, config.block_size, dtype, device)

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Run the largest prefill and decode steps, before any block is in use."""
        positions = min(self.num_blocks * self.block_size, self.model.max_context_tokens)
        table = list(range(self.num_blocks))
        prefill = [0] * min(self._step_tokens, positions)
        drawn, greedy = SamplingParams(top_p=0.9, seed=0), SamplingParams(temperature=0)
        self.run([SequenceWork(0, prefill, 0, table, True, greedy)])
        for width in {1, self._max_running}:
            self.run([SequenceWork(n, [0], len(prefill) - 1, table, True, drawn) for n in range(width)])

    @torch.inference_mode()
    def run(self, batch: Sequence[SequenceWork]) -> list[int | None]:
        """Compute one step; returns the drawn token id for each work with `sample`, None for the others.

        Raises:
            EngineError: the logits are not finite.
        """
        spans: list[Span] = []
        token_ids: list[int] = []
        last_rows: list[int] = []
        for work in batch:
            spans.append(Span(len(token_ids), len(work.token_ids), work.start, work.block_table))
            token_ids += work.token_ids
            last_rows.append(len(token_ids) - 1)
        sampled = [n for n, work in enumerate(batch) if work.sample]
        rows = torch.tensor([last_rows[n] for n in sampled], dtype=torch.long, device=self._device)
        step = PagedStep(self._pool, spans, self._model.dtype, self._device)
        logits = self._model.logits(torch.tensor(token_ids, device=self._device), step.positions, step, rows)
        tokens: list[int | None] = [None] * len(batch)
        if sampled:
            for n, token in zip(sampled, sample(logits, [batch[n] for n in sampled]), strict=True):
                tokens[n] = token
        return tokens

    def close(self) -> None:
        """Give the model's and the pool's memory back."""
        del self._model, self._pool
