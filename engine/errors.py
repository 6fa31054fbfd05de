"""The engine's errors.

EngineError
├── ModelLoadError     the model cannot be read or is not a causal LM
├── OutOfMemoryError   the KV pool does not fit in the memory that is free
├── RequestRejected    the request can never run here, or not now
└── EngineClosed       the loop has stopped; nothing more is accepted
"""


class EngineError(Exception):
    """Base of every error that the engine raises; the message says what would make it right."""


class ModelLoadError(EngineError):
    """The model cannot be loaded: a missing path, an unknown architecture, a broken file."""


class OutOfMemoryError(EngineError):
    """The KV pool or the weights do not fit in free memory; the message has both numbers."""


class RequestRejected(EngineError):
    """The engine does not take this request.

    Attributes:
        retry_after_s: seconds after which a retry may succeed; None if it never can.
    """

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class EngineClosed(EngineError):
    """The engine loop is not running."""
