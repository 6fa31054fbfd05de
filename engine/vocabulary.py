"""The bytes that each token id stands for, so that streamed text is cut at whole characters."""

import re
from collections.abc import Collection, Mapping
from typing import Any

from tokenizers import Tokenizer

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Vocabulary:
    """Token id to bytes, computed when first asked for.

    Byte-level vocabularies spell bytes as characters (GPT-2's table); SentencePiece ones spell a space as U+2581 and
    a byte that is no character as `<0xNN>`.
    """

    def __init__(
        self, frozen: Tokenizer, spec: Mapping[str, Any], added: Mapping[int, str], hidden: Collection[int]
    ) -> None:
        self._frozen = frozen
        self._added = added
        self._hidden = frozenset(hidden)
        kinds = set(_kinds(spec.get("decoder"))) | set(_kinds(spec.get("pre_tokenizer")))
        self._byte_level = "ByteLevel" in kinds
        self._byte_pieces = "ByteFallback" in kinds or bool(spec["model"].get("byte_fallback"))
        self._known: dict[int, bytes] = {}

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of `token_id`; empty for special tokens and for ids beyond the vocabulary."""
        known = self._known.get(token_id)
        if known is None:
            known = self._known[token_id] = self._spell(token_id)
        return known

    def _spell(self, token_id: int) -> bytes:
        if token_id in self._hidden:
            return b""
        if token_id in self._added:
            return self._added[token_id].replace("▁", " ").encode()
        piece = self._frozen.id_to_token(token_id)
        return b"" if piece is None else self._piece_bytes(piece)

    def _piece_bytes(self, piece: str) -> bytes:
        if self._byte_level:
            return b"".join(_BYTE_OF.get(character) or character.encode() for character in piece)
        match = _BYTE_PIECE.fullmatch(piece) if self._byte_pieces else None
        return bytes([int(match[1], 16)]) if match else piece.replace("▁", " ").encode()


def _kinds(step: Any) -> list[str]:
    if not step:
        return []
    nested = [*step.get("decoders", ()), *step.get("pretokenizers", ())]
    return [step["type"], *(kind for child in nested for kind in _kinds(child))]


def _byte_table() -> dict[str, bytes]:
    """Character to byte in GPT-2's `bytes_to_unicode`: printable Latin-1 stands for itself, the rest from U+0100 on."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(0x100) if byte not in shown]
    return {chr(byte): bytes([byte]) for byte in shown} | {
        chr(0x100 + n): bytes([byte]) for n, byte in enumerate(hidden)
    }


_BYTE_OF = _byte_table()
