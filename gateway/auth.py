"""Who is asking: an API key to a team, an app and a stage."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from gateway.errors import InvalidApiKey, NotAllowed
from policies.keys import hash_key
from policies.resolve import PolicySet
from policies.schema import KeyEntry, Stage


@dataclass(frozen=True, slots=True)
class Caller:
    """The owner of a key."""

    team: str
    entry: KeyEntry

    @property
    def app(self) -> str:
        """The app that the key was issued to."""
        return self.entry.app

    @property
    def stage(self) -> Stage:
        """The stage that the key belongs to."""
        return self.entry.stage

    def may_use(self, model: str) -> bool:
        """Whether the key names this model, or names none."""
        return self.entry.models is None or model in self.entry.models

    def check_model(self, model: str) -> None:
        """Raises NotAllowed: the key is not for this model."""
        if not self.may_use(model):
            allowed = ", ".join(self.entry.models or ())
            raise NotAllowed(f"this key may not use the model {model!r}; it may use: {allowed}", param="model")

    def check_admin(self) -> None:
        """Raises NotAllowed: the key is not an admin key."""
        if not self.entry.admin:
            raise NotAllowed("this route needs an admin key")


def authenticate(headers: Mapping[str, str], policies: PolicySet, now: float) -> Caller:
    """The caller behind the bearer key. The key is looked up by its SHA-256, so timing tells nothing of its text.

    Args:
        now: seconds since the epoch.

    Raises:
        InvalidApiKey: no key, an unknown one, or one past its day.
    """
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not key.strip():
        raise InvalidApiKey("no API key; send the header `Authorization: Bearer <key>`")
    match = policies.find_key(hash_key(key.strip()))
    if match is None:
        raise InvalidApiKey("this API key is not known here; check it, or ask for a new one")
    if match.entry.expires and now >= end_of_day(match.entry.expires):
        raise InvalidApiKey(f"this API key expired at the end of {match.entry.expires} (UTC); ask for a new one")
    return Caller(match.team, match.entry)


def end_of_day(iso_date: str) -> float:
    """The instant at which this UTC day is over, in seconds since the epoch."""
    next_day = date.fromisoformat(iso_date) + timedelta(days=1)
    return datetime(next_day.year, next_day.month, next_day.day, tzinfo=UTC).timestamp()
