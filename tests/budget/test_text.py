from hypothesis import given, settings
from hypothesis import strategies as st

from budget.text import is_cjk, normalise, stem, terms


def test_normalise_folds_spelling() -> None:
    """Width, case, quotes, stops, white space and zero-width characters do not count."""
    assert normalise("ＡＢＣ\u200b  １２３。\n“Ｘ”") == normalise('abc 123. "x"')
    assert normalise("Straße") == normalise("STRASSE")
    assert normalise("ﬁne\u00ad") == "fine"


def test_terms_of_english() -> None:
    """Words are lower case stems without stop words; numbers stay, without thousands separators."""
    assert terms("The inventors invented 1,069 things in v2.10, running U.S. dog's") == [
        "inventor", "invent", "1069", "thing", "v2", "10", "run", "u", "dog",
    ]  # fmt: skip
    assert terms("It is the same") == []


def test_terms_of_chinese() -> None:
    """Chinese gives characters and bigrams; Latin words and numbers inside it stay whole."""
    assert terms("北京2008年GPU") == ["北", "京", "北京", "2008", "年", "gpu"]
    assert set(terms("退货期限")) & set(terms("退货的期限")) == {"退", "货", "期", "限", "退货", "期限"}


def test_stem_joins_forms() -> None:
    """Plural, -ed, -ing and final -e fall together; short words stay."""
    assert len({stem(w) for w in ("move", "moves", "moved", "moving")}) == 1
    assert len({stem(w) for w in ("city", "cities")}) == 1
    assert [stem(w) for w in ("as", "bus", "this", "ring", "red")] == ["as", "bus", "this", "ring", "red"]


def test_is_cjk() -> None:
    """Han, kana and Hangul, in all planes; not accents, Arabic or emoji."""
    assert all(map(is_cjk, ["a字", "カ", "한", "𠀀"]))
    assert not any(map(is_cjk, ["abc", "é", "ش", "🙂", "，", ""]))


@settings(deadline=None)
@given(st.text(st.characters(codec=None)))
def test_any_text_is_normalised_once(text: str) -> None:
    """Whatever the characters, lone surrogates too, normalising again changes nothing and terms come out."""
    once = normalise(text)
    assert once == once.strip()
    assert all(terms(text))
    assert normalise(once) == normalise(normalise(once))
