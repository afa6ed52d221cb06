"""Health, readiness and metrics."""

from typing import Any

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse, Response

from hub_server.access import PUBLIC, HubRoute
from hub_server.hub import Hub, HubDep
from hub_server.operations import service

router = APIRouter(tags=["operations"], route_class=HubRoute)


@router.get("/health", dependencies=[PUBLIC])
async def health() -> dict[str, Any]:
    """Confirm that the process answers."""
    return {"status": "ok"}


@router.get("/ready", dependencies=[PUBLIC])
async def ready(hub: HubDep) -> dict[str, Any]:
    """Confirm that database and storage answer. A 503 names the one that does not."""
    await service.check(hub.database)
    await hub.store.check()
    return {"status": "ready"}


@router.get("/metrics", response_class=PlainTextResponse, dependencies=[PUBLIC])
async def metrics(hub: HubDep) -> Response:
    """Return the counters of this worker for Prometheus."""
    return PlainTextResponse(hub.metrics.render(await _gauges(hub)))


async def _gauges(hub: Hub) -> dict[str, float]:
    async with hub.database.read() as session:
        return await service.totals(session)
