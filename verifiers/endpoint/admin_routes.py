"""HTTP routes that change the server: weights, pause and resume, compatible with prime-rl and vLLM.

prime-rl: `POST /pause`, `POST /update_weights {"weight_dir"}`, `POST /resume`.
vLLM: `POST /init_weight_transfer_engine`, `/start_weight_update`, `/update_weights {"update_info"}` (any number of
times), `/finish_weight_update`. The only supported transport is a file: NCCL and CUDA handles need a GPU.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from aiohttp import web

from verifiers.endpoint.engine import PauseMode
from verifiers.endpoint.errors import RequestError, WeightsError
from verifiers.endpoint.model import SHIPPED_WEIGHTS, load_weights, prepare_weights
from verifiers.endpoint.requests import Fields, refuse, shown
from verifiers.endpoint.server import DRIVER, Handler, json_body, json_response
from verifiers.endpoint.weights import Tensors, check_tensors, read_safetensors

_VERSION_LIMIT = 2**53 - 1
"""The largest integer that every JSON reader represents exactly."""

_NO_LORA = (
    "LoRA adapters are not supported: this server runs whole weights only. "
    "Merge the adapter and send the folder to /update_weights."
)
_NO_BROADCAST = (
    "This server takes weights from a folder, not by NCCL broadcast: "
    'POST /update_weights {"weight_dir": "..."}.'
)


class WeightUpdate:
    """The update between `/start_weight_update` and `/finish_weight_update`."""

    def __init__(self) -> None:
        self.staged: Tensors | None = None
        """Tensors received so far; None while no update is in progress."""
        self.lock = asyncio.Lock()
        """Reading a file yields to other requests; two updates must not interleave."""


WEIGHT_UPDATE = web.AppKey("weight_update", WeightUpdate)
START_FOLDER = web.AppKey("start_folder", Path)


def add_admin_routes(app: web.Application, weights: Path | None) -> None:
    """Add the routes; `weights` is the folder that the server was started with."""
    app[WEIGHT_UPDATE] = WeightUpdate()
    app[START_FOLDER] = weights or SHIPPED_WEIGHTS
    router = app.router
    router.add_post("/update_weights", _update_weights)
    router.add_post("/reload_weights", _reload_weights)
    router.add_post("/start_weight_update", _start_update)
    router.add_post("/finish_weight_update", _finish_update)
    router.add_post("/init_weight_transfer_engine", _init_transfer)
    router.add_get("/weight_info", _weight_info)
    router.add_get("/get_world_size", _world_size)
    router.add_post("/pause", _pause)
    router.add_post("/resume", _resume)
    router.add_get("/is_paused", _is_paused)
    router.add_post("/abort_requests", _abort_requests)
    router.add_post("/init_broadcaster", _refusing(_NO_BROADCAST))
    for path in ("/load_lora_adapter", "/v1/load_lora_adapter", "/v1/unload_lora_adapter"):
        router.add_post(path, _refusing(_NO_LORA))


def add_closed_routes(app: web.Application) -> None:
    """Answer 403 with the reason in place of the admin routes."""
    message = (
        "The routes that change weights are off: the server listens on a non-loopback address without an API key. "
        "Start it with an API key, or with admin=True (--admin)."
    )
    for path in ("/update_weights", "/reload_weights", "/start_weight_update", "/finish_weight_update",
                 "/init_weight_transfer_engine", "/pause", "/resume", "/abort_requests"):  # fmt: skip
        app.router.add_post(path, _refusing(message, status=403))


def _refusing(message: str, *, status: int = 501) -> Handler:
    async def refuse_request(request: web.Request) -> web.Response:
        raise RequestError(
            message, status=status, kind="NotSupportedError" if status == 501 else "ForbiddenError"
        )

    return refuse_request


async def _optional_body(request: web.Request) -> Fields:
    return Fields(await json_body(request) if request.can_read_body else {})


def _version(fields: Fields, name: str) -> int | None:
    value = fields.get(name)
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    if value is None or (type(value) is int and 0 <= value <= _VERSION_LIMIT):
        return value
    raise refuse(name, value, f"a whole number from 0 to {_VERSION_LIMIT}")


async def _update_weights(request: web.Request) -> web.Response:
    fields = Fields(await json_body(request))
    update = request.app[WEIGHT_UPDATE]
    async with update.lock:
        if fields.get("update_info") is not None:
            return await _stage(fields, update)
        if fields.get("weight_dir") is None:
            raise RequestError(
                "Give 'weight_dir': a folder with model.safetensors (or that file), on this machine.",
                param="weight_dir",
            )
        return await _apply_folder(
            request, _path(fields, "weight_dir"), _version(fields, "version")
        )


async def _reload_weights(request: web.Request) -> web.Response:
    async with request.app[WEIGHT_UPDATE].lock:
        return await _apply_folder(request, request.app[START_FOLDER], None)


def _path(fields: Fields, name: str) -> Path:
    value = fields.text(name)
    if not value or "\0" in value:
        raise refuse(name, value, "a path on this machine")
    return Path(value)


async def _apply_folder(request: web.Request, path: Path, version: int | None) -> web.Response:
    driver = request.app[DRIVER]
    try:
        # Reading and preparing take milliseconds; generation continues meanwhile.
        weights = await asyncio.to_thread(load_weights, path, driver.engine.model.config)
    except WeightsError as error:
        raise RequestError(
            f"{error} The current weights stay in use.", param="weight_dir"
        ) from error
    in_flight = driver.engine.status.running
    applied = driver.update_weights(weights, version)
    return json_response(
        {"status": "ok", "message": "Weights updated", "version": applied, "in_flight": in_flight}
    )


async def _init_transfer(request: web.Request) -> web.Response:
    info = Fields(await json_body(request)).get("init_info")
    if not isinstance(info, dict):
        raise refuse("init_info", info, "an object")
    if any(name in info for name in ("master_address", "master_port", "world_size", "rank_offset")):
        raise RequestError(_NO_BROADCAST, status=501, param="init_info", kind="NotSupportedError")
    return json_response({"message": "Weight transfer initialized"})


async def _start_update(request: web.Request) -> web.Response:
    fields = await _optional_body(request)
    if not fields.flag("is_checkpoint_format", default=True):
        raise refuse("is_checkpoint_format", False, "true: files are read in checkpoint format")
    update = request.app[WEIGHT_UPDATE]
    async with update.lock:
        # A start discards an unfinished update, so that a trainer that crashed does not block the next one.
        update.staged = {}
    return json_response({"message": "Weight update started"})


async def _stage(fields: Fields, update: WeightUpdate) -> web.Response:
    info = Fields(fields.get("update_info"), within="update_info")
    if update.staged is None:
        raise RequestError(
            "No weight update is in progress; POST /start_weight_update first.", status=409
        )
    if info.get("weight_dir") is None:
        raise RequestError(
            f"update_info={shown(info.body)} has no 'weight_dir'. {_NO_BROADCAST}",
            param="update_info",
        )
    path = _path(info, "weight_dir")
    file = path / "model.safetensors" if path.is_dir() else path
    try:
        update.staged |= await asyncio.to_thread(read_safetensors, file)
    except WeightsError as error:
        raise RequestError(str(error), param="update_info") from error
    return json_response({"message": "Weights updated", "tensors": len(update.staged)})


async def _finish_update(request: web.Request) -> web.Response:
    fields = await _optional_body(request)
    version = _version(fields, "weight_version")
    update, driver = request.app[WEIGHT_UPDATE], request.app[DRIVER]
    async with update.lock:
        staged, update.staged = update.staged, None
        if staged is None:
            raise RequestError(
                "No weight update is in progress; POST /start_weight_update first.", status=409
            )
        config = driver.engine.model.config
        try:
            check_tensors(staged, config, source="The update")
        except WeightsError as error:
            raise RequestError(f"{error} The current weights stay in use.") from error
        weights = await asyncio.to_thread(prepare_weights, staged, config)
        applied = driver.update_weights(weights, version)
    return json_response({"message": "Weight update finished", "version": applied})


async def _weight_info(request: web.Request) -> web.Response:
    return json_response({"weight_version": str(request.app[DRIVER].engine.version)})


async def _world_size(request: web.Request) -> web.Response:
    return json_response({"world_size": 1})


async def _pause(request: web.Request) -> web.Response:
    fields = await _optional_body(request)
    # vLLM and prime-rl send the mode in the query; a body is accepted for symmetry with the other routes.
    mode = request.query.get("mode") or fields.text("mode") or "abort"
    if mode not in list(PauseMode):
        raise refuse("mode", mode, f"one of {', '.join(PauseMode)}")
    await request.app[DRIVER].pause(PauseMode(mode))
    return json_response({"status": "paused", "mode": mode})


async def _resume(request: web.Request) -> web.Response:
    request.app[DRIVER].resume()
    return json_response({"status": "resumed"})


async def _is_paused(request: web.Request) -> web.Response:
    return json_response({"is_paused": request.app[DRIVER].engine.status.paused})


async def _abort_requests(request: web.Request) -> web.Response:
    fields = await _optional_body(request)
    if fields.get("request_ids"):
        raise refuse(
            "request_ids", fields.get("request_ids"), "an empty list, which aborts all requests"
        )
    return json_response({"aborted": request.app[DRIVER].engine.cancel_all()})
