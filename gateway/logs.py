"""Structured logs: one line a request, JSON or for a terminal. Never a key, never a text."""

import logging
import sys
from typing import Any, TextIO

import structlog

log: structlog.stdlib.BoundLogger = structlog.get_logger("tidegate")


def configure_logging(level: str = "info", *, json: bool = True, stream: TextIO | None = None) -> None:
    """Send the gateway's and the libraries' log lines to `stream` (standard error) in one form.

    Args:
        level: the least level that is shown.
        json: JSON lines; else coloured lines for a terminal.
    """
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    # a stack trace's local variables would show texts and keys
    traces = structlog.processors.ExceptionRenderer(structlog.tracebacks.ExceptionDictTransformer(show_locals=False))
    final: list[Any] = (
        [traces, structlog.processors.JSONRenderer(ensure_ascii=False)]
        if json
        else [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
    )
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *final],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.getLogger("httpx").setLevel(logging.WARNING)
