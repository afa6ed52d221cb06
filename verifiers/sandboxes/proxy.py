"""The only way out of a sandbox: an HTTP proxy outside, which allows listed domains or the public internet.

The proxy decides by name, resolves the name itself, and connects to the address that it has checked. Neither a name
that points to a private address nor a name that changes its address (DNS rebinding) can therefore reach this machine
or its network. The proxy supports CONNECT (for TLS and any other protocol) and plain `http://` requests. All data from
the sandbox is treated as hostile.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import resource
import socket
import weakref
from collections.abc import Awaitable, Callable
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

from verifiers.sandboxes.spec import ProxyNetwork

MAX_HEAD_BYTES = 16 << 10
HEAD_TIMEOUT_S = 15.0
CONNECT_TIMEOUT_S = 15.0
IDLE_TIMEOUT_S = 300.0
MAX_CONNECTIONS = 128
FULL_PAUSE_S = 0.05
_FOR_WANT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_COPY_BYTES = 64 << 10

Policy = ProxyNetwork | Literal["full"]
"""The allowed destinations. "full": every public address, on every port."""
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolve = Callable[[str, int], Awaitable[list[str]]]
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


class Refused(Exception):
    """A refused request: (HTTP status, reason for the user)."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(status, reason)
        self.status = status
        self.reason = reason


class ProxyRequest(NamedTuple):
    """The request of a client inside."""

    host: str
    port: int
    forwarded_head: bytes | None
    """Data to send first. None for CONNECT, where the client sends first after our response."""


def is_allowed_name(policy: ProxyNetwork, host: str) -> bool:
    """Whether the list contains a host name, itself or by a wildcard."""
    host = host.lower().rstrip(".")
    return any(
        host == allowed or (allowed.startswith("*.") and host.endswith(allowed[1:]))
        for allowed in policy.allow
    )


def is_public(address: Address) -> bool:
    """Whether an address belongs to the public internet. Checks embedded addresses too."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return is_public(address.ipv4_mapped)
        if address.sixtofour is not None:
            return is_public(address.sixtofour)
        if address in _NAT64:
            return is_public(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
        if address.teredo is not None:
            return False
    return address.is_global and not address.is_multicast and not address.is_reserved


def is_own(address: Address) -> bool:
    """Whether this machine itself has the address. The address may be public."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((str(address), 0))
        except OSError:
            return False
    return True


def parse_request(head: bytes) -> ProxyRequest:
    """Parse the head of an HTTP request, including the empty line. Raises Refused."""
    try:
        first, *lines = head.decode("latin-1").split("\r\n")
        method, target, version = first.split(" ")
    except ValueError:
        raise Refused("400 Bad Request", "this is not an HTTP request") from None
    if not version.startswith("HTTP/1."):
        raise Refused("400 Bad Request", f"{version!r} is not HTTP/1")
    if any(ord(letter) < 33 or ord(letter) == 127 for letter in method + target):
        raise Refused("400 Bad Request", "control characters in the request line")
    try:
        parts = urlsplit(f"//{target}" if method == "CONNECT" else target)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise Refused("400 Bad Request", f"{target[:200]!r} is not an address") from None
    if not host or (method == "CONNECT" and port is None):
        raise Refused("400 Bad Request", f"{target[:200]!r} has no host or port")
    if method == "CONNECT":
        return ProxyRequest(host, port or 443, None)
    if parts.scheme != "http":
        raise Refused("400 Bad Request", f"{parts.scheme!r} requests need CONNECT")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    kept = [line for line in lines if line and not _is_replaced(line)]
    named = f"[{host}]" if ":" in host else host
    host_line = f"Host: {named}" + (f":{port}" if port else "")
    # One request per connection, because the next request could name another host.
    text = "\r\n".join([f"{method} {path} {version}", host_line, *kept, "Connection: close"])
    return ProxyRequest(host, port or 80, (text + "\r\n\r\n").encode("latin-1"))


def _is_replaced(header_line: str) -> bool:
    name = header_line.partition(":")[0].strip().lower()
    return name in ("host", "connection", "keep-alive", "upgrade") or name.startswith("proxy-")


