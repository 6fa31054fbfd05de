"""The one error of policy loading: every problem of a set at once, each with its place and its fix."""

from msgspec import Struct


class Problem(Struct, frozen=True, kw_only=True):
    """One thing that is wrong. Lines and columns count from 1; `path` is dotted, `teams.support.keys[0].hash`."""

    file: str
    line: int
    column: int
    path: str
    message: str
    fix: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}:{self.column}: {self.path}".removesuffix(": ")
        return f"{where}: {self.message} ({self.fix})"


class PolicyError(Exception):
    """A policy set that is refused; `problems` is never empty."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(str(p) for p in problems))
        self.problems = problems
