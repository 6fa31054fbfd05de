"""API keys: made here, stored only as hashes."""

import hashlib
import secrets

KEY_PREFIX = "tg-"
_RANDOM_BYTES = 32


def new_key() -> tuple[str, str]:
    """A fresh key (256 random bits, recognisable by its prefix) and the hash that a policy stores."""
    text = KEY_PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)
    return text, hash_key(text)


def hash_key(text: str) -> str:
    """`sha256:` and 64 hex digits. Plain SHA-256 is enough, as a key has 256 random bits and cannot be guessed."""
    return "sha256:" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
