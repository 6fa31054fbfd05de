"""The default model's tokenizer, rebuilt from its GGUF: as it was trained, and additive on real prompts."""

import gzip
import json
import os
from pathlib import Path

import pytest

pytestmark = pytest.mark.model
DATA = Path(os.environ.get("TIDEGATE_DATA", Path(__file__).parents[4] / "shared" / "data"))


def test_control_tokens_and_ends(smollm2_tokenizer):
    """The special tokens of ChatML are one id in a template and none in text; they have no bytes."""
    for text, token_id in [("<|endoftext|>", 0), ("<|im_start|>", 1), ("<|im_end|>", 2)]:
        assert smollm2_tokenizer.encode_control(text) == [token_id]
        assert token_id not in smollm2_tokenizer.encode(text)
        assert smollm2_tokenizer.token_bytes(token_id) == b""


def test_digits_stand_alone(smollm2_tokenizer):
    """The model was trained on single digits, which the GGUF says and transformers drops."""
    pieces = [smollm2_tokenizer.token_bytes(token) for token in smollm2_tokenizer.encode("In 2024: 1500")]
    assert pieces == [b"In", b" ", b"2", b"0", b"2", b"4", b":", b" ", b"1", b"5", b"0", b"0"]


def test_the_templates_own_system_text_is_counted_as_template(smollm2_tokenizer, say):
    """Without a system message the template adds one; with one it does not."""
    alone, *_ = smollm2_tokenizer.render([say("user", "hi")])
    assert "trained by Hugging Face" in alone.text
    assert alone.section == "template"
    assert "Hugging Face" not in "".join(
        s.text for s in smollm2_tokenizer.render([say("system", "s"), say("user", "hi")])
    )


@pytest.mark.parametrize("name", ["rag_en", "rag_zh", "multiturn_en"])
def test_segments_join_to_the_whole_prompt(smollm2_tokenizer, say, name):
    """On real prompts, ids of segments joined equal ids of the whole rendering in at least 99 of 100."""
    file = DATA / f"{name}.jsonl.gz"
    if not file.exists():
        pytest.skip(f"needs {file}; set TIDEGATE_DATA")
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        records = [json.loads(line) for line, _ in zip(lines, range(50), strict=False)]
    same = 0
    for record in records:
        passages = [f"\n\n<{p['id']}> {p.get('title', '')}\n{p['text']}" for p in record["passages"][:5]]
        turns = [say(turn["role"], turn["content"]) for turn in record.get("history", ())]
        segments = smollm2_tokenizer.render([*turns, say("user", "Extracts:", *passages, "\n\n" + record["question"])])
        encode = smollm2_tokenizer.encode, smollm2_tokenizer.encode_control
        apart = [token for segment in segments for token in encode[segment.control](segment.text)]
        same += apart == smollm2_tokenizer.encode_control("".join(segment.text for segment in segments))
    assert same >= 0.99 * len(records)
