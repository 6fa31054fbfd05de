"""What counts as how many tokens, on the shapes of tokenizer that models have."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from engine.errors import ModelLoadError
from engine.tokenizer import ModelTokenizer

SHAPES = ["gpt2", "qwen", "llama2", "unigram"]
CONTROL = ["<s>", "</s>", "<unk>", "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</think>"]
NASTY = [
    "What does <|endoftext|> mean, and <|im_start|>system?",
    "What ends a document: <|endoftext|> or </s>.",
    "<tool_call>\n{}\n</tool_call><think></think>",
    "<<|im_end|>|im_end|>",
    "</s></s></s>",
    "＜/s＞ ＜|im_end|＞",
    "<unk> 🦕 <unk>",
]
PIECES = st.sampled_from([*CONTROL, " ", "\n", "<", "|>", "的", "退款", "😀", "\ufffd", "é"])
TEXTS = st.lists(PIECES | st.text(max_size=6), max_size=8).map("".join)


@pytest.fixture(params=SHAPES)
def tokenizer(request, make_tokenizer):
    """A tokenizer of each shape."""
    return make_tokenizer(request.param)


@pytest.mark.parametrize("shape", SHAPES)
@given(text=TEXTS)
@example(text="".join(CONTROL))
@example(text="</s>" * 300)
def test_text_never_becomes_a_control_token(make_tokenizer, shape, text):
    """Whatever a text spells, its ids hold no added token, special or not."""
    tokenizer = make_tokenizer(shape)
    ids = tokenizer.encode(text)
    spelled = {tokenizer.encode_control(token)[-1] for token in CONTROL} - {tokenizer.encode_control("<unk>")[-1]}
    assert spelled.isdisjoint(ids)
    assert tokenizer.count(text) == len(ids) == len(tokenizer.offsets(text))


@pytest.mark.parametrize("text", NASTY)
def test_a_mentioned_control_token_survives_as_text(tokenizer, text):
    """ASCII text that mentions control tokens decodes to itself; a vocabulary may lack or fold other characters."""
    decoded = b"".join(tokenizer.token_bytes(token) for token in tokenizer.encode(text)).decode()
    assert decoded == text or not text.isascii()


def test_template_text_does_become_control_tokens(tokenizer):
    """A template literal's control tokens are one id each."""
    for token in CONTROL:
        assert len(tokenizer.encode_control(token)) == 1
        assert tokenizer.encode_control(token)[0] in tokenizer.control_ids


@pytest.mark.parametrize("shape", SHAPES)
@given(text=TEXTS)
def test_offsets_lie_in_order_and_cover_the_text(make_tokenizer, shape, text):
    """Spans are in order, end within the text, and leave no character but white space uncovered."""
    spans = make_tokenizer(shape).offsets(text)
    assert all(0 <= start <= end <= len(text) for start, end in spans)
    assert spans == sorted(spans)
    covered = {n for start, end in spans for n in range(start, end)}
    if shape != "unigram":  # which normalises some characters away
        assert all(text[n].isspace() for n in set(range(len(text))) - covered)


@pytest.mark.parametrize("shape", ["gpt2", "qwen", "llama2"])
@given(text=TEXTS)
def test_bytes_of_all_tokens_join_to_the_text(make_tokenizer, shape, text):
    """`token_bytes` loses and adds nothing, whatever part of a character a token is."""
    tokenizer = make_tokenizer(shape)
    assert b"".join(tokenizer.token_bytes(token) for token in tokenizer.encode(text)) == text.encode()


def test_special_tokens_have_no_bytes_and_plain_added_ones_do(tokenizer):
    """An end-of-turn token is never seen by a client; `<think>` and `<tool_call>` are."""
    assert tokenizer.token_bytes(tokenizer.encode_control("<|im_end|>")[0]) == b""
    assert tokenizer.token_bytes(tokenizer.encode_control("<tool_call>")[0]) == b"<tool_call>"
    assert tokenizer.token_bytes(10_000_000) == b""


def test_half_a_character_is_its_own_bytes(make_tokenizer):
    """Tokens that hold part of an emoji give the real bytes, not U+FFFD's."""
    for shape in ("gpt2", "llama2"):
        tokenizer = make_tokenizer(shape)
        pieces = [tokenizer.token_bytes(token) for token in tokenizer.encode("🦕")]
        assert len(pieces) > 1
        assert b"".join(pieces) == "🦕".encode()


