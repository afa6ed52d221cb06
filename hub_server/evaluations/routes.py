"""Evaluations over HTTP. Answers are bare objects, not wrapped in `data`."""

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from hub_server import stored
from hub_server.access import (
    PUBLIC,
    AnyCaller,
    Evaluates,
    HubRoute,
    ReadsEvaluation,
    body_pieces,
)
from hub_server.database import iso
from hub_server.errors import BadRequest, NotOffered
from hub_server.evaluations import samples, service
from hub_server.evaluations.service import Row
from hub_server.hub import Hub, HubDep, base_url_of
from hub_server.storage.service import stage, staging_path
from verifiers.hub.wire import EvaluationPatch, EvaluationRequest, FinalizeEvaluation

router = APIRouter(prefix="/api/v1", tags=["evaluations"], route_class=HubRoute)

_CUT_IN_LISTS = {
    "name",
    "error_message",
    "environment_names",
    "environments",
    "model_name",
    "run_id",
} | {
    "suite_id",
    "dataset",
    "framework",
    "task_type",
    "tags",
    "metrics",
}


def _summary(row: Row, request: Request, hub: Hub) -> dict[str, Any]:
    """Return an evaluation in a list. Every field has a bounded length."""
    evaluation = row.evaluation
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
        # Clients read both keys of `metadata`, and it must be an object.
        "metadata": {"num_examples": None, "rollouts_per_example": None},
        **evaluation.summary,
        "metadata_bytes": evaluation.metadata_bytes,
        "total_samples": evaluation.sample_count,
        "viewer_url": f"{base_url_of(request, hub)}/dashboard/evaluations/{evaluation.id}",
        "created_at": iso(evaluation.created_at),
        "updated_at": iso(evaluation.updated_at),
        "finalized_at": iso(evaluation.finalized_at) if evaluation.finalized_at else None,
    }


async def _answer(session: Any, row: Row, request: Request, hub: Hub) -> Response:
    """Return one evaluation in full. It is encoded inside its transaction, so that only what can be sent is kept."""
    evaluation = row.evaluation
    answer = _summary(row, request, hub)
    is_whole = await service.load(session, evaluation, hub.settings.max_metadata_bytes)
    answer |= evaluation.details
    answer["metrics"] = evaluation.metrics
    if is_whole:
        answer["metadata"] = {**answer["metadata"], **evaluation.run_metadata}
    else:
        answer["metadata_left_out"] = f"/api/v1/evaluations/{evaluation.id}/metadata"
    return Response(stored.encoded(answer, "The evaluation"), media_type="application/json")


@router.post("/evaluations/")
async def create(
    request: Request, hub: HubDep, caller: Evaluates, body: EvaluationRequest
) -> Response:
    """Open an evaluation."""
    async with hub.database.write() as session:
        row = await service.create(session, caller, body, hub.settings)
        return await _answer(session, row, request, hub)


@router.get("/evaluations/")
async def list_evaluations(
    request: Request,
    hub: HubDep,
    caller: ReadsEvaluation,
    skip: Annotated[int, Query(ge=0)] = 0,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    environment_name: str | None = None,
    suite_id: str | None = None,
    team_id: str | None = None,
) -> Response:
    """Return the evaluations that the caller may see, newest first. `/metadata` of each has the whole metadata."""
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
    shown = stored.fitted([_summary(row, request, hub) for row in rows], _CUT_IN_LISTS)
    text = stored.encoded({"evaluations": shown, "total": total}, "The list")
    return Response(text, media_type="application/json")


@router.get("/evaluations/{evaluation_id}")
async def get(
    request: Request, hub: HubDep, caller: ReadsEvaluation, evaluation_id: str
) -> Response:
    """Return one evaluation."""
    async with hub.database.read() as session:
        row = await service.find(session, caller, evaluation_id)
        try:
            return await _answer(session, row, request, hub)
        except BadRequest:  # stored without a check by an earlier release, and not repaired since
            evaluation = row.evaluation
            whole = {**evaluation.details, "metrics": evaluation.metrics}
            answer = stored.mended({**_summary(row, request, hub), **whole})
            return Response(stored.encoded(answer, "It"), media_type="application/json")


