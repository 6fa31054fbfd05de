"""Paged attention beside a plain loop: any mix of prefill chunks and decodes, windows, caps and shared heads."""

import itertools
import random

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine.attention import LayerCall, PagedStep, Span, paged_attention
from engine.errors import ModelLoadError
from engine.pool import KVPool, LayerShape, bytes_per_token

CPU = torch.device("cpu")
KEY_DIM, VALUE_DIM = 8, 6


def by_loop(query, keys, values, position, call):
    """One row's attention: (heads, dim) query over (positions, kv_heads, dim) keys and values, in float64."""
    first = 0 if call.window is None else max(0, position - call.window + 1)
    rows = []
    for head in range(len(query)):
        kv_head = head * keys.shape[1] // len(query)
        scores = keys[first : position + 1, kv_head].double() @ query[head].double() * call.scale
        if call.softcap is not None:
            scores = call.softcap * torch.tanh(scores / call.softcap)
        rows.append(torch.softmax(scores, 0) @ values[first : position + 1, kv_head].double())
    return torch.stack(rows).float()


spans = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 20)), min_size=1, max_size=6)


@given(
    shape=spans,
    block_size=st.sampled_from([1, 4, 16]),
    window=st.sampled_from([None, 1, 3, 4, 5, 16, 100]),
    softcap=st.sampled_from([None, 0.7]),
    groups=st.sampled_from([1, 3]),
    seed=st.integers(0, 5),
)
@example(shape=[(0, 20), (39, 1), (3, 1), (17, 5)], block_size=4, window=5, softcap=None, groups=3, seed=0)
@settings(max_examples=60, deadline=None)
def test_any_packed_step_equals_the_loop(shape, block_size, window, softcap, groups, seed):
    """Every row of every sequence sees its own positions up to itself, within the window, and nobody else's."""
    torch.manual_seed(seed)
    kv_heads, num_blocks = 2, 400
    pool = KVPool([LayerShape(kv_heads, KEY_DIM, VALUE_DIM)], num_blocks, block_size, torch.float32, CPU)
    pool.keys[0].normal_(), pool.values[0].normal_()  # what others left there
    blocks = iter(random.Random(seed).sample(range(num_blocks), num_blocks))
    call = LayerCall(0, 0.3, window, softcap)
    whole, packed, expected = [], [], []
    for start, length in shape:
        table = list(itertools.islice(blocks, -(-(start + length) // block_size)))
        row = sum(span.length for span in packed)
        packed.append(Span(row, length, start, table))
        total = start + length
        query = torch.randn(length, kv_heads * groups, KEY_DIM)
        keys, values = torch.randn(total, kv_heads, KEY_DIM), torch.randn(total, kv_heads, VALUE_DIM)
        slots = torch.tensor([table[p // block_size] * block_size + p % block_size for p in range(total)])
        pool.write(0, slots[:start], keys[:start], values[:start])
        whole.append((query, keys[start:], values[start:]))
        expected += [by_loop(query[n], keys, values, start + n, call) for n in range(length)]
    step = PagedStep(pool, packed, torch.float32, CPU)
    query, keys, values = (torch.cat(tensors) for tensors in zip(*whole, strict=True))
    output = step.attend(call, query, keys, values)
    torch.testing.assert_close(output, torch.stack(expected), atol=1e-5, rtol=1e-4)
    assert step.positions.tolist() == [p for s in packed for p in range(s.start, s.start + s.length)]


def test_layers_with_different_windows_share_a_step():
    """One step serves layers that see all and layers that see a window."""
    torch.manual_seed(0)
    pool = KVPool([LayerShape(1, KEY_DIM, KEY_DIM)] * 2, 8, 4, torch.float32, CPU)
    step = PagedStep(pool, [Span(0, 12, 0, [3, 1, 2])], torch.float32, CPU)
    query, keys, values = torch.randn(12, 2, KEY_DIM), torch.randn(12, 1, KEY_DIM), torch.randn(12, 1, KEY_DIM)
    outputs = [step.attend(LayerCall(n, 0.3, window, None), query, keys, values) for n, window in enumerate([None, 5])]
    assert torch.allclose(outputs[0][:5], outputs[1][:5], atol=1e-6)
    assert not torch.allclose(outputs[0][5:], outputs[1][5:], atol=1e-3)


def test_bytes_per_token():
    """Keys and values of all layers, in the dtype's size."""
    assert bytes_per_token([LayerShape(3, 64, 64)] * 30, torch.bfloat16) == 23_040


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"s_aux": torch.zeros(2)}, "attention sinks"),
        ({"position_bias": torch.zeros(1)}, "a position bias"),
        ({"is_causal": False}, "not causal"),
        ({"attention_mask": torch.zeros(1)}, "not causal"),
        ({"paged": None}, "does not pass keyword arguments"),
    ],
)
def test_what_is_not_computed_is_refused(options, why):
    """A layer that asks for more than paged attention has gets an error that names it, not a wrong answer."""
    module = torch.nn.Module()
    module.layer_idx = 0
    tensors = (torch.zeros(1, 2, 1, 4) for _ in range(3))
    with pytest.raises(ModelLoadError, match=why):
        paged_attention(module, *tensors, **{"attention_mask": None, "paged": object(), **options})
