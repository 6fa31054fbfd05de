"""From settings to services: the one place where the embedded engine, the planner and the policies meet."""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import policies
from budget.encoders import MultilingualEmbedder, SentenceTransformerEmbedder
from budget.errors import InvalidConversation
from budget.ports import Embedder, Ports, ScorerUnavailable
from budget.types import Part, PromptMessage, SectionName, Segment
from engine.chat_probe import ChatTemplateError
from engine.loop import EmbeddedEngine
from engine.tokenizer import ModelTokenizer
from gateway.admission import Admission
from gateway.configure import SettingsError
from gateway.logs import log
from gateway.metrics import Metrics
from gateway.models import LoadedModel, ModelSlot
from gateway.planner import Planner
from gateway.services import Services
from gateway.settings import Settings
from gateway.store import MEMORY, SqliteLedger
from policies.keys import hash_key
from policies.load import load
from policies.resolve import PolicySet
from policies.revisions import ActivePolicies
from policies.schema import KeyEntry

DEFAULT_POLICY = Path(policies.__file__).parent / "default.yaml"
DEV_TEAM = "dev"


def build_services(settings: Settings) -> Services:
    """Everything but the model, which `Services.start` loads.

    Raises:
        PolicyError: the policy set is refused.
        SettingsError: a setting that cannot be served.
    """
    active = ActivePolicies(load(settings.policy or DEFAULT_POLICY), partial(_with_dev_key, settings.dev_key))
    metrics = Metrics()
    slot = ModelSlot(settings.model_name, partial(load_embedded, settings))
    return Services(
        models={slot.name: slot},
        policies=active,
        admission=Admission(_ledger(settings.store_url), SqliteLedger(MEMORY), metrics),
        planner=Planner(),
        metrics=metrics,
    )


async def load_embedded(settings: Settings) -> LoadedModel:
    """Load and warm up the embedded engine, its tokenizer and the embedder.

    Raises:
        ModelLoadError, OutOfMemoryError: as the engine says.
        FileNotFoundError: no model is named, and the embedded one is not installed.
    """
    config = settings.engine_config()
    tokenizers: list[ModelTokenizer] = []

    def load_model() -> tuple[Any, Any]:
        from engine.runner import TorchRunner

        runner = TorchRunner(config, progress=lambda line: log.info("loading", detail=line))
        tokenizers.append(ModelTokenizer.from_pretrained(runner.path))
        return runner, tokenizers[0].token_bytes

    engine = EmbeddedEngine(config, load_model)
    try:
        await engine.start()
        embedder = await asyncio.to_thread(_warm, make_embedder(settings.embedder), tokenizers[0])
    except BaseException:
        await engine.close()
        raise
    ports = Ports(counter=tokenizers[0], renderer=TokenizerRenderer(tokenizers[0]), embedder=embedder)
    log.info("model loaded", model=settings.model_name, id=engine.model.id, kv_blocks=engine.stats().blocks_total)
    return LoadedModel(engine, engine.model, ports)


class TokenizerRenderer:
    """The engine's chat template as the planner's port: its segments, and its refusals, in the planner's terms."""

    def __init__(self, tokenizer: ModelTokenizer) -> None:
        self._tokenizer = tokenizer

    def render(self, messages: Sequence[PromptMessage], tools: Sequence[Mapping[str, Any]] = ()) -> list[Segment]:
        """See `budget.ports.PromptRenderer`.

        Raises:
            InvalidConversation: the template refuses these messages.
        """
        try:
            rendered = self._tokenizer.render(messages, tools)
        except ChatTemplateError as error:
            raise InvalidConversation(str(error), param="messages") from error
        return [Segment(text, control, cast(SectionName, section)) for text, control, section in rendered]


def _with_dev_key(key: str | None, policies: PolicySet) -> PolicySet:
    """The set with the development key, if there is one and the set has a team for it."""
    if key is None or policies.find_key(hash_key(key)) is not None:
        return policies
    if DEV_TEAM not in policies.document.teams:
        log.warning("the development key does not work: the policy set has no team for it", team=DEV_TEAM)
        return policies
    return policies.with_key(DEV_TEAM, KeyEntry(hash=hash_key(key), stage="development", admin=True))


def _ledger(url: str) -> SqliteLedger:
    if "://" in url:
        raise SettingsError([f"store: {url} is not supported yet; name a SQLite file"])
    return SqliteLedger(url)


def make_embedder(name: str) -> Embedder | None:
    """The embedder that the setting names; nothing is loaded yet."""
    match name:
        case "none":
            return None
        case "default":
            return MultilingualEmbedder()
        case _:
            return SentenceTransformerEmbedder(name)


def _warm(embedder: Embedder | None, tokenizer: ModelTokenizer) -> Embedder | None:
    """Load what would otherwise load at the first request. Without its embedder the planner ranks by words."""
    TokenizerRenderer(tokenizer).render([PromptMessage("user", (Part("Hello", "question"),))])
    if embedder is not None:
        try:
            embedder.embed(["Hello", "你好"])
        except ScorerUnavailable as error:
            log.warning("no embedder: passages are ranked by words alone", detail=str(error))
    return embedder
