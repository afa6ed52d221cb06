"""The control plane: routes below `/api/v1` that create, list, describe and end sandboxes."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

from aiohttp import web

from verifiers.sandbox_server import requests
from verifiers.sandbox_server.inventory import Account, HostedSandbox, Inventory
from verifiers.sandbox_server.requests import RequestRefused, Transfer
from verifiers.sandboxes.errors import SandboxDead, SandboxFileError

MAX_PER_PAGE = 500
MAX_BATCH = 1000
_JOB_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


class ControlPlane:
    """Handlers. Each acts for the account of the request's token, and reads no body before it has checked the token."""

    def __init__(
        self,
        inventory: Inventory,
        transfer: Transfer,
        account_of: Callable[[web.Request], Account],
    ) -> None:
        self._inventory = inventory
        self._account_of = account_of
        self._transfer = transfer
        self._config = transfer.config

    def routes(self) -> list[web.RouteDef]:
        """Return the routes of the control plane."""
        each = "/api/v1/sandbox/{id}"
        return [
            web.post("/api/v1/sandbox", self.create),
            web.get("/api/v1/sandbox", self.list),
            web.delete("/api/v1/sandbox", self.delete_many),
            web.post("/api/v1/sandbox/status:batchGet", self.statuses),
            web.post("/api/v1/sandbox/background-jobs/status:batchGet", self.job_statuses),
            web.get(each, self.get),
            web.delete(each, self.delete),
            web.post(each + "/auth", self.auth),
            web.get(each + "/error-context", self.error_context),
            web.get(each + "/logs", self.logs),
            web.get(each + "/egress-policy", self.egress_policy),
        ]

    # --- one sandbox

    async def create(self, request: web.Request) -> web.Response:
        """POST /sandbox: responds when the sandbox is up, usually within milliseconds."""
        account = self._account_of(request)
        parsed = requests.parse(await self._transfer.json_body(request))
        hosted = await self._inventory.create(account, parsed)
        await self._inventory.settle(hosted, self._config.create_wait_s)
        return answer({**describe(hosted), "gatewayAuth": self._gateway_auth(request, hosted)})

    def _named(self, request: web.Request) -> HostedSandbox:
        return self._inventory.get(self._account_of(request), request.match_info["id"])

    async def get(self, request: web.Request) -> web.Response:
        """GET /sandbox/{id}: while the sandbox is starting, waits until it is up or has failed."""
        hosted = self._named(request)
        await self._inventory.settle(hosted, self._config.status_wait_s)
        await self._inventory.refresh(hosted)
        return answer(describe(hosted))

    async def delete(self, request: web.Request) -> web.Response:
        """DELETE /sandbox/{id}: responds when the sandbox is gone. Idempotent."""
        hosted = self._named(request)
        await asyncio.shield(self._inventory.end(hosted))
        return answer({"id": hosted.id, "status": hosted.status})

    async def auth(self, request: web.Request) -> web.Response:
        """POST /sandbox/{id}/auth: the address of the gateway and the token for it."""
        return answer(self._gateway_auth(request, self._named(request)))

    def _gateway_auth(self, request: web.Request, hosted: HostedSandbox) -> dict[str, object]:
        base = self._config.public_url or f"{request.scheme}://{request.host}"
        return {
            "gateway_url": base.rstrip("/") + "/gateway",
            "user_ns": hosted.account.name,
            "job_id": hosted.id,
            "token": hosted.gateway_token,
            "expires_at": _time(hosted.expires_at),
            "is_vm": False,
        }

    async def error_context(self, request: web.Request) -> web.Response:
        """GET /sandbox/{id}/error-context: the reason why a sandbox no longer runs."""
        hosted = self._named(request)
        await self._inventory.refresh(hosted)
        error = {"errorType": hosted.error_type, "errorMessage": hosted.error_message}
        return answer({"status": hosted.status, **error})

    async def logs(self, request: web.Request) -> web.Response:
        """GET /sandbox/{id}/logs: the last output of the start command."""
        return answer({"logs": self._named(request).logs.decode("utf-8", "replace")})

    async def egress_policy(self, request: web.Request) -> web.Response:
        """GET /sandbox/{id}/egress-policy: the domains that the sandbox may reach, fixed at creation."""
        allowed = allowlist(self._named(request))
        policy = {"allowlist": allowed, "denylist": None}
        return answer({"policy": policy, "generation": 1, "applied_generation": 1, "applied": True})

    # --- many

    async def list(self, request: web.Request) -> web.Response:
        """GET /sandbox: pages of the account's sandboxes, newest first."""
        query = request.query
        page = _number(query.get("page", "1"), "page", 1_000_000)
        per_page = _number(query.get("per_page", "50"), "per_page", MAX_PER_PAGE)
        matches = self._inventory.of(self._account_of(request))
        for hosted in matches:
            await self._inventory.refresh(hosted)
        matches = [hosted for hosted in matches if _matches(hosted, query)]
        first = (page - 1) * per_page
        shown = [describe(hosted) for hosted in matches[first : first + per_page]]
        return answer(
            {
                "sandboxes": shown,
                "total": len(matches),
                "page": page,
                "perPage": per_page,
                "hasNext": first + per_page < len(matches),
            }
        )

    async def delete_many(self, request: web.Request) -> web.Response:
        """DELETE /sandbox with a body: ends sandboxes by id or by label."""
        account = self._account_of(request)
        body = await self._object(request)
        ids, labels = _texts(body, "sandbox_ids"), _texts(body, "labels")
        if bool(ids) == bool(labels):
            raise RequestRefused(422, "Pass either sandbox_ids or labels.")
        if labels:
            required = set(labels)
            ids = [
                hosted.id
                for hosted in self._inventory.of(account)
                if hosted.is_alive and required <= set(hosted.request.labels)
            ]
        succeeded: list[str] = []
        failed: list[dict[str, str]] = []
        endings: list[asyncio.Task[None]] = []
        for sandbox_id in ids:
            try:
                endings.append(self._inventory.end(self._inventory.get(account, sandbox_id)))
                succeeded.append(sandbox_id)
            except RequestRefused as refusal:
                failed.append({"sandbox_id": sandbox_id, "error": refusal.detail})
        await asyncio.gather(*(asyncio.shield(ending) for ending in endings))
        message = f"{len(succeeded)} ended, {len(failed)} not found."
        return answer({"succeeded": succeeded, "failed": failed, "message": message})

    async def statuses(self, request: web.Request) -> web.Response:
        """POST /sandbox/status:batchGet. If all sandboxes are starting, waits until the first is up or has failed."""
        account = self._account_of(request)
        ids = _texts(await self._object(request), "sandbox_ids")
        known, missing = self._lookup(account, ids)
        pending = [hosted for hosted in known if hosted.status == "PENDING"]
        if pending and len(pending) == len(known):
            await _first([hosted.settled.wait for hosted in pending], self._config.status_wait_s)
        for hosted in known:
            await self._inventory.refresh(hosted)
        statuses = [
            {
                "sandbox_id": hosted.id,
                "status": hosted.status,
                "error_type": hosted.error_type,
                "error_message": hosted.error_message,
                "pending_image_build_id": None,
            }
            for hosted in known
        ]
        return answer({"statuses": statuses, "errors": missing})

    def _lookup(
        self, account: Account, ids: list[str]
    ) -> tuple[list[HostedSandbox], list[dict[str, str]]]:
        known: list[HostedSandbox] = []
        missing: list[dict[str, str]] = []
        for sandbox_id in ids:
            try:
                known.append(self._inventory.get(account, sandbox_id))
            except RequestRefused as refusal:
                missing.append(
                    {"sandbox_id": sandbox_id, "code": "NOT_FOUND", "message": refusal.detail}
                )
        return known, missing

    async def job_statuses(self, request: web.Request) -> web.Response:
        """POST /sandbox/background-jobs/status:batchGet: whether the exit files of jobs exist."""
        account = self._account_of(request)
        jobs = (await self._object(request)).get("jobs")
        if not isinstance(jobs, list) or len(jobs) > MAX_BATCH:
            raise RequestRefused(422, f"jobs must be a list of at most {MAX_BATCH} objects.")
        statuses: list[dict[str, Any]] = []
        errors: list[dict[str, Any]] = []
        for job in jobs:
            names = (
                (job.get("sandbox_id"), job.get("job_id"))
                if isinstance(job, dict)
                else (None, None)
            )
            sandbox_id, job_id = (str(name) for name in names)
            named = {"sandbox_id": sandbox_id, "job_id": job_id}
            try:
                if not _JOB_ID.fullmatch(job_id):
                    raise RequestRefused(422, f"{job_id[:80]!r} is not a valid job id.")
                hosted = self._inventory.get(account, sandbox_id)
                code = await self._exit_code(hosted, job_id)
                statuses.append({**named, "completed": code is not None, "exit_code": code})
            except (RequestRefused, SandboxDead) as error:
                errors.append({**named, "code": "NOT_FOUND", "message": str(error)})
        return answer({"statuses": statuses, "errors": errors})

    async def _exit_code(self, hosted: HostedSandbox, job_id: str) -> int | None:
        async with self._inventory.in_use(hosted) as sandbox:
            try:
                text = await sandbox.read(f"/tmp/job_{job_id}.exit", max_bytes=64)
                return int(text)
            except (SandboxFileError, ValueError):
                return None  # the file does not exist yet, or is incomplete

    async def _object(self, request: web.Request) -> dict[str, Any]:
        body = await self._transfer.json_body(request)
        if not isinstance(body, dict):
            raise RequestRefused(422, "The body must be a JSON object.")
        return body


