"""Getting a key by a browser: the device flow (RFC 8628), or the RSA challenge of hubs without it."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import httpx

from verifiers.hub.client import HubClient, member
from verifiers.hub.errors import HubNotFound, HubRefused, HubUnavailable

DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
_Sleep = Callable[[float], Awaitable[None]]


class Invitation(NamedTuple):
    """Address and code for the person who logs in."""

    url: str
    code: str


class LoginExpired(HubRefused, TimeoutError):
    """The login was not approved before the code expired."""


class LoginDenied(HubRefused, PermissionError):
    """The person refused the login."""


async def log_in(
    hub: HubClient, invite: Callable[[Invitation], None], sleep: _Sleep = asyncio.sleep
) -> str:
    """Return a key that a person grants this client in a browser. Waits; `invite` shows the address.

    Raises LoginExpired, LoginDenied, HubError.
    """
    try:
        started = await hub.post("/oauth/device", is_repeatable=False)
    except HubNotFound:
        return await _challenge(hub, invite, sleep)
    page = str(started.get("verification_uri_complete") or member(started, "verification_uri"))
    invite(Invitation(page, str(member(started, "user_code"))))
    interval_s = float(started.get("interval", 5))
    ends_s = time.monotonic() + float(started.get("expires_in", 600))
    form = {"grant_type": DEVICE_GRANT, "device_code": str(member(started, "device_code"))}
    # Not through HubClient: the pending state is an HTTP 400, and the body is a form.
    async with httpx.AsyncClient(timeout=30.0) as http:
        while time.monotonic() < ends_s:
            await sleep(interval_s)
            try:
                answer = await http.post(f"{hub.settings.base_url}/api/v1/oauth/token", data=form)
                body = answer.json()
            except (httpx.TransportError, ValueError):
                continue  # the hub restarts; the code stays valid
            if answer.is_success:
                return str(member(body, "access_token"))
            error = body.get("error")
            if error == "slow_down":
                interval_s += 5.0
            elif error == "access_denied":
                raise LoginDenied("The login was refused in the browser.")
            elif error not in ("authorization_pending", None):
                break
    raise LoginExpired("The login was not approved in time. Run `prime login` again.")


async def _challenge(hub: HubClient, invite: Callable[[Invitation], None], sleep: _Sleep) -> str:
    """Return a key like the public `prime login`: the hub encrypts it for a key pair of this login."""
    try:
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import padding, rsa
    except ImportError as error:
        raise HubUnavailable(
            f"{hub.settings.base_url} has no device login, and the other login needs the package cryptography. Install "
            "it, or create a key on the hub's page and use `prime config set-api-key`."
        ) from error
    private_key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    public_key = private_key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    body = {"encryptionPublicKey": public_key.decode()}
    started = await hub.post("/auth_challenge/generate", body, is_repeatable=False)
    code = str(member(started, "challenge"))
    invite(Invitation(f"{hub.settings.frontend_url}/dashboard/tokens/challenge?code={code}", code))
    headers = {"Authorization": f"Bearer {member(started, 'status_auth_token')}"}
    async with httpx.AsyncClient(timeout=30.0) as http:
        while True:
            await sleep(5.0)
            try:
                answer = await http.get(
                    f"{hub.settings.base_url}/api/v1/auth_challenge/status",
                    params={"challenge": code},
                    headers=headers,
                )
                if answer.status_code == 404:
                    raise LoginExpired(
                        "The login was not approved in time. Run `prime login` again."
                    )
                result = answer.json().get("result")
            except (httpx.TransportError, ValueError):
                continue
            if result:
                mask = padding.OAEP(padding.MGF1(hashes.SHA256()), hashes.SHA256(), label=None)
                return private_key.decrypt(base64.b64decode(result), mask).decode()
