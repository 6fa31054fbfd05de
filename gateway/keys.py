"""Keys at the operator's end: the development key that lets a fresh clone answer, and a new key's line for a policy."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from policies.keys import new_key
from policies.load import load_text


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


def key_lines(
    team: str,
    digest: str,
    *,
    app: str,
    stage: str,
    models: Sequence[str] | None = None,
    expires: str | None = None,
    admin: bool = False,
) -> str:
    """The lines that make a policy set accept the key of this hash.

    Raises:
        PolicyError: no policy set would take them: a name with a space, a day that does not exist.
    """
    entry: dict[str, Any] = {"hash": digest, "app": app, "stage": stage}
    optional = {"models": models, "expires": expires, "admin": admin or None}
    entry |= {name: value for name, value in optional.items() if value is not None}
    known = {name: {"id": name} for name in models or ()}
    load_text(json.dumps({"version": 1, "models": known, "teams": {team: {"keys": [entry]}}}), "keys")
    return (
        f"teams:\n  {json.dumps(team, ensure_ascii=False)}:\n    keys:\n      - {json.dumps(entry, ensure_ascii=False)}"
    )
