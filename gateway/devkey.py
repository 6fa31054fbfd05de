"""The development key: what lets a fresh clone answer its first request."""

import os
from dataclasses import dataclass
from pathlib import Path

from policies.keys import new_key


@dataclass(frozen=True, slots=True)
class DevKey:
    """The development key, and the file that it was made in just now (None: it was there before)."""

    text: str
    made_in: Path | None = None


def development_key(given: str | None, data_dir: str | Path) -> DevKey:
    """The key that was `given`, else the one kept in `data_dir`, else a new one that is kept there from now on.

    Raises:
        OSError: the file cannot be read or written.
    """
    if given:
        return DevKey(given)
    path = Path(data_dir) / "dev.key"
    if path.exists() and (kept := path.read_text(encoding="utf-8").strip()):
        path.chmod(0o600)
        return DevKey(kept)
    path.parent.mkdir(parents=True, exist_ok=True)
    text, _ = new_key()
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(text + "\n")
    path.chmod(0o600)
    return DevKey(text, made_in=path)
