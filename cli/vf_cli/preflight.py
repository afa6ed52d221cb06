"""Before a run: can the endpoint be reached at all? A wrong port is said at once, not after ten patient retries."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from verifiers.configs import ClientConfig

CONNECT_TIMEOUT_S = 10.0
MODELS_TIMEOUT_S = 5.0
MOST_MODELS = 8


async def unreachable(config: ClientConfig) -> dict[str, str]:
    """URL → why no connection to it can be opened; endpoints behind a proxy are not tried."""
    from verifiers.clients.connect import proxy_of, resolve_client_configs

    urls = {one.api_base_url for one in resolve_client_configs(config)}
    direct = [url for url in sorted(urls) if proxy_of(url) is None]
    reasons = await asyncio.gather(*(_reason(url) for url in direct))
    return {url: reason for url, reason in zip(direct, reasons, strict=True) if reason is not None}


async def model_hint(config: ClientConfig, model: str) -> str:
    """What an endpoint that has no such model serves instead, as a sentence; "" when it does not say."""
    from difflib import get_close_matches

    import httpx

    from verifiers.clients.connect import api_key_of, resolve_client_configs

    one = resolve_client_configs(config)[0]
    key = api_key_of(one)
    headers = {**(one.extra_headers or {}), "Authorization": f"Bearer {key}", "x-api-key": key}
    try:
        async with httpx.AsyncClient(timeout=MODELS_TIMEOUT_S) as client:
            answer = await client.get(one.api_base_url.rstrip("/") + "/models", headers=headers)
            names = [str(entry["id"]) for entry in answer.json()["data"]]
    except Exception:  # noqa: BLE001 - a hint: whatever an endpoint answers, the first error is the one to show
        return ""
    if not names or model in names:
        return ""
    lower = {name.lower(): name for name in names}
    near = get_close_matches(model.lower(), lower, n=1, cutoff=0.5)
    shown = ", ".join(sorted(names)[:MOST_MODELS]) + (" …" if len(names) > MOST_MODELS else "")
    meant = f" Did you mean -m {lower[near[0]]}?" if near else ""
    return f" The endpoint serves {shown}.{meant}"


async def _reason(url: str) -> str | None:
    parts = urlsplit(url)  # an http(s) URL with a good port: `proxy_of` has refused all others
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, writer = await asyncio.open_connection(parts.hostname, port)
    except TimeoutError:
        return f"no connection within {CONNECT_TIMEOUT_S:g} s"
    except OSError as error:
        return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
    writer.close()
    return None
