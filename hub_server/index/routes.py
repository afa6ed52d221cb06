"""The package index and the files behind it."""

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response

from hub_server.access import PUBLIC, HubRoute, ReadsEnvironment
from hub_server.accounts.authorisation import Principal
from hub_server.environments.answers import REFUSED
from hub_server.environments.dependencies import LIBRARY
from hub_server.environments.names import is_reserved, normalized
from hub_server.errors import Conflict, Forbidden, NotFound, Unauthorized
from hub_server.hub import HubDep, base_url_of
from hub_server.index import service
from hub_server.index.cache import CachedFile, CachedPage
from hub_server.index.sending import Receive, Scope, Send, send_file, send_page
from hub_server.index.service import Download, IndexPage

router = APIRouter(tags=["index"], route_class=HubRoute)


class Sent(Response):
    """A response that one of the functions of `sending` sends."""

    def __init__(self, send_it: Callable[[Scope, dict[bytes, bytes], Send], Awaitable[None]]):
        super().__init__()
        self._send_it = send_it

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        await self._send_it(scope, dict(scope["headers"]), send)


@router.get("/{owner}/simple/", response_class=Response)
@router.head("/{owner}/simple/", response_class=Response)
async def owner_index(
    request: Request, hub: HubDep, caller: ReadsEnvironment, owner: str
) -> Response:
    """Return the projects of an owner."""
    generation = hub.pages.generation
    async with hub.database.read() as session:
        found = await service.owner_root(session, caller, owner)
    return _page(request, hub, found, generation)


@router.get("/{owner}/simple/{project}/", response_class=Response)
@router.head("/{owner}/simple/{project}/", response_class=Response)
async def owner_project(
    request: Request, hub: HubDep, caller: ReadsEnvironment, owner: str, project: str
) -> Response:
    """Return the files of one of an owner's projects.

    A 404 is sent only to callers who may read everything of the owner, and for names that no environment can have.
    All other
    callers receive 401 (403 with a token) for missing and hidden projects alike: a resolver stops there. After a
    404 the
    resolver would ask the next index for a project of the same name.
    """
    if project != normalized(project):
        return RedirectResponse(f"../{normalized(project)}/", 301)
    generation = hub.pages.generation
    async with hub.database.read() as session:
        try:
            found = await service.project(session, caller, owner, project, up="../../../")
        except NotFound:
            if project == LIBRARY:
                found = await service.project(session, caller, LIBRARY, LIBRARY, up="../../../")
                return _page(request, hub, found._replace(is_public=False), generation)
            if is_reserved(project) or await service.reads_all_of(session, caller, owner, project):
                raise
            raise _refused(caller) from None
    return _page(request, hub, found, generation)


@router.get("/{owner}/{name}/simple/", response_class=Response)
@router.head("/{owner}/{name}/simple/", response_class=Response)
async def environment_index(
    request: Request, hub: HubDep, caller: ReadsEnvironment, owner: str, name: str
) -> Response:
    """Return the one project of an environment's own index."""
    generation = hub.pages.generation
    found = await _own_page(hub, caller, owner, name)
    root = service.root_page([normalized(name)], found.page.serial)
    return _page(request, hub, found._replace(page=root), generation)


@router.get("/{owner}/{name}/simple/{project}/", response_class=Response)
@router.head("/{owner}/{name}/simple/{project}/", response_class=Response)
async def environment_project(
    request: Request, hub: HubDep, caller: ReadsEnvironment, owner: str, name: str, project: str
) -> Response:
    """Return the files of an environment, and of the environments of this hub that it requires.

    Without permission every name is answered alike, with 401 (or 403 to an authenticated caller): a resolver stops
    there.
    After a 404 the resolver would ask the next index for a project of the same name.
    """
    if project != normalized(project):
        return RedirectResponse(f"../{normalized(project)}/", 301)
    generation = hub.pages.generation
    found = await _own_page(hub, caller, owner, name)
    if project == normalized(name):
        return _page(request, hub, found, generation)
    base_url = base_url_of(request, hub)
    async with hub.database.read() as session:
        found = await service.dependency(session, caller, (owner, name), project, base_url)
    return _page(request, hub, found._replace(is_public=False), generation)


async def _own_page(hub: HubDep, caller: ReadsEnvironment, owner: str, name: str) -> IndexPage:
    try:
        async with hub.database.read() as session:
            return await service.project(session, caller, owner, name, up="../../../../")
    except NotFound:
        raise _refused(caller) from None


def _refused(caller: Principal) -> Forbidden | Unauthorized:
    if caller.is_known:
        return Forbidden("This index does not exist or is not yours.")
    return Unauthorized("This index does not exist or needs an API token.")


