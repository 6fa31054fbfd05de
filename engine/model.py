"""A transformers causal LM as the runner sees it: packed tokens in, logits of the sampled rows out.

The runner needs only `PagedModel`'s few members; a forward pass of our own for one architecture can stand in for it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from engine.attention import PAGED_ATTENTION, LayerCall, PagedStep, Span, Step, paged_attention
from engine.errors import ModelLoadError
from engine.pool import KVPool, LayerShape

_LAYER_TYPES = {"full_attention", "sliding_attention"}
_PROBE_LENGTHS, _PROBE_BLOCK_SIZE, _PROBE_BLOCKS = (7, 5), 4, 2


class PagedModel:
    """A loaded model whose attention reads and writes a paged pool.

    Attributes:
        layers: what each layer keeps for a token, found by running the model once.
        windows: how many tokens back each layer sees; None sees all.
    """

    def __init__(self, model: Any) -> None:
        """Check that attention, and nothing else, carries state from token to token.

        Raises:
            ModelLoadError: the architecture has a feature that paged attention does not compute.
        """
        self.model = model
        self.config = model.config.get_text_config()
        self.dtype: torch.dtype = model.dtype
        self.device: torch.device = model.device
        self._name = type(model).__name__
        self._check_architecture()
        recorder = self._record_layers()
        self.layers = [recorder.shapes[layer] for layer in range(len(recorder.shapes))]
        self.windows = [recorder.windows[layer] for layer in range(len(recorder.shapes))]

    def logits(self, token_ids: Tensor, positions: Tensor, step: Step, rows: Tensor) -> Tensor:
        """Run (tokens,) ids at their positions; returns (len(rows), vocabulary) logits."""
        output = self.model(
            input_ids=token_ids[None], position_ids=positions[None], use_cache=False, logits_to_keep=rows, paged=step
        )
        logits: Tensor = output.logits[0]
        return logits if len(logits) == len(rows) else logits[rows]  # some models ignore `logits_to_keep`

    def verify(self) -> None:
        """Compare two packed prompts, and a step after them, with transformers' own attention on each alone.

        Raises:
            ModelLoadError: the logits differ by more than rounding explains.
        """
        pool = KVPool(self.layers, 2 * _PROBE_BLOCKS, _PROBE_BLOCK_SIZE, self.dtype, self.device)
        vocabulary = self.config.vocab_size
        prompts = [[(7 * n + 13 * i + 5) % vocabulary for i in range(size)] for n, size in enumerate(_PROBE_LENGTHS)]
        with _load_errors(self._name):
            ours = torch.stack([self._packed(prompts, pool, tail=False), self._packed(prompts, pool, tail=True)], dim=1)
            expected = self._alone(prompts)
        worst = float(((ours - expected).norm(dim=-1) / expected.norm(dim=-1)).max())
        if not worst < (1e-3 if self.dtype == torch.float32 else 0.1):
            raise ModelLoadError(
                f"{self._name} computes other logits with paged attention (relative difference {worst:.2g}): "
                "this architecture has a feature that the engine does not support"
            )

    def _packed(self, prompts: Sequence[Sequence[int]], pool: KVPool, *, tail: bool) -> Tensor:
        """Last logits of all prompts: without `tail` all tokens but the last, with it the last alone."""
        parts = [prompt[-1:] if tail else prompt[:-1] for prompt in prompts]
        ends = list(accumulate(len(part) for part in parts))
        tables = [list(range(n, 2 * _PROBE_BLOCKS, 2)) for n in range(len(prompts))]
        spans = [
            Span(end - len(part), len(part), len(prompt) - len(part) if tail else 0, table)
            for prompt, part, end, table in zip(prompts, parts, ends, tables, strict=True)
        ]
        step = PagedStep(pool, spans, self.dtype, self.device)
        ids = torch.tensor([token for part in parts for token in part], device=self.device)
        return self.logits(ids, step.positions, step, torch.tensor(ends, device=self.device) - 1).float()

    def _alone(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        """Logits after the last two tokens of each prompt, by transformers' own: (prompts, 2, vocabulary)."""
        self.model.set_attn_implementation("eager")
        try:
            ids = [torch.tensor([list(prompt)], device=self.device) for prompt in prompts]
            return torch.stack([self.model(input_ids=one, use_cache=False).logits[0, -2:] for one in ids]).float()
        finally:
            self.model.set_attn_implementation(PAGED_ATTENTION)

    def _check_architecture(self) -> None:
        if not getattr(self.model, "_supports_attention_backend", False):
            raise ModelLoadError(f"{self._name} does not take its attention from transformers' AttentionInterface")
        kinds = set(getattr(self.config, "layer_types", None) or ()) - _LAYER_TYPES
        if kinds:
            raise ModelLoadError(f"{self._name} has layers of a kind that cannot be paged: {', '.join(sorted(kinds))}")
        self.model.set_attn_implementation(PAGED_ATTENTION)

    def _record_layers(self) -> "_Recorder":
        recorder = _Recorder()
        zero = torch.zeros(1, dtype=torch.long, device=self.device)
        with _load_errors(self._name):
            self.logits(zero, zero, recorder, zero)
        count = self.config.num_hidden_layers
        if sorted(recorder.shapes) != list(range(count)) or recorder.num_calls != count:
            raise ModelLoadError(
                f"{self._name} has {count} layers, but attention was called {recorder.num_calls} times, for "
                f"{len(recorder.shapes)} layers: it keeps state elsewhere or shares it, which cannot be paged"
            )
        types = getattr(self.config, "layer_types", None) or ["full_attention"] * count
        for layer, kind in enumerate(types[:count]):
            if kind == "sliding_attention" and recorder.windows[layer] is None:
                raise ModelLoadError(f"{self._name} does not pass its sliding window to attention in layer {layer}")
        return recorder


@contextmanager
def _load_errors(name: str) -> Iterator[None]:
    """What a model's own code raises in its first forward passes, as an error of loading it."""
    try:
        yield
    except ModelLoadError:
        raise
    except Exception as error:
        raise ModelLoadError(f"{name} does not run on packed sequences: {error}") from error


class _Recorder:
    """Stands in for a step to learn how often, and with what shapes, a model calls attention."""

    def __init__(self) -> None:
        self.num_calls = 0
        self.shapes: dict[int, LayerShape] = {}
        self.windows: dict[int, int | None] = {}

    def attend(self, call: LayerCall, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        self.num_calls += 1
        self.shapes[call.layer] = LayerShape(key.shape[1], key.shape[2], value.shape[2])
        self.windows[call.layer] = call.window
        return query.new_zeros(*query.shape[:2], value.shape[2])


def register_attention() -> None:
    """Make paged attention known to transformers; a model is then loaded with `attn_implementation`."""
    from transformers import AttentionInterface

    AttentionInterface.register(PAGED_ATTENTION, paged_attention)
