"""What the commands share: the console, and how they end."""

from typing import NoReturn

import typer
from rich.console import Console

PIPE_WIDTH = 110
Text = str | None
"""An option that may be absent; its text is read by the rules of the settings."""


def console(*, stderr: bool = False) -> Console:
    """A console whose tables stay readable in a pipe or a log file, where no terminal tells its width."""
    terminal = Console(stderr=stderr, highlight=False, markup=False)
    return terminal if terminal.is_terminal else Console(stderr=stderr, highlight=False, markup=False, width=PIPE_WIDTH)


def fail(message: str, *, code: int) -> NoReturn:
    """Tell the operator and end the process."""
    typer.echo(message, err=True)
    raise SystemExit(code)
