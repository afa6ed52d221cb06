"""The ASGI application of a hub."""

import gc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import orjson
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from python_multipart.exceptions import FormParserError
from starlette.exceptions import HTTPException

from hub_server.accounts.routes import router as accounts
from hub_server.changes.routes import router as changes
from hub_server.edge import Edge, LineLog
from hub_server.environments.routes import router as environments
from hub_server.errors import HubFailure
from hub_server.evaluations.routes import router as evaluations
from hub_server.hub import Hub
from hub_server.index.routes import router as index
from hub_server.index.sending import Application, ReadyFirst
from hub_server.logins.pages import router as web
from hub_server.logins.routes import router as logins
from hub_server.migrations import check_current
from hub_server.operations.routes import router as operations
from hub_server.publishing.routes import router as publishing
from hub_server.secrets.routes import router as secrets
from hub_server.settings import Settings, settings_from_environment

# Routes with a fixed first word come before owner names: `/{owner}/simple/` must not match `/api/...`. Otherwise
# the routers with the most requests come first, because a request tries one route after the other.
ROUTERS = (
    publishing,
    environments,
    evaluations,
    operations,
    accounts,
    logins,
    secrets,
    changes,
    web,
    index,
)


def create_app(settings: Settings, log: Callable[[bytes], None] | None = None) -> Application:
    """Return the application. It opens its database and storage in its lifespan."""
    hub = Hub(settings)
    lines = log or LineLog()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await check_current(hub.database.engine)
        async with hub:
            # Objects that exist now live as long as the process: the garbage collector need not visit them again.
            gc.collect()
            gc.freeze()
            yield
        if isinstance(lines, LineLog):
            lines.flush()

    app = FastAPI(
        title="Environments hub",
        version="1",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/v1/openapi.json",
        redirect_slashes=False,
    )
    app.state.hub = hub
    for router in ROUTERS:
        # `include_router` would analyse each route a second time, at the first request: 0.12 s per worker.
        app.router.routes.extend(router.routes)
    app.add_exception_handler(HubFailure, _hub_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(FormParserError, _form_error)
    app.add_exception_handler(Exception, _internal_error)

    def count(environment_id: str) -> None:
        hub.usage.downloads[environment_id] += 1

    ready_first = ReadyFirst(app, hub.pages, count)
    return Edge(ready_first, hub, lines)


def create_app_from_environment() -> Application:
    """Return the application with the settings of `VF_HUB_*`, for a worker process."""
    return create_app(settings_from_environment())


async def _hub_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HubFailure)
    return _problem(request, error.status, error.detail, error.headers)


async def _internal_error(request: Request, error: Exception) -> Response:
    """Return an answer without the cause. `edge` logs the cause under the request's id, which is in the headers."""
    return _problem(
        request,
        500,
        "Internal error. The operator finds it in the log by the X-Request-Id of this answer.",
        {},
    )


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _problem(request, error.status_code, error.detail, dict(error.headers or {}))


async def _form_error(request: Request, error: Exception) -> Response:
    """Answer a form that cannot be parsed, for example one with an endless boundary."""
    return _problem(request, 400, f"The form is damaged: {error}.", {})


async def _validation_error(request: Request, error: Exception) -> Response:
    """Return 422 in FastAPI's form, without the input: the input may be a password."""
    assert isinstance(error, RequestValidationError)
    detail = [
        {"loc": list(item["loc"]), "msg": item["msg"], "type": item["type"]}
        for item in error.errors()
    ]
    return _problem(request, 422, detail, {})


def _problem(request: Request, status: int, detail: Any, headers: dict[str, str]) -> Response:
    headers = {"Cache-Control": "no-store", **headers}
    if request.url.path.rstrip("/").endswith("legacy"):
        # The form of RFC 9457, which uv prints.
        body = {"type": "about:blank", "title": f"HTTP {status}", "status": status}
        content = orjson.dumps({**body, "detail": detail})
        return Response(content, status, headers, media_type="application/problem+json")
    return JSONResponse({"detail": detail}, status, headers)
