"""The pure half of the engine loads no torch."""

import subprocess
import sys

import pytest

PURE = [
    "admission", "batch", "blocks", "cache", "config", "core", "counters", "detokenize", "entry", "errors", "fake",
    "forecast", "integrity", "lease", "loop", "meter", "pace", "prefix", "request", "running", "scheduler", "sequence",
    "snapshot", "steptime", "table", "teams", "waiting",
]  # fmt: skip


@pytest.mark.parametrize("module", PURE)
def test_module_loads_neither_torch_nor_transformers(module: str) -> None:
    """Importing a pure module in a fresh interpreter leaves torch and transformers out of sys.modules."""
    heavy = "{'torch', 'transformers', 'numpy'}"
    code = (
        f"import sys, engine.{module}; sys.exit(str({heavy} & set(sys.modules)) if {heavy} & set(sys.modules) else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