def answer(content: object, status: int = 200) -> web.Response:
    """Return a JSON response."""
    return web.Response(
        body=json.dumps(content).encode(), status=status, content_type="application/json"
    )


def describe(hosted: HostedSandbox) -> dict[str, object]:
    """Describe a sandbox for clients: names in camel case, integers where possible."""
    request, spec = hosted.request, hosted.spec
    return {
        "id": hosted.id,
        "name": request.name,
        "dockerImage": request.docker_image or "host",
        "startCommand": None,  # a string in one generation of clients, an object in the next; all accept null
        "cpuCores": _whole(request.cpu_cores),
        "memoryGB": _whole(spec.memory_mb / 1024),
        "diskSizeGB": _whole(spec.disk_mb / 1024),
        "diskMountPath": spec.workdir,
        "gpuCount": 0,
        "gpuType": None,
        "vm": False,
        "networkAccess": spec.network != "none",
        "networkAllowlist": allowlist(hosted),
        "networkDenylist": None,
        "status": hosted.status,
        "timeoutMinutes": _whole(request.timeout_minutes, up=True),
        "idleTimeoutMinutes": request.idle_timeout_minutes,
        "environmentVars": request.environment_vars,
        "labels": request.labels,
        "createdAt": _time(hosted.created_at),
        "updatedAt": _time(hosted.ended_at or hosted.started_at or hosted.created_at),
        "startedAt": _time(hosted.started_at),
        "terminatedAt": _time(hosted.ended_at),
        "terminationReason": hosted.error_message,
        "errorType": hosted.error_type,
        "errorMessage": hosted.error_message,
        "userId": hosted.account.name,
        "teamId": request.team_id,
    }


