"""The viewer as an application: who may read it, the headers of every response, errors as pages.

A page is for the browser of one person on this machine. A request needs the token, which the first address contains
and a cookie then keeps, and a `Host` that the server was started for, so that no page of another site can read a run
through a name that leads to this machine. Writes need an `Origin` of the viewer itself.
"""

from __future__ import annotations

import hmac
import logging
import secrets
from collections.abc import Awaitable, Callable, Collection
from typing import Annotated
from urllib.parse import urlencode, urlsplit

from fastapi import APIRouter, FastAPI, Form, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
)
from starlette.exceptions import HTTPException

from verifiers.view.pages import Choice, StillOpening, Viewer, explain
from verifiers.view.rendering import STATIC, ServerLinks, static_file
from verifiers.view.sources import RunSource

logger = logging.getLogger(__name__)

CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": CONTENT_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
COOKIE = "vf_view"
Text = Annotated[str, Query(max_length=4000)]
Page = Annotated[int, Query(alias="page", ge=1, le=10**9)]


def create_app(source: RunSource, *, token: str | None, hosts: Collection[str]) -> FastAPI:
    """Return the application.

    `token` None means that every request may read. `hosts` are the accepted values of the header `Host`, such as
    `127.0.0.1:8080`; an empty collection accepts all.
    """
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    viewer = Viewer(source, ServerLinks())
    app.include_router(_routes(viewer))
    # Cookies of all ports of a machine are shared, so each viewer has another name.
    cookie = f"{COOKIE}_{secrets.token_hex(4)}"

    @app.middleware("http")
    async def guard(
        request: Request, call_next: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        response = _refusal(request, viewer, token, cookie, hosts)
        if response is None:
            try:
                response = await call_next(request)
            except StillOpening as waiting:
                response = page(viewer.opening(waiting.run), 202)
            except Exception as error:  # noqa: BLE001  # the one place where a failure becomes a page
                response = _failed(viewer, error)
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        return response

    async def not_found(_: Request, error: Exception) -> Response:
        status = getattr(error, "status_code", 400)
        title = {404: "Not found", 405: "Not possible"}.get(status, "This address is not valid")
        return page(viewer.problem(title, "Start from the list of runs."), status)

    app.add_exception_handler(HTTPException, not_found)
    app.add_exception_handler(RequestValidationError, not_found)
    return app


def page(html: str, status: int = 200) -> HTMLResponse:
    """Return a page; lone surrogates, which UTF-8 does not have, become question marks."""
    response = HTMLResponse(html.encode("utf-8", "replace"), status)
    response.headers.update(HEADERS)
    return response


def _failed(viewer: Viewer, error: Exception) -> Response:
    status, title, detail = explain(error)
    if status == 500:
        logger.error("A page failed", exc_info=error)
    return page(viewer.problem(title, detail), status)


def _refusal(
    request: Request, viewer: Viewer, token: str | None, cookie: str, hosts: Collection[str]
) -> Response | None:
    """Return the response to a request that may not pass, or None. A valid token in the address becomes a cookie."""
    host = request.headers.get("host", "")
    if hosts and host.lower() not in hosts:
        return PlainTextResponse("This server does not serve this host name.", 421)
    if request.method not in ("GET", "HEAD", "POST"):
        return PlainTextResponse("Only GET and POST are possible.", 405)
    if request.method == "POST":
        origin = request.headers.get("origin", "")
        if urlsplit(origin).netloc.lower() != host.lower():
            return PlainTextResponse("Notes are accepted from pages of this viewer only.", 403)
    if token is None or request.url.path.startswith("/static/"):
        return None
    given = request.query_params.get("token")
    if given is not None and hmac.compare_digest(given.encode(), token.encode()):
        query = [
            (name, value) for name, value in request.query_params.multi_items() if name != "token"
        ]
        path = request.url.path if not request.url.path.startswith("//") else "/"
        response = RedirectResponse(path + (f"?{urlencode(query)}" if query else ""), 303)
        response.set_cookie(cookie, token, httponly=True, samesite="strict", path="/")
        return response
    kept = request.cookies.get(cookie, "")
    if hmac.compare_digest(kept.encode(), token.encode()):
        return None
    detail = "Open the address that vf-view printed; it contains the token of this viewer."
    return page(viewer.problem("A token is needed", detail), 401)


def _routes(viewer: Viewer) -> APIRouter:
    """Return the routes. They read files, so FastAPI runs them in threads."""
    router = APIRouter()

    @router.get("/static/{name}")
    def static(name: str) -> Response:
        if name not in STATIC:
            raise HTTPException(404)
        return Response(static_file(name), media_type=STATIC[name])

    @router.get("/")
    def runs(q: Text = "", sort: Text = "", label: Text = "") -> Response:
        return page(viewer.runs(q, sort, label))

    @router.get("/runs/{key}")
    def run(key: str) -> Response:
        return page(viewer.run(key))

    @router.get("/runs/{key}/version")
    def version(key: str) -> Response:
        return JSONResponse(viewer.version(key))

    @router.get("/runs/{key}/rollouts")
    def rollouts(
        key: str,
        filter: Text = "",
        search: Text = "",
        sort: Text = "",
        page_: Page = 1,
    ) -> Response:
        return page(viewer.rollouts(key, Choice(filter, search, sort), page_))

    @router.get("/runs/{key}/examples")
    def examples(key: str, sort: Text = "", page_: Page = 1) -> Response:
        return page(viewer.examples(key, sort, page_))

    @router.get("/runs/{key}/examples/{code}")
    def example(key: str, code: int) -> Response:
        return page(viewer.example(key, code))

    @router.get("/runs/{key}/rollouts/{row}")
    def rollout(
        key: str,
        row: int,
        filter: Text = "",
        search: Text = "",
        sort: Text = "",
        page_: Page = 1,
    ) -> Response:
        return page(viewer.rollout(key, row, Choice(filter, search, sort), page_))

    @router.get("/runs/{key}/rollouts/{row}/raw")
    def raw(key: str, row: int) -> Response:
        return _plain(viewer.raw(key, row))

    @router.get("/runs/{key}/rollouts/{row}/messages/{number}")
    def message(key: str, row: int, number: int) -> Response:
        return _plain(viewer.message_text(key, row, number).encode("utf-8", "replace"))

    @router.get("/compare")
    def compare(
        run: Annotated[list[str], Query(max_length=20)] = [],  # noqa: B006  # FastAPI copies defaults
        example: Text = "",
        rollout: int = 0,
        page_: Page = 1,
    ) -> Response:
        if example:
            return page(viewer.compared_example(run, example, rollout))
        return page(viewer.compare(run, page_))

    @router.post("/runs/{key}/note")
    def note(
        key: str,
        labels: Annotated[str, Form()] = "",
        text: Annotated[str, Form()] = "",
        row: Annotated[int | None, Form()] = None,
    ) -> Response:
        return RedirectResponse(viewer.write_note(key, row, labels, text), 303)

    return router


def _plain(content: bytes) -> Response:
    """Return text that a browser shows and never interprets."""
    return Response(
        content,
        media_type="text/plain; charset=utf-8",
        headers={"Content-Security-Policy": "default-src 'none'; sandbox"},
    )


def new_token() -> str:
    """Return a token that cannot be guessed."""
    return secrets.token_urlsafe(16)
