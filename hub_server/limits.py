"""Rate limits per caller, and storage quotas per owner."""

import ipaddress
import time
from collections.abc import Callable

from sqlalchemy import bindparam, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from hub_server.accounts import credentials
from hub_server.accounts.credentials import token_from_header
from hub_server.environments.models import Environment
from hub_server.errors import TooLarge, TooManyRequests, Unauthorized
from hub_server.evaluations.models import Evaluation

MAX_KEYS = 50_000
ADDRESS_SHARE = 10
"""An address, which may be a whole office, and an account may send this multiple of one person's limit."""


class RateLimiter:
    """A bucket of `per_minute` requests for each key, refilled evenly. Each worker has its own limiter."""

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.per_minute = per_minute
        self._clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}

    def take(self, key: str) -> int:
        """Take one request from the key's bucket and return how many are left.

        Raises TooManyRequests with the seconds until the next request when the bucket is empty.
        """
        now = self._clock()
        level, then = self._buckets.get(key, (float(self.per_minute), now))
        level = min(float(self.per_minute), level + (now - then) * self.per_minute / 60.0)
        if level < 1.0:
            self._buckets[key] = (level, now)
            wait_s = (1.0 - level) * 60.0 / self.per_minute
            raise TooManyRequests("Too many requests; slow down.", wait_s)
        if len(self._buckets) >= MAX_KEYS and key not in self._buckets:
            # Remove the oldest half. A full bucket carries no information, so only an attack loses any.
            self._buckets = dict(list(self._buckets.items())[MAX_KEYS // 2 :])
        self._buckets[key] = (level - 1.0, now)
        return int(level - 1.0)

    def give_back(self, key: str) -> None:
        """Undo one `take`."""
        if key in self._buckets:
            level, then = self._buckets[key]
            self._buckets[key] = (min(float(self.per_minute), level + 1.0), then)


def network_of(address: str) -> str:
    """Return the unit that one customer of a network has: an IPv4 address, or the first 64 bits of an IPv6 address."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if parsed.version == 4:
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, 64), strict=False))


class CallerLimits:
    """Request limits per caller: per token once the token was verified, per address before.

    The text of the Authorization header cannot be the key, because one token can be written in many ways and anyone
    can invent tokens.
    """

    def __init__(self, per_minute: int) -> None:
        self._limiter = RateLimiter(per_minute)
        self._token_ids: dict[str, str] = {}

    def verified(self, token: str, token_id: str) -> None:
        """Count this token as a separate caller from now on."""
        if len(self._token_ids) >= MAX_KEYS:
            self._token_ids = dict(list(self._token_ids.items())[MAX_KEYS // 2 :])
        self._token_ids[credentials.fingerprint(token)] = token_id

    def take(self, header: str | None, address: str) -> int:
        """Take one request from the caller's bucket and return how many are left. Raises TooManyRequests."""
        try:
            token = token_from_header(header)
        except Unauthorized:
            token = None
        token_id = self._token_ids.get(credentials.fingerprint(token)) if token else None
        key = f"token {token_id}" if token_id else f"address {network_of(address)}"
        return self._limiter.take(key)


class LoginLimits:
    """Limits on wrong passwords per account and address; a correct password costs nothing.

    Wrong passwords from another address do not lock out the owner of the account. Guessing from many addresses is
    limited to
    `ADDRESS_SHARE` times the limit, except for addresses from which the account has logged in.
    """

    def __init__(self, per_minute: int) -> None:
        self._pairs = RateLimiter(per_minute)
        self._addresses = RateLimiter(per_minute * ADDRESS_SHARE)
        self._accounts = RateLimiter(per_minute * ADDRESS_SHARE)
        self._familiar: dict[str, None] = {}

    def start(self, address: str) -> None:
        """Count a login that begins without a password. Raises TooManyRequests."""
        self._addresses.take(f"start {network_of(address)}")

    def attempt(self, address: str, account: str) -> None:
        """Count a password that may be wrong. Raises TooManyRequests."""
        network, account, pair = self._keys(address, account)
        self._pairs.take(pair)
        self._addresses.take(network)
        if pair not in self._familiar:
            self._accounts.take(account)

    def succeeded(self, address: str, account: str) -> None:
        """Undo the attempt after a correct password, and remember the address as familiar."""
        network, account, pair = self._keys(address, account)
        self._pairs.give_back(pair)
        self._addresses.give_back(network)
        if pair not in self._familiar:
            self._accounts.give_back(account)
        if len(self._familiar) >= MAX_KEYS:
            self._familiar = dict.fromkeys(list(self._familiar)[MAX_KEYS // 2 :])
        self._familiar[pair] = None

    def _keys(self, address: str, account: str) -> tuple[str, str, str]:
        network, account = network_of(address), account.lower()[:128]
        return network, account, f"{network} {account}"


# --- quotas -------------------------------------------------------------------------------------

_OWNER = bindparam("owner_id")
_FILE_BYTES = select(func.coalesce(func.sum(Environment.stored_bytes), 0)).where(
    Environment.owner_id == _OWNER
)
_EVALUATION_BYTES = select(func.coalesce(func.sum(Evaluation.stored_bytes), 0)).where(
    Evaluation.owner_id == _OWNER
)


async def check_quota(
    session: AsyncSession, owner_id: str, slug: str, more_bytes: int, quota_bytes: int
) -> None:
    """Raise TooLarge if the owner may not store `more_bytes` of further files, samples and metadata."""
    used = 0
    for query in (_FILE_BYTES, _EVALUATION_BYTES):
        used += int(await session.scalar(query, {"owner_id": owner_id}) or 0)
    if used + more_bytes > quota_bytes:
        raise TooLarge(
            f"{slug} has used {used} of {quota_bytes} bytes; {more_bytes} more do not fit. Delete versions or"
            " evaluations, or ask the operator."
        )