async def system_resolve(host: str, port: int) -> list[str]:
    """Return the addresses of a name, from this machine's resolver."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


async def checked_addresses(
    policy: Policy, host: str, port: int, resolve: Resolve = system_resolve
) -> list[str]:
    """Return the allowed addresses for a request. Raises Refused."""
    if isinstance(policy, ProxyNetwork):
        if not is_allowed_name(policy, host):
            allowed = ", ".join(policy.allow) or "nothing"
            raise Refused("403 Forbidden", f"{host} is not on the list of this sandbox ({allowed})")
        if port not in policy.ports:
            ports = ", ".join(map(str, policy.ports))
            raise Refused("403 Forbidden", f"port {port} is not open for this sandbox ({ports})")
    try:
        found = await resolve(host, port)
    except (OSError, UnicodeError) as error:
        raise Refused("502 Bad Gateway", f"{host} cannot be resolved: {error}") from error
    if not isinstance(policy, ProxyNetwork) or not policy.allow_private_addresses:
        for text in found:
            address = ipaddress.ip_address(text.partition("%")[0])
            # Reject the name if any of its addresses is forbidden, to prevent DNS rebinding.
            if not is_public(address) or is_own(address):
                raise Refused("403 Forbidden", f"{host} resolves to {address}, which is not public")
    return found


_proxies: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.WeakSet[FilteringProxy]] = (
    weakref.WeakKeyDictionary()
)
"""The proxies that share the descriptors of this program."""


def max_connections() -> int:
    """Limit for all proxies together. A connection has two descriptors; half of all descriptors are reserved for
    other uses.
    """
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return (1 << 20) if soft == resource.RLIM_INFINITY else max(4, soft // 4)


class FilteringProxy:
    """Serves the clients of one sandbox on a listening socket."""

    def __init__(self, policy: Policy, *, resolve: Resolve = system_resolve) -> None:
        self._policy: Policy = policy
        self._resolve = resolve
        self._accepting: asyncio.Task[None] | None = None
        self._clients: dict[asyncio.Task[None], None] = {}
        """Connections, oldest first."""

    async def serve(self, listener: socket.socket) -> None:
        """Begin to serve. The proxy owns the listener from now on."""
        listener.setblocking(False)
        loop = asyncio.get_running_loop()
        _proxies.setdefault(loop, weakref.WeakSet()).add(self)
        self._accepting = loop.create_task(self._accept(listener), name="proxy of a sandbox")

    def close(self) -> None:
        """Stop, and close every connection. Idempotent."""
        tasks = [*self._clients, *([self._accepting] if self._accepting else [])]
        with contextlib.suppress(RuntimeError):  # their loop is closed, and they ended with it
            for task in tasks:
                task.cancel()

    async def closed(self) -> None:
        """Wait until every connection is closed."""
        tasks = [*self._clients, *([self._accepting] if self._accepting else [])]
        if tasks:
            await asyncio.wait(tasks)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                await self._until_there_is_room()
                try:
                    client, _ = await loop.sock_accept(listener)
                except OSError as error:
                    if error.errno not in _FOR_WANT_OF_DESCRIPTORS:
                        raise
                    await asyncio.sleep(FULL_PAUSE_S)  # clients wait in the queue of the listener
                    continue
                task = loop.create_task(self._serve_socket(client))
                self._clients[task] = None
                task.add_done_callback(lambda ended: self._clients.pop(ended, None))
        finally:
            _proxies[loop].discard(self)
            listener.close()

    async def _until_there_is_room(self) -> None:
        """Wait for a connection to end, unless this sandbox has fewer than its share of connections.

        If the other sandboxes use up the rest, close the oldest connection of the sandbox with the most
        connections.
        """
        while True:
            proxies = _proxies[asyncio.get_running_loop()]
            at_most = max_connections()
            share = max(1, at_most // max(1, len(proxies)))
            own = len(self._clients)
            if sum(len(proxy._clients) for proxy in proxies) < at_most and own < MAX_CONNECTIONS:
                return
            if own < min(share, MAX_CONNECTIONS):
                greedy = max(proxies, key=lambda proxy: len(proxy._clients))
                if len(greedy._clients) > share:
                    next(iter(greedy._clients)).cancel()
            await asyncio.sleep(FULL_PAUSE_S)

    async def _serve_socket(self, client: socket.socket) -> None:
        try:
            reader, writer = await asyncio.open_connection(sock=client, limit=MAX_HEAD_BYTES)
        except BaseException:
            client.close()
            raise
        await self._serve_client(reader, writer)

    async def _serve_client(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            try:
                async with asyncio.timeout(HEAD_TIMEOUT_S):
                    head = await reader.readuntil(b"\r\n\r\n")
                request = parse_request(head)
                upstream = await self._connect(request)
            except Refused as refusal:
                body = f"sandbox network: {refusal.reason}\n".encode("utf-8", "replace")
                answer = f"HTTP/1.1 {refusal.status}\r\nContent-Type: text/plain\r\n"
                answer += f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
                writer.write(answer.encode() + body)
                await writer.drain()
                return
            await self._relay(reader, writer, *upstream, request)
        except (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError):
            pass  # the client or the server disconnected, or sent no request: there is no recipient for an error
        finally:
            writer.transport.abort() if writer.is_closing() else writer.close()

    async def _connect(
        self, request: ProxyRequest
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        addresses = await checked_addresses(self._policy, request.host, request.port, self._resolve)
        problem: Exception = OSError("it has no address")
        for address in addresses:
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    return await asyncio.open_connection(address, request.port)
            except (OSError, TimeoutError) as error:
                problem = error
        raise Refused("502 Bad Gateway", f"{request.host} cannot be reached: {problem}")

    async def _relay(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        upstream_reader: asyncio.StreamReader,
        upstream_writer: asyncio.StreamWriter,
        request: ProxyRequest,
    ) -> None:
        try:
            if request.forwarded_head is None:
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            else:
                upstream_writer.write(request.forwarded_head)
            async with asyncio.TaskGroup() as group:
                group.create_task(_copy(reader, upstream_writer))
                group.create_task(_copy(upstream_reader, writer))
        except* (OSError, TimeoutError):
            pass  # one side has closed, so close the other side
        finally:
            upstream_writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        async with asyncio.timeout(IDLE_TIMEOUT_S):
            data = await reader.read(_COPY_BYTES)
        if not data:
            break
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
