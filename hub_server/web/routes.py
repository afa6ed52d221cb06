"""The page on which a person lets a client in, and where links of clients lead."""

from html import escape
from typing import Annotated

from fastapi import APIRouter, Form, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from hub_server.accounts import service as accounts
from hub_server.errors import HubError
from hub_server.hub import HubDep
from hub_server.logins import service
from hub_server.logins.routes import limit_logins
from verifiers.hub.wire import PasswordLogin

router = APIRouter(include_in_schema=False)

_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title></head>
<body><h1>{title}</h1>{body}</body></html>
"""


def _page(title: str, body: str, status: int = 200) -> HTMLResponse:
    """A page; the body is HTML whose variable parts are escaped by the caller."""
    text = _PAGE.format(title=escape(title), body=body)
    return HTMLResponse(text, status, headers={"Cache-Control": "no-store"})


@router.get("/dashboard/tokens/challenge")
async def challenge(hub: HubDep, code: str = "") -> Response:
    """Ask the person for name and password, showing who is waiting."""
    waiting = "Type the code that your terminal shows."
    if code:
        try:
            async with hub.database.read() as session:
                row = await service.waiting_challenge(session, code)
        except HubError as error:
            return _page("Log in a client", f"<p>{escape(error.detail)}</p>", 404)
        client, address = escape(row.client or "A client"), escape(row.address)
        waiting = f"<b>{client}</b> at {address} asks to act in your name, with all your rights."
    return _page(
        "Log in a client",
        f'<p>{waiting}</p><form method="post"><p>Code '
        f'<input name="code" value="{escape(code[:64])}" required autocomplete="off"></p>'
        '<p>Username <input name="username" required autocomplete="username"></p>'
        '<p>Password <input name="password" type="password" required'
        ' autocomplete="current-password"></p><p>Continue only if you started this login and the'
        " code is the one in your terminal.</p><button>Let it in</button></form>",
    )


@router.post("/dashboard/tokens/challenge")
async def approve(
    request: Request,
    hub: HubDep,
    code: Annotated[str, Form(max_length=64)],
    username: Annotated[str, Form(max_length=128)],
    password: Annotated[str, Form(max_length=1024)],
) -> Response:
    """Check name and password, and let the client in. There is no session that could be forged."""
    try:
        limit_logins(request, hub, username)
        wanted = PasswordLogin(username=username, password=password)
        new = await service.log_in(hub.database, wanted)
        async with hub.database.write() as session:
            caller = await accounts.authenticate(session, new.text)
            await service.approve(session, caller, code)
            await accounts.revoke_token(session, caller, new.row.id)
    except HubError as error:
        return _page("Log in a client", f"<p>{escape(error.detail)}</p>", error.status)
    return _page("Log in a client", "<p>Done. You can go back to your terminal.</p>")


@router.get("/dashboard/environments/{owner}/{name}")
async def environment(owner: str, name: str) -> Response:
    """The address that clients print after a push."""
    return RedirectResponse(f"/api/v1/environmentshub/{owner}/{name}/@latest", 302)


@router.get("/dashboard/evaluations/{evaluation_id}")
async def evaluation(evaluation_id: str) -> Response:
    """The address that clients print after an evaluation."""
    return RedirectResponse(f"/api/v1/evaluations/{evaluation_id}", 302)
