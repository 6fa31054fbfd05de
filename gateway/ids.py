"""Request ids: ULIDs, so that they sort by time and need no store."""

import secrets
import time

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_CHARS = 26


def new_ulid() -> str:
    """26 characters of Crockford's base 32: 48 bits of milliseconds, 80 random bits (github.com/ulid/spec)."""
    number = int(time.time() * 1000) << 80 | secrets.randbits(80)
    return "".join(_ALPHABET[number >> 5 * place & 31] for place in reversed(range(_CHARS)))