def _page(request: Request, hub: HubDep, found: IndexPage, generation: object) -> Response:
    if found.is_public and hub.settings.anonymous_read:
        hub.pages.put(request.url.path, CachedPage(found.owner, found.page), generation)

    async def send_it(scope: Scope, headers: dict[bytes, bytes], send: Send) -> None:
        await send_page(scope, headers, send, found.page, is_public=found.is_public)

    return Sent(send_it)


@router.get("/files/{owner}/{name}/{sha256}/{filename}", response_class=Response)
@router.head("/files/{owner}/{name}/{sha256}/{filename}", response_class=Response)
async def download(
    request: Request,
    hub: HubDep,
    caller: ReadsEnvironment,
    owner: str,
    name: str,
    sha256: str,
    filename: str,
) -> Response:
    """Return a wheel, its `.metadata`, or a source archive."""
    generation = hub.pages.generation
    try:
        async with hub.database.read() as session:
            found = await service.find_file(session, caller, owner, name, sha256, filename)
    except NotFound as error:
        copy = await _pinned_copy(request, hub, caller, (owner, name), sha256, filename)
        if copy is not None:
            return copy
        if caller.is_known:
            raise
        raise Unauthorized("This file does not exist or needs an API token.") from error
    environment, file = found.found.environment, found.file
    is_download = found.metadata is None
    if is_download and request.method == "GET":
        hub.usage.downloads[environment.id] += 1
        # Installers follow redirects. Old clients that download source archives do not.
        if file.kind == "wheel":
            address = await hub.store.download_url(file.sha256, file.filename)
            if address is not None:
                return RedirectResponse(address, 302, headers={"Cache-Control": "no-store"})
    is_public = environment.visibility == "PUBLIC" and environment.is_open
    is_public = is_public and hub.settings.anonymous_read
    entry = _entry(hub, found, is_download)
    if is_public and (entry.path is not None or entry.content is not None):
        hub.pages.put(request.url.path, entry, generation)

    async def send_it(scope: Scope, headers: dict[bytes, bytes], send: Send) -> None:
        def pieces(start: int, end: int) -> Any:
            return hub.store.read(file.sha256, start, end)

        await send_file(scope, headers, send, entry, pieces, is_public=is_public)

    return Sent(send_it)


async def _pinned_copy(
    request: Request,
    hub: HubDep,
    caller: ReadsEnvironment,
    place: tuple[str, str],
    sha256: str,
    filename: str,
) -> Response | None:
    """Return the copy of a wheel with the addresses of its requirements, or None if another file is requested.

    Raises Conflict with the reason at the address of a wheel that cannot be installed.
    """
    base_url = base_url_of(request, hub)
    async with hub.database.read() as session:
        wheel = await service.wheel_to_pin(session, caller, place, filename, base_url)
    if wheel is None:
        return None
    digest = await hub.pinned.sha256(wheel.file, wheel.lines) if wheel.lines else None
    if sha256 == REFUSED and digest is None and wheel.lines:
        raise Conflict(
            f"{filename} is too large to be changed for installers that accept one address. Install it with the `prime`"
            " command of this hub's library, or with the lines of `prime env info`."
        )
    if digest != sha256:
        return None
    content = await hub.pinned.content(wheel.file, wheel.lines)
    if request.method == "GET":
        hub.usage.downloads[wheel.found.environment.id] += 1
    entry = CachedFile(
        owner=wheel.found.owner.slug,
        environment_id=wheel.found.environment.id,
        sha256=sha256,
        size_bytes=len(content),
        content=content,
        path=None,
        is_download=True,
    )

    async def send_it(scope: Scope, headers: dict[bytes, bytes], send: Send) -> None:
        await send_file(scope, headers, send, entry, None, is_public=False)

    return Sent(send_it)


def _entry(hub: HubDep, found: Download, is_download: bool) -> CachedFile:
    file = found.file
    return CachedFile(
        owner=found.found.owner.slug,
        environment_id=found.found.environment.id,
        sha256=file.sha256 if found.metadata is None else file.metadata_sha256 or "",
        size_bytes=file.size_bytes if found.metadata is None else len(found.metadata),
        content=found.metadata,
        path=hub.store.local_path(file.sha256) if found.metadata is None else None,
        is_download=is_download,
    )


@router.get("/{owner}/simple", include_in_schema=False, dependencies=[PUBLIC])
@router.get("/{owner}/simple/{project}", include_in_schema=False, dependencies=[PUBLIC])
@router.get("/{owner}/{name}/simple/{project}", include_in_schema=False, dependencies=[PUBLIC])
async def with_slash(request: Request) -> Response:
    """Redirect to the address with a trailing slash, on which the relative addresses of the page depend."""
    return RedirectResponse(request.url.path.rpartition("/")[2] + "/", 301)
