"""`tidegate plan FILE`: what the gateway would make of a request; the model's tokenizer, but not its weights."""

import sys
import time
from pathlib import Path
from typing import Any

from budget.errors import PlanError
from budget.plan import plan
from budget.ports import Ports
from budget.types import Plan
from engine.config import ModelInfo
from engine.errors import EngineError
from engine.loop import EmbeddedEngine
from engine.tokenizer import ModelTokenizer
from engine.weights import resolve_model
from gateway.auth import Caller
from gateway.body import decode_chat
from gateway.errors import GatewayError
from gateway.job import effective_policy, make_job
from gateway.models import LoadedModel
from gateway.settings import Settings
from gateway.wiring import DEFAULT_POLICY, TokenizerRenderer, make_embedder
from policies.load import load
from policies.resolve import UnknownName
from policies.schema import KeyEntry, Stage

CANNOT_PLAN = (GatewayError, PlanError, EngineError, UnknownName, FileNotFoundError)
"""What the caller of an offline plan can mend."""
_NO_KEY = "sha256:" + "0" * 64


def plan_offline(settings: Settings, body: bytes, *, team: str, app: str, stage: Stage) -> Plan:
    """The plan that a key of this team, app and stage would get.

    Raises:
        InvalidRequest, RequestTooLarge, PlanError: as over HTTP.
        PolicyError: the policy set is refused.
        UnknownName: it has no such team or app.
        ModelLoadError: there is no such model.
    """
    policies = load(settings.policy or DEFAULT_POLICY)
    caller = Caller(team, KeyEntry(hash=_NO_KEY, app=app, stage=stage))
    ask = decode_chat(body, effective_policy(policies, caller).policy.limits.request)
    model = _tokenizer_only(settings)
    job = make_job("offline", time.monotonic(), caller, policies, settings.model_name, model, ask)
    return plan(job.planning, model.ports)


def _tokenizer_only(settings: Settings) -> LoadedModel:
    """The model as far as planning needs it; its engine is never started."""
    config = settings.engine_config()
    folder = resolve_model(config.model)
    tokenizer = ModelTokenizer.from_pretrained(folder)

    def no_weights() -> tuple[Any, Any]:
        raise AssertionError("an offline plan runs no engine")

    ports = Ports(counter=tokenizer, renderer=TokenizerRenderer(tokenizer), embedder=make_embedder(settings.embedder))
    return LoadedModel(EmbeddedEngine(config, no_weights), _describe(folder, settings), ports)


def _describe(folder: Path, settings: Settings) -> ModelInfo:
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    bound = settings.max_context_tokens or getattr(config, "max_position_embeddings", None) or sys.maxsize
    return ModelInfo(folder.name, "", max_context_tokens=bound, vocab_size=config.vocab_size)
