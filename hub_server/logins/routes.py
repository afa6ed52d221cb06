"""Ways to a token over HTTP."""

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from hub_server.access import PUBLIC, ChangesCaller, HubRoute
from hub_server.accounts.routes import token_answer
from hub_server.errors import NotFound, Unauthorized
from hub_server.hub import HubDep, base_url_of
from hub_server.logins import service
from hub_server.logins.service import CHALLENGE_LIFETIME, POLL_INTERVAL_S
from verifiers.hub.wire import ApproveRequest, ChallengeRequest, PasswordLogin, SetupRequest

router = APIRouter(prefix="/api/v1", tags=["login"], route_class=HubRoute)
DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"


def address_of(request: Request) -> str:
    """Return the address that a request comes from."""
    return request.client.host if request.client else "-"


@router.post("/setup", dependencies=[PUBLIC])
async def setup(request: Request, hub: HubDep, body: SetupRequest) -> dict[str, Any]:
    """Create the first administrator with the token that the server printed."""
    hub.logins.attempt(address_of(request), "setup")
    async with hub.database.write() as session:
        new = await service.use_setup_token(session, body)
    return {"data": token_answer(new.row, new.text)}


@router.post("/login", dependencies=[PUBLIC])
async def log_in(request: Request, hub: HubDep, body: PasswordLogin) -> dict[str, Any]:
    """Return a session token for a name and password."""
    address = address_of(request)
    hub.logins.attempt(address, body.username)
    new = await service.log_in(hub.database, body)
    hub.logins.succeeded(address, body.username)
    return {"data": token_answer(new.row, new.text)}


@router.post("/auth_challenge/generate", dependencies=[PUBLIC])
async def start_challenge(request: Request, hub: HubDep, body: ChallengeRequest) -> dict[str, Any]:
    """Begin `prime login`: return a code for the browser and a secret for polling."""
    hub.logins.start(address_of(request))  # a limit per address: anyone could use up a common one
    async with hub.database.write() as session:
        challenge = await service.start_challenge(
            session,
            kind="rsa",
            public_key_pem=body.encryptionPublicKey,
            client=request.headers.get("user-agent", ""),
            address=address_of(request),
        )
    return {"challenge": challenge.code, "status_auth_token": challenge.secret}


@router.get("/auth_challenge/status", dependencies=[PUBLIC])
async def challenge_status(request: Request, hub: HubDep, challenge: str) -> dict[str, Any]:
    """Return the token, encrypted with the client's key, after a person has approved; null before."""
    scheme, _, secret = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer":
        raise Unauthorized("Poll with the status_auth_token.")
    async with hub.database.write() as session:
        answer = await service.poll(session, secret.strip(), challenge)
    if answer.state == "denied":
        raise NotFound("This login was refused in the browser.")
    return {"result": answer.encrypted_token}


@router.post("/auth_challenge/approve")
async def approve(hub: HubDep, caller: ChangesCaller, body: ApproveRequest) -> dict[str, Any]:
    """Approve the client that shows this code. It then acts for the caller."""
    async with hub.database.write() as session:
        await service.approve(session, caller, body.code)
    return {"data": {"success": True}}


@router.post("/oauth/device", dependencies=[PUBLIC])
async def start_device(request: Request, hub: HubDep) -> dict[str, Any]:
    """Begin the device flow (RFC 8628)."""
    hub.logins.start(address_of(request))
    async with hub.database.write() as session:
        challenge = await service.start_challenge(
            session,
            kind="device",
            client=request.headers.get("user-agent", ""),
            address=address_of(request),
        )
    page = f"{base_url_of(request, hub)}/dashboard/tokens/challenge"
    return {
        "device_code": challenge.secret,
        "user_code": challenge.code,
        "verification_uri": page,
        "verification_uri_complete": f"{page}?code={challenge.code}",
        "expires_in": int(CHALLENGE_LIFETIME.total_seconds()),
        "interval": POLL_INTERVAL_S,
    }


@router.post("/oauth/token", response_class=JSONResponse, dependencies=[PUBLIC])
async def device_token(request: Request, hub: HubDep) -> Response:
    """Poll for the token of the device flow."""
    form = await request.form(max_fields=20)
    grant, code = form.get("grant_type"), form.get("device_code")
    if grant != DEVICE_GRANT:
        return _oauth_error("unsupported_grant_type", f"Send grant_type={DEVICE_GRANT}.")
    if not isinstance(code, str) or not code:
        return _oauth_error("invalid_request", "Send device_code, as /oauth/device gave it.")
    try:
        async with hub.database.write() as session:
            answer = await service.poll(session, code)
    except NotFound:
        return _oauth_error("expired_token")
    if answer.state == "pending":
        return _oauth_error("authorization_pending")
    if answer.state == "slow_down":
        return _oauth_error("slow_down")
    if answer.state == "denied":
        return _oauth_error("access_denied", "The person refused the login in the browser.")
    body = {"access_token": answer.token, "token_type": "Bearer"}
    return JSONResponse(body, headers={"Cache-Control": "no-store"})


def _oauth_error(code: str, description: str | None = None) -> Response:
    """Return an error by its name in RFC 6749 §5.2 or RFC 8628 §3.5."""
    body = {"error": code} | ({"error_description": description} if description else {})
    return JSONResponse(body, 400, headers={"Cache-Control": "no-store"})
