"""Evaluations over HTTP. Answers are bare objects, not wrapped in `data`."""

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response

from hub_server.database import iso
from hub_server.errors import NotOffered
from hub_server.evaluations import service
from hub_server.evaluations.service import Row
from hub_server.hub import Caller, Hub, HubDep, KnownCaller, base_url_of
from verifiers.hub.wire import EvaluationPatch, EvaluationRequest, FinalizeEvaluation

router = APIRouter(prefix="/api/v1", tags=["evaluations"])


def _answer(row: Row, request: Request, hub: Hub) -> dict[str, Any]:
    evaluation = row.evaluation
    metadata = {"num_examples": None, "rollouts_per_example": None, **evaluation.run_metadata}
    return {
        "evaluation_id": evaluation.id,
        "id": evaluation.id,
        "name": evaluation.name,
        "status": evaluation.status,
        "error_message": evaluation.error_message,
        "environment_names": [subject.name for subject in row.environments],
        "environments": [subject._asdict() for subject in row.environments],
        "model_name": evaluation.model_name,
        "run_id": evaluation.run_id,
        "suite_id": evaluation.suite_id,
        "is_public": evaluation.is_public,
        "is_hosted": False,
        **evaluation.details,
        "metadata": metadata,
        "metrics": evaluation.metrics,
        "total_samples": evaluation.sample_count,
        "viewer_url": f"{base_url_of(request, hub)}/dashboard/evaluations/{evaluation.id}",
        "created_at": iso(evaluation.created_at),
        "updated_at": iso(evaluation.updated_at),
        "finalized_at": iso(evaluation.finalized_at) if evaluation.finalized_at else None,
    }


@router.post("/evaluations/")
async def create(
    request: Request, hub: HubDep, caller: KnownCaller, body: EvaluationRequest
) -> dict[str, Any]:
    """Open an evaluation."""
    async with hub.database.write() as session:
        evaluation = await service.create(session, caller, body)
        row = await service.find(session, caller, evaluation.id)
    return _answer(row, request, hub)


@router.get("/evaluations/")
async def list_evaluations(
    request: Request,
    hub: HubDep,
    caller: Caller,
    skip: Annotated[int, Query(ge=0)] = 0,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    environment_name: str | None = None,
    suite_id: str | None = None,
    team_id: str | None = None,
) -> dict[str, Any]:
    """Evaluations that the caller may see, newest first."""
    async with hub.database.read() as session:
        rows, total = await service.page(
            session,
            caller,
            skip=skip,
            limit=limit,
            environment_name=environment_name,
            suite_id=suite_id,
            team_id=team_id,
        )
    return {"evaluations": [_answer(row, request, hub) for row in rows], "total": total}


@router.get("/evaluations/{evaluation_id}")
async def get(request: Request, hub: HubDep, caller: Caller, evaluation_id: str) -> dict[str, Any]:
    """One evaluation."""
    async with hub.database.read() as session:
        row = await service.find(session, caller, evaluation_id)
    return _answer(row, request, hub)


@router.put("/evaluations/{evaluation_id}")
async def change(
    request: Request,
    hub: HubDep,
    caller: KnownCaller,
    evaluation_id: str,
    body: EvaluationPatch,
) -> dict[str, Any]:
    """Change an evaluation, or close it as failed or cancelled."""
    async with hub.database.write() as session:
        row = await service.change(session, caller, evaluation_id, body)
    return _answer(row, request, hub)


@router.post("/evaluations/{evaluation_id}/finalize")
async def finalize(
    request: Request,
    hub: HubDep,
    caller: KnownCaller,
    evaluation_id: str,
    body: FinalizeEvaluation | None = None,
) -> dict[str, Any]:
    """Close an evaluation with its final metrics."""
    async with hub.database.write() as session:
        metrics = body.metrics if body else None
        row = await service.finalize(session, caller, evaluation_id, metrics)
    return _answer(row, request, hub)


@router.post("/evaluations/{evaluation_id}/samples")
async def add_samples(
    request: Request, hub: HubDep, caller: KnownCaller, evaluation_id: str
) -> dict[str, Any]:
    """Add a batch `{"samples": [...]}`; batches may come in parallel, in any order and twice."""
    async with hub.database.read() as session:
        await service.find(session, caller, evaluation_id)
    batch = await asyncio.to_thread(service.read_batch, await request.body())
    async with hub.database.write() as session:
        new = await service.add_samples(session, caller, evaluation_id, batch)
    return {"samples_pushed": len(batch.rows), "samples_new": new}


@router.get("/evaluations/{evaluation_id}/samples", response_class=Response)
async def read_samples(
    hub: HubDep,
    caller: Caller,
    evaluation_id: str,
    page: Annotated[int, Query(ge=1)] = 1,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Response:
    """A page of samples, as they were sent."""
    async with hub.database.read() as session:
        row = await service.find(session, caller, evaluation_id)
        bodies = await service.samples(session, evaluation_id, page, limit)
    total = row.evaluation.sample_count
    more = "true" if page * limit < total else "false"
    # The samples are JSON already: put together, not parsed and written again.
    text = b'{"samples":[%s],"total":%d,"page":%d,"limit":%d,"has_more":%s}' % (
        b",".join(bodies),
        total,
        page,
        limit,
        more.encode(),
    )
    return Response(text, media_type="application/json")


@router.post("/traces", response_class=JSONResponse)
async def traces() -> Response:
    """Declined in the words at which clients fall back to sending samples.

    A 404 is not the same: with it they send nothing at all and still report success.
    """
    message = "This hub keeps samples, not traces."
    return JSONResponse({"error": {"code": "service_not_enabled", "message": message}}, 403)


@router.post("/hosted-evaluations")
@router.get("/hosted-evaluations/{rest:path}")
@router.patch("/hosted-evaluations/{rest:path}")
async def hosted(caller: KnownCaller, rest: str = "") -> dict[str, Any]:
    """This hub does not run evaluations."""
    raise NotOffered("This hub does not run evaluations; run `vf-eval` and push the results.")