def allowlist(hosted: HostedSandbox) -> list[str] | None:
    """Return the domains that a sandbox may reach, or None for every public domain."""
    network = hosted.spec.network
    if isinstance(network, str):
        return None if network == "full" else []
    return list(network.allow)


def _whole(value: float, *, up: bool = False) -> int | float:
    # Older clients accept integers only. Only a client that sent a fraction receives one.
    if up:
        return max(1, int(-(-value // 1)))
    return int(value) if value == int(value) else value


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat().replace("+00:00", "Z")


def _number(text: str, name: str, maximum: int) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 9 or not 0 < int(text) <= maximum:
        raise RequestRefused(
            422, f"{name} must be a number from 1 to {maximum}, got {text[:40]!r}."
        )
    return int(text)


def _matches(hosted: HostedSandbox, query: Any) -> bool:
    status, is_active = query.get("status"), query.get("is_active")
    return (
        (status is None or hosted.status == status)
        and (is_active is None or hosted.is_alive == (is_active.lower() == "true"))
        and set(query.getall("labels", [])) <= set(hosted.request.labels)
    )


def _texts(body: dict[str, Any], name: str) -> list[str]:
    values = body.get(name) or []
    if not isinstance(values, list) or not all(isinstance(each, str) for each in values):
        raise RequestRefused(422, f"{name} must be a list of strings.")
    if len(values) > MAX_BATCH:
        raise RequestRefused(
            422, f"{name} may have at most {MAX_BATCH} entries, got {len(values)}."
        )
    return values


async def _first(waits: list[Callable[[], Awaitable[Any]]], timeout_s: float) -> None:
    tasks = [asyncio.ensure_future(wait()) for wait in waits]
    try:
        await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
