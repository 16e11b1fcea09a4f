"""`/debug/protocol`: where every rank stands, read from the rings."""

from __future__ import annotations

from typing import Protocol as Interface

import msgspec
from fastapi import APIRouter, Response

from headway.engine.watchdog import Position, wait_cycle
from headway.spec.table import Protocol


class Standing(Interface):
    """Whoever knows the positions of the ranks."""

    def positions(self) -> list[Position]:
        """Where every rank stands now."""


def protocol_router(group: Standing, table: Protocol) -> APIRouter:
    """A router with the one route."""
    router = APIRouter()

    @router.get("/debug/protocol")
    async def protocol() -> Response:
        where = group.positions()
        body = {
            "table": table.name,
            "fingerprint": table.fingerprint,
            "ranks": [{**msgspec.to_builtins(p), "words": p.words()} for p in where],
            "cycle": wait_cycle(where),
        }
        return Response(msgspec.json.encode(body), media_type="application/json")

    return router
