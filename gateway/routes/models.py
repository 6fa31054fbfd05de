"""`GET /v1/models`: what this key may ask, and how much of it."""

from typing import Literal

import msgspec
from litestar import get
from litestar.params import FromPath

from gateway.auth import Caller
from gateway.errors import ModelNotFound
from gateway.job import effective_policy, model_ref
from gateway.models import ModelSlot
from gateway.routes.access import AnyRequest, caller_of, services_of
from policies.resolve import PolicySet


class ModelEntry(msgspec.Struct, kw_only=True):
    """OpenAI's model object, with the bounds that hold for this key. Bounds are null until the model is loaded."""

    id: str
    created: int = 0
    object: Literal["model"] = "model"
    owned_by: str = "tidegate"
    ready: bool
    max_context_tokens: int | None = None
    max_prompt_tokens: int | None = None
    max_output_tokens: int | None = None


class ModelList(msgspec.Struct, kw_only=True):
    """OpenAI's list object."""

    data: list[ModelEntry]
    object: Literal["list"] = "list"


@get("/v1/models", operation_id="list_models")
async def list_models(request: AnyRequest) -> ModelList:
    """The models that this key may use."""
    caller, services = caller_of(request), services_of(request)
    policies = services.policies.current()
    slots = [slot for name, slot in services.models.items() if caller.may_use(name)]
    return ModelList(data=[_entry(slot, caller, policies) for slot in slots])


@get("/v1/models/{name:path}", operation_id="retrieve_model")
async def retrieve_model(request: AnyRequest, name: FromPath[str]) -> ModelEntry:
    """One of them."""
    caller, services = caller_of(request), services_of(request)
    slot = services.models.get(name.removeprefix("/"))
    if slot is None:
        raise ModelNotFound(f"there is no model {name.removeprefix('/')[:100]!r} here", param="model")
    caller.check_model(slot.name)
    return _entry(slot, caller, services.policies.current())


def _entry(slot: ModelSlot, caller: Caller, policies: PolicySet) -> ModelEntry:
    entry = ModelEntry(id=slot.name, ready=slot.problem() is None)
    if slot.loaded is not None:
        effective = effective_policy(policies, caller, slot.name)
        ref = model_ref(slot.name, slot.loaded, effective)
        entry.max_context_tokens, entry.max_output_tokens = ref.max_context_tokens, ref.max_output_tokens
        policy_bound = effective.policy.context.max_prompt_tokens
        entry.max_prompt_tokens = min(ref.max_context_tokens, policy_bound or ref.max_context_tokens)
    return entry