def test_unknown_characters_stay_unknown(make_tokenizer):
    """A run of characters that the vocabulary lacks is one unknown token, also beside a text that spells it."""
    tokenizer = make_tokenizer("unigram")
    [unknown] = tokenizer.encode("🦕🦕🦕")
    assert tokenizer.encode_control("<unk>") == [unknown]
    assert unknown not in tokenizer.encode("<unk>")
    assert tokenizer.encode("<unk>🦕🦕") == [*tokenizer.encode("<unk>"), unknown]


def test_a_lone_surrogate_counts_as_a_replacement_character(tokenizer):
    """Half an emoji in the text is encoded as U+FFFD, and offsets still fit the text as it is."""
    assert tokenizer.encode("a\ud83d b") == tokenizer.encode("a\ufffd b")
    assert tokenizer.offsets("a\ud83d b") == tokenizer.offsets("a\ufffd b")
    assert tokenizer.encode_control("a\ud83d") == tokenizer.encode_control("a\ufffd")


@pytest.mark.parametrize(
    "text", ["\ufffd\ufffd漢字テスト", "😀" * 20, "本协议自双方签字之日起生效，有效期三年", "\u200b" * 40 + "🙂" * 30]
)
@pytest.mark.parametrize("shape", SHAPES)
def test_offsets_cut_at_whole_characters(make_tokenizer, shape, text):
    """Cut where the n-th token ends, a text is a prefix of itself that encodes to UTF-8; its own U+FFFD stays."""
    tokenizer = make_tokenizer(shape)
    for _, end in tokenizer.offsets(text):
        assert text.startswith(text[:end])
        text[:end].encode()
    assert tokenizer.offsets(text)[-1][1] == len(text)


def test_no_space_is_put_before_a_segment(make_tokenizer):
    """SentencePiece's leading space is not added to each segment, only after a template's control token."""
    tokenizer = make_tokenizer("llama2")
    assert tokenizer.encode("user") + tokenizer.encode(" refund") == tokenizer.encode("user refund")
    assert tokenizer.token_bytes(tokenizer.encode_control("<s>user")[1]).startswith(b" ")
    assert not tokenizer.token_bytes(tokenizer.encode_control("user")[0]).startswith(b" ")


def test_sixteen_threads_get_the_same_ids(make_fast):
    """Texts and templates encoded by sixteen threads at once come out as they do alone."""
    tokenizer, alone = (ModelTokenizer(make_fast("qwen", "chatml")) for _ in range(2))
    texts = [f"{mark} {n} {text}" for n in range(40) for mark, text in zip(CONTROL, NASTY, strict=False)]
    expected = [(alone.encode(text), alone.encode_control(text)) for text in texts]
    with ThreadPoolExecutor(16) as pool:
        rounds = list(
            pool.map(lambda _: [(tokenizer.encode(t), tokenizer.encode_control(t)) for t in texts], range(16))
        )
    assert all(one == expected for one in rounds)


def test_separator_side_follows_the_vocabulary(make_tokenizer):
    """Blank lines go to the start of the next text for GPT-2's splitting, to the end of the last one for Qwen's."""
    assert make_tokenizer("gpt2").separator_side == "leading"
    assert make_tokenizer("qwen").separator_side == "trailing"


@pytest.mark.parametrize("shape", ["gpt2", "qwen"])
def test_separator_on_its_side_encodes_as_in_the_whole(make_tokenizer, shape):
    """With the separator on the side found by probing, parts encode to what their concatenation encodes to."""
    tokenizer = make_tokenizer(shape)
    for first, second in [
        ("in 30 days.", "<d2> Title"),
        ("三十天。", "<d3> 标题"),
        ("days", "Title"),
        ("它？", "保修"),
    ]:
        separator = "\n\n"
        parts = (first, separator + second) if tokenizer.separator_side == "leading" else (first + separator, second)
        assert tokenizer.encode(parts[0]) + tokenizer.encode(parts[1]) == tokenizer.encode("".join(parts))


def test_the_cache_is_bounded_by_bytes(make_fast, monkeypatch):
    """Counting many texts keeps the cache under its bound, and a text counts the same after it was dropped."""
    monkeypatch.setattr("engine.tokenizer._CACHE_BYTES", 20_000)
    tokenizer = ModelTokenizer(make_fast("qwen", "chatml"))
    counts = [tokenizer.count(f"text {n} " * 20) for n in range(200)]
    assert 0 < tokenizer._encoded._bytes <= 20_000
    assert [tokenizer.count(f"text {n} " * 20) for n in range(200)] == counts


def test_a_folder_without_a_tokenizer_is_refused(tmp_path):
    """The error names the folder."""
    with pytest.raises(ModelLoadError, match=str(tmp_path)):
        ModelTokenizer.from_pretrained(tmp_path)
