"""One request as it will run: what the caller asked and what the policy allows, always the tighter of both."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from budget.types import Document, Message, Plan, PlanRequest
from engine.request import EngineRequest, SamplingParams
from gateway.auth import Caller
from gateway.body import text_of
from gateway.models import LoadedModel
from gateway.phases import Phases
from gateway.schemas import BudgetIn, ChatMessage, ChatRequest, DocumentIn, ModelRef
from policies.resolve import Effective, PolicySet
from policies.schema import Limits

Detail = Literal["none", "summary", "full"]
DETAILS: tuple[Detail, ...] = ("none", "summary", "full")


@dataclass(frozen=True, slots=True)
class Job:
    """Everything that is fixed before planning starts."""

    request_id: str
    arrival: float
    """`time.monotonic()` when the headers were there."""
    caller: Caller
    effective: Effective
    model: LoadedModel
    model_ref: ModelRef
    ask: ChatRequest
    planning: PlanRequest
    phases: Phases
    namespace: tuple[str, ...]
    detail: Detail
    team_limits: Limits
    """The team's own limits, whatever this app's are."""

    @property
    def most_output_tokens(self) -> int:
        """What the answer can have at most, whatever the prompt."""
        bound = min(self.model_ref.max_output_tokens, self.planning.max_context_tokens)
        return min(bound, self.planning.requested_output_tokens or bound)

    def engine_request(self, plan: Plan) -> EngineRequest:
        """The generation that the plan leads to."""
        policy = self.effective.policy
        return EngineRequest(
            request_id=self.request_id,
            prompt_token_ids=plan.prompt_token_ids,
            max_tokens=plan.report.granted_output_tokens,
            sampling=_sampling(self.ask),
            stop=_stops(self.ask.stop),
            stop_token_ids=tuple(self.ask.stop_token_ids or ()),
            ignore_eos=bool(self.ask.ignore_eos),
            namespace=self.namespace,
            deadlines=self.phases.deadlines(self.arrival),
            team=self.caller.team,
            weight=policy.weight,
            priority=policy.priority,
            objective=policy.objective,
            messages=tuple(planned_messages(plan)),
        )


def make_job(
    request_id: str,
    arrival: float,
    caller: Caller,
    policies: PolicySet,
    name: str,
    model: LoadedModel,
    ask: ChatRequest,
) -> Job:
    """Bring request, policy and model together; `name` is what clients call the model."""
    effective = effective_policy(policies, caller, name)
    policy, budget = effective.policy, ask.budget or BudgetIn()
    ref = model_ref(name, model, effective)
    requested = _least(ask.max_tokens, ask.max_completion_tokens)
    context = policy.context
    if budget.planning is not None:
        context = msgspec.structs.replace(context, planning=budget.planning)
    planning = PlanRequest(
        messages=[_message(message) for message in ask.messages],
        documents=[_document(index, document) for index, document in enumerate(ask.documents or ())],
        context=context,
        max_prompt_tokens=_tightest(ref.max_context_tokens, context.max_prompt_tokens, budget.max_prompt_tokens),
        max_context_tokens=ref.max_context_tokens,
        reserve_output_tokens=_tightest(context.reserve_output_tokens, requested, ref.max_output_tokens),
        max_document_tokens=_least(context.max_document_tokens, budget.max_document_tokens),
        requested_output_tokens=requested,
        max_output_tokens=ref.max_output_tokens,
        order=budget.order or context.order,
    )
    return Job(
        request_id=request_id,
        arrival=arrival,
        caller=caller,
        effective=effective,
        model=model,
        model_ref=ref,
        ask=ask,
        planning=planning,
        phases=Phases.tightest(policy.timeouts, ask.timeouts),
        namespace=namespace_of(policy.prefix_sharing, name, caller.team, request_id),
        detail=min(policy.report.detail, budget.report or "full", key=DETAILS.index),
        team_limits=_team_limits(policies, caller),
    )


def effective_policy(policies: PolicySet, caller: Caller, model: str | None = None) -> Effective:
    """What applies to this caller; a model that the set does not name has no bounds of its own there."""
    return policies.resolve(caller.team, caller.app, caller.stage, model if model in policies.models else None)


def namespace_of(sharing: Literal["team", "global", "none"], model: str, team: str, request_id: str) -> tuple[str, ...]:
    """Whose KV blocks a prompt may share: tagged parts, so that no two kinds can be mistaken for each other."""
    match sharing:
        case "team":
            return ("model", model, "team", team)
        case "global":
            return ("model", model, "global")
        case "none":
            return ("model", model, "request", request_id)


def planned_messages(plan: Plan) -> list[dict[str, object]]:
    """The planned conversation in the API's own shape."""
    shown = []
    for message in plan.messages:
        entry: dict[str, object] = {"role": message.role, "content": message.content}
        if message.tool_calls:
            entry["tool_calls"] = list(message.tool_calls)
        if message.tool_call_id is not None:
            entry["tool_call_id"] = message.tool_call_id
        shown.append(entry)
    return shown


def _team_limits(policies: PolicySet, caller: Caller) -> Limits:
    """The limits without the app's overlay: those of the app `default`, which has none, unless the set gives it one."""
    overlaid = "default" in policies.document.teams[caller.team].apps
    app = caller.app if overlaid else "default"
    return policies.resolve(caller.team, app, caller.stage).policy.limits


def model_ref(name: str, model: LoadedModel, effective: Effective) -> ModelRef:
    """The model as the report shows it, with the tighter of its own and the policy's bounds."""
    bounds = effective.models.get(name)
    context = _tightest(model.info.max_context_tokens, bounds.max_context_tokens if bounds else None)
    return ModelRef(
        name=name,
        id=model.info.id,
        revision=model.info.revision,
        max_context_tokens=context,
        max_output_tokens=_tightest(context, bounds.max_output_tokens if bounds else None),
        engine=model.kind,
    )


def _sampling(ask: ChatRequest) -> SamplingParams:
    """OpenAI's defaults where nothing is said; `top_k` -1 is vLLM's way to write 0."""
    return SamplingParams(
        temperature=1.0 if ask.temperature is None else ask.temperature,
        top_p=1.0 if ask.top_p is None else ask.top_p,
        top_k=max(0, ask.top_k or 0),
        min_p=ask.min_p or 0.0,
        repetition_penalty=1.0 if ask.repetition_penalty is None else ask.repetition_penalty,
        seed=ask.seed,
    )


def _stops(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    return (stop,) if isinstance(stop, str) else tuple(stop or ())


def _message(message: ChatMessage) -> Message:
    calls = [_tool_call(call) for call in message.tool_calls or ()] if message.role == "assistant" else ()
    return Message(
        role="system" if message.role == "developer" else message.role,
        content=text_of(message),
        tool_calls=tuple(calls),
        tool_call_id=message.tool_call_id if message.role == "tool" else None,
        pinned=bool(message.pinned),
    )


def _tool_call(call: Mapping[str, Any]) -> dict[str, Any]:
    """What OpenAI's API says of a call, and nothing else that a client put there."""
    function = {"name": call["function"]["name"], "arguments": call["function"]["arguments"]}
    return {"id": call["id"], "type": "function", "function": function}


def _document(index: int, document: DocumentIn) -> Document:
    return Document(
        index=index,
        text=document.text,
        id=document.id,
        title=document.title,
        score=document.score,
        pinned=bool(document.pinned),
    )


def _least(*bounds: int | None) -> int | None:
    return min((bound for bound in bounds if bound is not None), default=None)


def _tightest(bound: int, *others: int | None) -> int:
    return min((bound, *(other for other in others if other is not None)))
