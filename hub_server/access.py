"""Access control: every route is a `HubRoute`, declares the access it needs, and is checked here first.

A route declares its access by the type of its `caller` parameter, or by `dependencies=[PUBLIC]`. A route without a
declaration cannot be defined. The caller is authenticated and admitted before the body of the request is read. JSON
bodies are parsed and checked by `stored`.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Annotated, Any

from fastapi import Depends, HTTPException, Request
from fastapi.dependencies.models import Dependant
from fastapi.responses import Response
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect

from hub_server import stored
from hub_server.accounts import service as accounts
from hub_server.accounts.authorisation import (
    ANONYMOUS,
    About,
    Access,
    Action,
    Principal,
    admit,
)
from hub_server.accounts.credentials import token_from_header
from hub_server.database import utc_now
from hub_server.errors import BadRequest, HubFailure
from hub_server.hub import Hub


async def caller_of(request: Request, hub: Hub) -> Principal:
    """Return the caller of the request. Raises Unauthorized for credentials that are not valid."""
    token = token_from_header(request.headers.get("authorization"))
    if token is None:
        if not hub.settings.anonymous_read:
            return Principal(sees_public=False)
        return ANONYMOUS
    async with hub.database.look_up() as session:
        caller = await accounts.authenticate(session, token)
    if caller.token_id is not None:
        hub.usage.tokens[caller.token_id] = utc_now()
        hub.limits.verified(token, caller.token_id)
    return caller


class AccessGate:
    """The access that a route declares, as the dependency that supplies the route's caller."""

    def __init__(self, action: Action | None, about: About, *, is_open: bool = False) -> None:
        self.access = Access(action, about, is_open)

    async def __call__(self, request: Request) -> Principal:
        """Return the caller, whom the route admitted before it read the body."""
        return request.state.caller

    async def admitted(self, request: Request) -> Principal:
        """Return the caller of the request. Raises Unauthorized, Forbidden."""
        if self.access.about in (About.PUBLIC, About.ADDRESS):
            return ANONYMOUS
        caller = await caller_of(request, request.app.state.hub)
        admit(caller, self.access)
        return caller


class CheckedRequest(Request):
    """A request whose JSON body is checked before it is used."""

    async def json(self) -> Any:
        """Return the value of the body. Raises HTTPException 400 or 413, which FastAPI handles."""
        try:
            return stored.parse_request(await self.body())
        except HubFailure as error:
            raise HTTPException(error.status, error.detail) from error


class HubRoute(APIRoute):
    """A route that declares its access. Raises TypeError unless it declares exactly one."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        gates = _gates(self.dependant)
        if len(gates) != 1:
            raise TypeError(
                f"{path} declares {len(gates)} accesses. Declare exactly one: a `caller` of a type in"
                " hub_server.access, or dependencies=[PUBLIC]."
            )
        self.gate = gates[0]
        access = self.gate.access
        declared = {
            "action": access.action or "none",
            "about": access.about,
            "open": access.is_open,
        }
        self.openapi_extra = {**(self.openapi_extra or {}), "x-access": declared}

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler that checks the access first."""
        handle: Callable[[Request], Awaitable[Response]] = super().get_route_handler()

        async def admitted(request: Request) -> Response:
            request.state.caller = await self.gate.admitted(request)
            return await handle(CheckedRequest(request.scope, request.receive))

        return admitted


async def body_pieces(request: Request) -> AsyncIterator[bytes]:
    """Yield the body as it arrives. Raises BadRequest when the connection ends early."""
    try:
        async for piece in request.stream():
            if piece:
                yield piece
    except ClientDisconnect as error:
        raise BadRequest("The connection ended before the whole body had arrived.") from error


def _gates(dependant: Dependant) -> list[AccessGate]:
    found = [d.call for d in dependant.dependencies if isinstance(d.call, AccessGate)]
    return found + [gate for d in dependant.dependencies for gate in _gates(d)]


# --- types for routes ---------------------------------------------------------------------------

PUBLIC = Depends(AccessGate(None, About.PUBLIC))
ADDRESS = Depends(AccessGate(None, About.ADDRESS))

AnyCaller = Annotated[Principal, Depends(AccessGate(None, About.CALLER))]
ReadsCaller = Annotated[Principal, Depends(AccessGate(Action.READ, About.CALLER))]
ChangesCaller = Annotated[Principal, Depends(AccessGate(Action.ACCOUNT, About.CALLER))]

ReadsAccount = Annotated[Principal, Depends(AccessGate(Action.READ, About.ACCOUNT))]
ChangesAccount = Annotated[Principal, Depends(AccessGate(Action.ACCOUNT, About.ACCOUNT))]
OwnSecrets = Annotated[Principal, Depends(AccessGate(Action.SECRETS, About.ACCOUNT))]

ReadsEnvironment = Annotated[
    Principal, Depends(AccessGate(Action.READ, About.ENVIRONMENT, is_open=True))
]
KnownReader = Annotated[Principal, Depends(AccessGate(Action.READ, About.ENVIRONMENT))]
Publishes = Annotated[Principal, Depends(AccessGate(Action.PUBLISH, About.ENVIRONMENT))]
Manages = Annotated[Principal, Depends(AccessGate(Action.MANAGE, About.ENVIRONMENT))]
EnvironmentSecrets = Annotated[Principal, Depends(AccessGate(Action.SECRETS, About.ENVIRONMENT))]

ReadsEvaluation = Annotated[
    Principal, Depends(AccessGate(Action.READ, About.EVALUATION, is_open=True))
]
Evaluates = Annotated[Principal, Depends(AccessGate(Action.EVALUATE, About.EVALUATION))]