@router.get("/evaluations/{evaluation_id}/metadata")
async def metadata(hub: HubDep, caller: ReadsEvaluation, evaluation_id: str) -> Response:
    """Return the whole metadata of an evaluation."""
    async with hub.database.read() as session:
        row = await service.find(session, caller, evaluation_id)
        text = await service.metadata_text(session, row.evaluation.id)
    return Response(text.encode(), media_type="application/json")


@router.put("/evaluations/{evaluation_id}")
async def change(
    request: Request, hub: HubDep, caller: Evaluates, evaluation_id: str, body: EvaluationPatch
) -> Response:
    """Change an evaluation, or close it as failed or cancelled."""
    async with hub.database.write() as session:
        row = await service.change(session, caller, evaluation_id, body, hub.settings)
        return await _answer(session, row, request, hub)


@router.delete("/evaluations/{evaluation_id}")
async def delete(hub: HubDep, caller: Evaluates, evaluation_id: str) -> dict[str, Any]:
    """Delete an evaluation with its samples."""
    async with hub.database.write() as session:
        await service.delete(session, caller, evaluation_id)
    return {"success": True, "evaluation_id": evaluation_id}


@router.post("/evaluations/{evaluation_id}/finalize")
async def finalize(
    request: Request,
    hub: HubDep,
    caller: Evaluates,
    evaluation_id: str,
    body: FinalizeEvaluation | None = None,
) -> Response:
    """Close an evaluation with its final metrics."""
    async with hub.database.write() as session:
        metrics = body.metrics if body else None
        row = await service.finalize(session, caller, evaluation_id, metrics, hub.settings)
        return await _answer(session, row, request, hub)


@router.post("/evaluations/{evaluation_id}/samples")
async def add_samples(
    request: Request, hub: HubDep, caller: Evaluates, evaluation_id: str
) -> dict[str, Any]:
    """Add a batch `{"samples": [...]}`. Batches may arrive in parallel, in any order and twice."""
    async with hub.database.read() as session:
        await service.find(session, caller, evaluation_id)
    settings = hub.settings
    with staging_path(settings) as path:
        await stage(body_pieces(request), path, settings.max_batch_bytes)
        async with hub.batches.turn(caller):
            batch = await asyncio.to_thread(samples.read_batch, path, settings.max_sample_bytes)
            new = await samples.store(hub.database, caller, evaluation_id, batch, settings)
    return {"samples_pushed": len(batch.rows), "samples_new": new}


@router.get("/evaluations/{evaluation_id}/samples", response_class=Response)
async def read_samples(
    hub: HubDep,
    caller: ReadsEvaluation,
    evaluation_id: str,
    page: Annotated[int, Query(ge=1)] = 1,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Response:
    """Return a page of samples as they were sent. An object with `left_out` replaces a sample that does not fit."""
    async with hub.database.read() as session:
        row = await service.find(session, caller, evaluation_id)
        planned = await samples.plan(session, evaluation_id, page, limit)
    total = row.evaluation.sample_count
    more = b"true" if page * limit < total else b"false"
    end = b'],"total":%d,"page":%d,"limit":%d,"has_more":%s}' % (total, page, limit, more)
    most = hub.settings.max_samples_page_bytes
    # The samples are JSON already, so they are joined and not parsed again.
    pieces = samples.page_pieces(hub.database, planned, end, most)
    return StreamingResponse(pieces, media_type="application/json")


@router.post("/traces", response_class=JSONResponse, dependencies=[PUBLIC])
async def traces() -> Response:
    """Decline traces with the answer at which clients fall back to sending samples.

    After a 404 clients would send nothing at all and still report success.
    """
    message = "This hub keeps samples, not traces."
    return JSONResponse({"error": {"code": "service_not_enabled", "message": message}}, 403)


@router.post("/hosted-evaluations")
@router.get("/hosted-evaluations/{rest:path}")
@router.patch("/hosted-evaluations/{rest:path}")
async def hosted(caller: AnyCaller, rest: str = "") -> dict[str, Any]:
    """Decline: this hub does not run evaluations."""
    raise NotOffered("This hub does not run evaluations; run `vf-eval` and push the results.")
