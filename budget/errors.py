"""The planner's errors.

PlanError
├── ContextLengthExceeded   what must be kept does not fit the budget
└── InvalidConversation     messages that no plan can be made of
"""


class PlanError(Exception):
    """Base of what the planner raises."""


class ContextLengthExceeded(PlanError):
    """The mandatory parts (system, last question, pinned) need more tokens than allowed.

    Attributes:
        needed_tokens: tokens of the mandatory parts, template included.
        allowed_tokens: the budget that they had to fit.
        param: the request field that could be shortened.
    """

    def __init__(self, message: str, *, needed_tokens: int, allowed_tokens: int, param: str = "messages") -> None:
        super().__init__(message)
        self.needed_tokens = needed_tokens
        self.allowed_tokens = allowed_tokens
        self.param = param


class InvalidConversation(PlanError):
    """Messages that break the chat format, such as a tool result that answers no call. `param` names the place."""

    def __init__(self, message: str, *, param: str) -> None:
        super().__init__(message)
        self.param = param
