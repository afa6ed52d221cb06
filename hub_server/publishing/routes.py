"""Publishing: the sequence of `prime env push`, the hub's own two phases, and the upload form."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidSdistFilename, parse_sdist_filename

from hub_server.access import ADDRESS, AnyCaller, HubRoute, Publishes, body_pieces
from hub_server.accounts.authorisation import Action, Principal, require_owner
from hub_server.accounts.models import Owner
from hub_server.accounts.service import owner_by_slug
from hub_server.database import utc_now
from hub_server.environments import service as environments
from hub_server.environments.names import canonical, normalized
from hub_server.environments.service import OwnedEnvironment
from hub_server.errors import BadRequest, NotFound
from hub_server.hub import Hub, HubDep, base_url_of
from hub_server.publishing.claims import Publication
from hub_server.publishing.form import UploadForm
from hub_server.publishing.intake import Announced, Arrived, check_wheel_filename
from hub_server.publishing.models import Upload
from hub_server.publishing.service import arrived as arrived_file
from hub_server.storage.service import staging_path
from verifiers.hub.wire import AnyVisibility, ArtifactRequest, FinalizeRequest, ReserveRequest

router = APIRouter(tags=["publishing"], route_class=HubRoute)


# --- the sequence of `prime env push` ---------------------------------------------------------


@router.post("/api/v1/environmentshub/{environment_id}/wheels")
async def announce_wheel(
    request: Request, hub: HubDep, caller: Publishes, environment_id: str, body: ArtifactRequest
) -> dict[str, Any]:
    """Step 2 of a push: announce the wheel and receive its upload address."""
    upload_id, url = await _announce(request, hub, caller, environment_id, "wheel", body)
    return {"data": {"wheel_id": upload_id, "upload_url": url}}


@router.post("/api/v1/environmentshub/{environment_id}/versions")
async def announce_source(
    request: Request, hub: HubDep, caller: Publishes, environment_id: str, body: ArtifactRequest
) -> dict[str, Any]:
    """Step 5 of a push: announce the source archive and receive its upload address."""
    upload_id, url = await _announce(request, hub, caller, environment_id, "source", body)
    return {"data": {"version_id": upload_id, "upload_url": url}}


async def _announce(
    request: Request,
    hub: Hub,
    caller: Principal,
    environment_id: str,
    kind: str,
    body: ArtifactRequest,
) -> tuple[str, str]:
    announced = Announced(
        kind=kind,
        filename=body.filename,
        sha256=body.sha256,
        size_bytes=body.size,
        content_hash=body.content_hash,
        semantic_version=body.semantic_version,
        runtime_hint=body.runtime_hint,
        tags=tuple(body.metadata.tags),
    )
    async with hub.database.write() as session:
        found = await environments.find_by_id(session, caller, environment_id, Action.PUBLISH)
        upload, secret = await hub.publisher.reserve(session, caller, found, announced)
    return upload.id, await _upload_url(request, hub, upload, secret)


async def _upload_url(request: Request, hub: Hub, upload: Upload, secret: str) -> str:
    direct = await hub.store.upload_url(upload.id)
    return direct or f"{base_url_of(request, hub)}/upload/{upload.id}/{secret}"


@router.put("/upload/{upload_id}/{secret}", dependencies=[ADDRESS])
async def receive(request: Request, hub: HubDep, upload_id: str, secret: str) -> dict[str, Any]:
    """Receive the bytes of an announced file. The address grants the permission."""
    await hub.publisher.receive(upload_id, secret, body_pieces(request))
    return {"received": True}


@router.post("/api/v1/environmentshub/{environment_id}/wheels/{upload_id}/finalize")
async def finalize_wheel(
    hub: HubDep, caller: Publishes, environment_id: str, upload_id: str
) -> dict[str, Any]:
    """Step 4 of a push: confirm that the wheel has arrived and is valid. It is not visible yet."""
    await hub.publisher.fetch_incoming(upload_id)
    async with hub.database.write() as session:
        _, [upload] = await hub.publisher.uploads(session, caller, [upload_id])
        if upload.environment_id != environment_id or upload.kind != "wheel":
            raise NotFound(f"Wheel {upload_id[:60]} not found.")
        arrived_file(upload)
        upload.finalized_at = upload.finalized_at or utc_now()
    return {"data": {"success": True, "wheel_id": upload_id}}


@router.post("/api/v1/environmentshub/{environment_id}/versions/{upload_id}/finalize")
async def finalize_version(
    hub: HubDep, caller: Publishes, environment_id: str, upload_id: str
) -> dict[str, Any]:
    """Step 7 of a push: publish wheel and source together as a version."""
    await hub.publisher.fetch_incoming(upload_id)
    async with hub.database.write() as session:
        found, [source] = await hub.publisher.uploads(session, caller, [upload_id])
        if source.environment_id != environment_id or source.kind != "source":
            raise NotFound(f"Version {upload_id[:60]} not found.")
        done = await hub.publisher.publish_push(session, caller, found, source)
    return {"data": _published(found, done)}


def _published(found: OwnedEnvironment, done: Publication) -> dict[str, Any]:
    return {
        "success": True,
        "version_id": done.version.id,
        "semantic_version": done.version.version,
        "environment_id": found.environment.id,
        "owner": found.owner.slug,
        "name": found.environment.name,
        "created": done.is_new,
    }


# --- the hub's own two phases -----------------------------------------------------------------


@router.post("/api/v1/hub/{owner}/{name}/reserve")
async def reserve(
    request: Request, hub: HubDep, caller: Publishes, owner: str, name: str, body: ReserveRequest
) -> dict[str, Any]:
    """Announce the files of one version. The environment is created if it does not exist."""
    answers = []
    async with hub.database.write() as session:
        found = await _environment_for(session, hub, caller, owner, name, body.visibility)
        reservations = [
            await hub.publisher.reserve(
                session,
                caller,
                found,
                Announced(f.kind, f.filename, f.sha256, f.size, tags=tuple(body.tags)),
            )
            for f in body.files
        ]
    for upload, secret in reservations:
        url = await _upload_url(request, hub, upload, secret)
        answers.append({"filename": upload.filename, "upload_id": upload.id, "upload_url": url})
    return {"data": {"environment_id": found.environment.id, "uploads": answers}}


@router.post("/api/v1/hub/{owner}/{name}/finalize")
async def finalize(
    hub: HubDep, caller: Publishes, owner: str, name: str, body: FinalizeRequest
) -> dict[str, Any]:
    """Publish the uploaded files as one version. Repeating it changes nothing."""
    for upload_id in body.upload_ids:
        await hub.publisher.fetch_incoming(upload_id)
    async with hub.database.write() as session:
        found, uploads = await hub.publisher.uploads(session, caller, body.upload_ids)
        done = await hub.publisher.publish_uploads(session, caller, found, uploads)
    return {"data": _published(found, done)}


@router.post("/api/v1/hub/validate")
async def validate(
    request: Request, hub: HubDep, caller: AnyCaller, filename: Annotated[str, Query()]
) -> dict[str, Any]:
    """Check a wheel without publishing it; the body is the wheel."""
    manifest = await hub.publisher.intake.validate(filename, body_pieces(request))
    return {"data": manifest.model_dump(mode="json", exclude={"metadata_text", "description"})}


# --- the upload form --------------------------------------------------------------------------


@router.post("/legacy/")
@router.post("/{owner}/legacy/")
async def upload_form(
    request: Request,
    hub: HubDep,
    caller: Publishes,
    owner: str | None = None,
    visibility: Annotated[AnyVisibility, Query()] = None,
) -> Response:
    """Publish one file in the form that `twine upload` and `uv publish` send."""
    # Before the body is read, so that strangers cannot make the hub store anything.
    async with hub.database.look_up() as session:
        place = await _owner_for(session, caller, owner)
    settings = hub.settings
    with staging_path(settings) as path:
        form = UploadForm(path, max(settings.max_wheel_bytes, settings.max_source_bytes))
        await form.read(request.headers.get("content-type", ""), body_pieces(request))
        arrived, name, version = await _check_form(hub, form)
    async with hub.database.write() as session:
        found, _ = await environments.get_or_create(
            session, caller, place, name, settings, visibility=visibility
        )
        if arrived.kind == "wheel":
            check_wheel_filename(found.environment, arrived.filename)
        done = await hub.publisher.claims.make(session, caller, found, [arrived], version=version)
    return Response(status_code=200, headers={"X-Hub-Created": str(done.is_new).lower()})


async def _check_form(hub: Hub, form: UploadForm) -> tuple[Arrived, str, str]:
    staged, filename = form.staged, form.filename or ""
    assert staged is not None, "read() has set it or raised"
    if (action := form.text(":action")) not in (None, "file_upload"):
        raise BadRequest(f"The action {action!r} is not offered; send file_upload.")
    digests = {
        algorithm: digest
        for algorithm in ("sha256", "blake2_256", "md5")
        if (digest := form.text(f"{algorithm}_digest"))
    }
    for field in ("name", "version"):
        if form.text(field) is None:
            raise BadRequest(f"The upload form has no field {field!r}; every client sends it.")
    if form.text("attestations"):
        raise BadRequest("Attestations cannot be verified by this hub; upload without them.")
    if filename.endswith(".whl"):
        arrived = await hub.publisher.intake.accept("wheel", filename, staged, digests)
        manifest = arrived.contents
        _check_claims(form, manifest)
        return arrived, manifest["name"], manifest["version"]
    try:
        name, version = parse_sdist_filename(filename)
    except InvalidSdistFilename as error:
        raise BadRequest(
            f"{filename[:240]!r} is neither a wheel nor an sdist (.tar.gz)."
        ) from error
    if not filename.endswith(".tar.gz"):
        raise BadRequest(f"{filename[:240]!r}: sdists must be .tar.gz files.")
    arrived = await hub.publisher.intake.accept("source", filename, staged, digests)
    return arrived, form.text("name") or name, str(version)


def _check_claims(form: UploadForm, manifest: dict[str, Any]) -> None:
    """Compare the form with METADATA, which it repeats. A difference is an error or a deception."""
    given = form.text("name")
    if given and normalized(given) != normalized(manifest["name"]):
        raise BadRequest(f"The form is for {given[:100]!r}, the wheel for {manifest['name']!r}.")
    given = form.text("version")
    if given and canonical(given) != canonical(manifest["version"]):
        raise BadRequest(f"The form says {given[:100]!r}, the wheel {manifest['version']!r}.")
    given = form.text("requires_python")
    if given and given.replace(" ", "") != (manifest["requires_python"] or "").replace(" ", ""):
        raise BadRequest(
            f"The form says requires_python {given[:100]!r}, the wheel"
            f" {manifest['requires_python']!r}."
        )
    listed = [value for value in form.fields.get("requires_dist", []) if value]
    try:
        claimed = {str(Requirement(value)) for value in listed}
    except InvalidRequirement as error:
        raise BadRequest(f"The form has a requirement that is not valid: {error}.") from error
    if listed and claimed != set(manifest["requires_dist"]):
        raise BadRequest("requires_dist of the form differs from that of the wheel.")


async def _environment_for(
    session: Any, hub: Hub, caller: Principal, owner: str, name: str, visibility: str | None
) -> OwnedEnvironment:
    place = await _owner_for(session, caller, owner)
    found, _ = await environments.get_or_create(
        session, caller, place, name, hub.settings, visibility=visibility
    )
    return found


async def _owner_for(session: Any, caller: Principal, slug: str | None) -> Owner:
    owner = await owner_by_slug(session, slug or caller.slug or "")
    if owner is None:
        raise NotFound(f"Owner {slug!r} not found.")
    require_owner(caller, Action.PUBLISH, owner.id, owner.slug)
    return owner
