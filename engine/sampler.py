"""From logits to the next token: penalties, greedy or drawn, a whole step's rows at once.

A draw compares cumulated probabilities with one number that depends on the request's seed and the output position
alone, so that a seeded request gives the same tokens whatever else is in the batch.
"""

import hashlib
import random
from collections.abc import Sequence

import torch
from torch import Tensor

from engine.batch import SequenceWork
from engine.errors import EngineError
from engine.request import SamplingParams

_WIDTHS = (256, 4096)
"""Tokens sorted at first for `top_p` and `min_p`; more, and then all, only where these do not decide."""
_GREEDY_BELOW = 1e-5
"""Temperatures that float32 cannot divide by choose the best token anyway."""


def sample(logits: Tensor, works: Sequence[SequenceWork]) -> list[int]:
    """Draw one token for each row of (rows, vocabulary) logits.

    Raises:
        EngineError: a row has a NaN, or no finite logit at all.
    """
    logits = _penalised(logits, works)
    best = logits.max(dim=-1)
    if not bool(torch.isfinite(best.values).all()):
        raise EngineError(
            "the model computed logits that are not finite: its weights are broken, or dtype is too narrow"
        )
    tokens: list[int] = best.indices.tolist()
    drawn = [row for row, work in enumerate(works) if work.sampling.temperature > _GREEDY_BELOW]
    if drawn:
        shifted = (logits[drawn] - best.values[drawn, None]).float()
        for row, scores in zip(drawn, shifted, strict=True):
            work = works[row]
            tokens[row] = _draw(scores, work.sampling, uniform(work.sampling.seed, work.output_index))
    return tokens


def uniform(seed: int | None, output_index: int) -> float:
    """A number in [0, 1) from (seed, output_index); a new one each time without a seed."""
    if seed is None:
        return random.random()
    digest = hashlib.blake2b(f"{seed}:{output_index}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest) >> 11) * 2.0**-53


def _penalised(logits: Tensor, works: Sequence[SequenceWork]) -> Tensor:
    """Repetition penalty (Keskar et al. 2019, CTRL): seen tokens' logits are divided by it, or multiplied below 0."""
    rows = [row for row, work in enumerate(works) if work.sampling.repetition_penalty != 1.0 and work.history]
    if not rows:
        return logits
    logits = logits.float().clone()
    for row in rows:
        seen = torch.tensor(sorted(set(works[row].history)), device=logits.device)
        scores, penalty = logits[row, seen], works[row].sampling.repetition_penalty
        logits[row, seen] = torch.where(scores > 0, scores / penalty, scores * penalty)
    return logits


def _draw(scores: Tensor, params: SamplingParams, u: float) -> int:
    """Inverse-CDF draw from one row of scores whose maximum is 0, most likely token first.

    Filters in transformers' order: temperature, top_k, top_p, min_p; each keeps at least the best token.
    """
    scores = scores / params.temperature
    if params.top_k or params.top_p < 1 or params.min_p > 0:
        probabilities, tokens = _candidates(scores, params)
    else:
        probabilities, tokens = torch.softmax(scores, dim=-1), None
    cumulated = probabilities.double().cumsum(dim=-1)
    at = int(torch.searchsorted(cumulated, u * cumulated[-1], right=True).clamp_(max=len(cumulated) - 1))
    return at if tokens is None else int(tokens[at])


def _candidates(scores: Tensor, params: SamplingParams) -> tuple[Tensor, Tensor]:
    """Probabilities, sorted downwards, and ids of the tokens that the filters keep."""
    everything = torch.softmax(scores, dim=-1)
    size = len(everything)
    for width in (params.top_k,) if params.top_k else (*_WIDTHS, size):
        probabilities, tokens = everything.topk(min(width, size))
        if float(probabilities.sum()) >= params.top_p or probabilities[-1] < params.min_p * probabilities[0]:
            break
    if params.top_k:
        probabilities = probabilities / probabilities.sum()
    before = probabilities.cumsum(dim=-1) - probabilities
    kept = (before < params.top_p) & (probabilities >= params.min_p * probabilities[0])
    kept[0] = True
    return probabilities[kept], tokens[kept]
