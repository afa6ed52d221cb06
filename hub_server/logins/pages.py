"""The page on which a person approves a login, and redirects for links that clients print."""

from html import escape
from typing import Annotated, Literal

from fastapi import APIRouter, Form, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from hub_server.access import PUBLIC, HubRoute
from hub_server.accounts.authorisation import Principal
from hub_server.errors import HubFailure
from hub_server.hub import Hub, HubDep
from hub_server.logins import service
from hub_server.logins.routes import address_of
from verifiers.hub.wire import PasswordLogin

router = APIRouter(include_in_schema=False, route_class=HubRoute)

_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title></head>
<body><h1>{title}</h1>{body}</body></html>
"""
_FORM = """<p>{waiting}</p><form method="post">
<p><label>Code <input name="code" value="{code}" required autocomplete="off"></label></p>
<p><label>Username <input name="username" value="{username}" required autocomplete="username"></label></p>
<p><label>Password <input name="password" type="password" required autocomplete="current-password"></label></p>
<p>Continue only if you started this login and the code is the one in your terminal.</p>
<p><button name="answer" value="approve">Approve</button>
<button name="answer" value="deny" formnovalidate>Refuse</button></p></form>
"""


def _page(body: str, status: int = 200) -> HTMLResponse:
    """Return a page. `body` is HTML whose variable parts the caller has escaped."""
    text = _PAGE.format(title="Log in a client", body=body)
    return HTMLResponse(text, status, headers={"Cache-Control": "no-store"})


async def _form(
    hub: Hub, code: str, username: str = "", error: HubFailure | None = None
) -> Response:
    """Return the page with the waiting client and the form for name and password. An earlier error is shown above."""
    waiting, row = "Type the code that your terminal shows.", None
    if code:
        try:
            async with hub.database.read() as session:
                row = await service.waiting_challenge(session, code)
        except HubFailure as unknown:
            error, code = error or unknown, ""
    if row is not None:
        client, address = escape(row.client or "A client"), escape(row.address)
        waiting = f"<b>{client}</b> at {address} asks to act in your name, with all your rights."
    alert = f'<p role="alert"><b>{escape(error.detail)}</b></p>' if error else ""
    form = _FORM.format(waiting=waiting, code=escape(code[:64]), username=escape(username))
    return _page(alert + form, error.status if error else 200)


@router.get("/dashboard/tokens/challenge", dependencies=[PUBLIC])
async def challenge(hub: HubDep, code: str = "") -> Response:
    """Show the waiting client and ask for name and password."""
    return await _form(hub, code)


@router.post("/dashboard/tokens/challenge", dependencies=[PUBLIC])
async def decide(
    request: Request,
    hub: HubDep,
    code: Annotated[str, Form(max_length=64)] = "",
    username: Annotated[str, Form(max_length=128)] = "",
    password: Annotated[str, Form(max_length=1024)] = "",
    answer: Annotated[Literal["approve", "deny"], Form()] = "approve",
) -> Response:
    """Approve the login after checking name and password, or refuse it, for which the code is enough.

    The page has no session that could be forged.
    """
    try:
        if answer == "deny":
            hub.logins.start(address_of(request))
            async with hub.database.write() as session:
                await service.deny(session, code)
            return _page("<p>Refused. The client receives no token.</p>")
        address = address_of(request)
        hub.logins.attempt(address, username)
        requested = PasswordLogin(username=username, password=password)
        person = await service.person_behind(hub.database, requested)
        hub.logins.succeeded(address, username)
        async with hub.database.write() as session:
            await service.approve(session, Principal(user_id=person.id), code)
    except HubFailure as error:
        return await _form(hub, code, username, error)
    return _page("<p>Done. You can go back to your terminal.</p>")


@router.get("/dashboard/environments/{owner}/{name}", dependencies=[PUBLIC])
async def environment(owner: str, name: str) -> Response:
    """Redirect the address that clients print after a push."""
    return RedirectResponse(f"/api/v1/environmentshub/{owner}/{name}/@latest", 302)


@router.get("/dashboard/evaluations/{evaluation_id}", dependencies=[PUBLIC])
async def evaluation(evaluation_id: str) -> Response:
    """Redirect the address that clients print after an evaluation."""
    return RedirectResponse(f"/api/v1/evaluations/{evaluation_id}", 302)
