"""A short name for a set of files by their content, cheap enough to compute at every start."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

_WHOLE_BYTES = 8 << 20
_NUM_SAMPLES = 32
_SAMPLE_BYTES = 64 << 10


def fingerprint(files: Sequence[Path]) -> str:
    """12 hex digits of a hash over names, sizes and content; of large files, evenly spread samples.

    Fine-tuned weights have the sizes and headers of the original, so content has to count.
    """
    digest = hashlib.sha256()
    for file in files:
        size = file.stat().st_size
        digest.update(f"{file.name}\0{size}\0".encode())
        with file.open("rb") as stream:
            if size <= _WHOLE_BYTES:
                digest.update(stream.read())
                continue
            for n in range(_NUM_SAMPLES):
                stream.seek(n * (size - _SAMPLE_BYTES) // (_NUM_SAMPLES - 1))
                digest.update(stream.read(_SAMPLE_BYTES))
    return digest.hexdigest()[:12]
