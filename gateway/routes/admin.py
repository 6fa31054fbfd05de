"""`/admin/…`: for keys with the admin mark."""

from typing import Annotated

import msgspec
from litestar import post

from gateway.body import decode_object
from gateway.routes.access import AnyRequest, admin_of, services_of


class FlushIn(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What to drop; nothing said means everything.

    `namespace` is a team's name, or the tagged parts behind the model's: `["global"]`, `["team", "support"]`.
    """

    namespace: str | Annotated[list[str], msgspec.Meta(min_length=1)] | None = None
    model: str | None = None


class FlushOut(msgspec.Struct, kw_only=True):
    """KV blocks that became free, in all and by model."""

    freed_blocks: int
    by_model: dict[str, int]


_decoder = msgspec.json.Decoder(FlushIn)


@post("/admin/cache/flush", status_code=200, operation_id="flush_cache")
async def flush_cache(request: AnyRequest) -> FlushOut:
    """Drop idle cached KV blocks. Blocks that running requests use stay."""
    admin_of(request)
    asked = decode_object(await request.body() or b"{}", _decoder)
    parts = ("team", asked.namespace) if isinstance(asked.namespace, str) else tuple(asked.namespace or ())
    freed = {}
    for name, slot in services_of(request).models.items():
        if slot.loaded is not None and asked.model in (None, name):
            freed[name] = slot.loaded.engine.flush(("model", name, *parts) if parts else None)
    return FlushOut(freed_blocks=sum(freed.values()), by_model=freed)
