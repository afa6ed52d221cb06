"""A `RolloutSource` over HTTP: a trainer in any language, on any machine, pulls its batches.

    GET  /info                          the environment and the settings
    GET  /batches/{step}?timeout_s=30   the batch of a step, counted from 1; 204 when it is not ready in time
    POST /weights {"weights", "version", "pause"}   new weights for every endpoint, while rollouts continue
    POST /version {"version"}           the same for weights that the trainer has sent to the endpoints
    POST /evaluations {"num_examples", "rollouts_per_example", "sampling_args"}
    GET  /state                         everything needed to continue later; pass it to `RolloutSource(state=…)`
    GET  /health

A batch is kept until the next step is requested. A request whose response was lost is simply sent again, and no batch
is lost or trained on twice. Samples are JSON rows as in `exports.sample_row`; with `Accept: ARROW` they are an Arrow
stream, with all other values under the key `batch` of the schema's metadata. A source has one trainer: its ranks
share the batches that one of them pulls.
"""

from __future__ import annotations

import asyncio
import hmac
import math
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import orjson
from aiohttp import web
from aiohttp.typedefs import Handler
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from verifiers.errors import ConfigError, Error
from verifiers.training.batch import Batch
from verifiers.training.exports import sample_row, to_arrow
from verifiers.training.inference_admin import UpdateFailed
from verifiers.training.source import RolloutSource

ARROW = "application/vnd.apache.arrow.stream"
LONGEST_WAIT_S = 300.0
"""Maximum wait for a batch, in seconds; proxies tend to cut longer requests."""
CLOSING_S = 1.0
"""Seconds that requests may continue while the server closes; then they are cancelled."""
LOOPBACK_HOSTS = frozenset({"127.0.0.1", "::1", "localhost"})


class WeightsRequest(BaseModel):
    """Body of `POST /weights`."""

    model_config = ConfigDict(extra="forbid")

    weights: str | list[dict[str, Any]] = Field(min_length=1)
    """A folder that the inference servers can read, or the `update_info` of every part for vLLM's engines."""
    version: int = Field(ge=0)
    """Version of the policy. It never decreases."""
    pause: bool = True
    """Whether to freeze generation during the load."""


class VersionRequest(BaseModel):
    """Body of `POST /version`."""

    model_config = ConfigDict(extra="forbid")

    version: int = Field(ge=0)
    """Version of the policy that the inference servers have now."""


class EvaluationBody(BaseModel):
    """Body of `POST /evaluations`."""

    model_config = ConfigDict(extra="forbid")

    num_examples: int = -1
    """Number of evaluation rows to play, -1 for all."""
    rollouts_per_example: int = Field(default=1, ge=1)
    sampling_args: dict[str, Any] = Field(default_factory=dict)


class PullServer:
    """Opens, serves and closes a source.

    async with PullServer(source, port=8100) as server:
        await interrupted.wait()
    """

    def __init__(
        self,
        source: RolloutSource,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        api_key: str | None = None,
    ) -> None:
        """`api_key`: requests need `Authorization: Bearer <key>`; required for every address but loopback.

        Port 0 selects a free port.
        """
        if api_key is None and host not in LOOPBACK_HOSTS:
            raise ConfigError(
                f"On {host}, any client could change the weights: set an api_key, or listen on 127.0.0.1."
            )
        self.source = source
        self.host = host
        self.port = port
        self._api_key = api_key
        self._runner: web.AppRunner | None = None
        self._held: Batch | None = None
        """The batch of the latest requested step."""
        self._pulling = asyncio.Lock()

    @property
    def url(self) -> str:
        """URL of the server while it is open."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    async def __aenter__(self) -> Self:
        await self.source.__aenter__()
        try:
            self._runner = web.AppRunner(self._app(), access_log=None, shutdown_timeout=CLOSING_S)
            await self._runner.setup()
            await web.TCPSite(self._runner, self.host, self.port).start()
        except OSError as error:
            await self.__aexit__(None, None, None)
            raise ConfigError(
                f"Cannot listen on {self.host}:{self.port}: {error.strerror or error}. Port 0 selects a free port."
            ) from error
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if self._runner is not None:
                await self._runner.cleanup()
        finally:
            await self.source.__aexit__(kind, error, traceback)

    def _app(self) -> web.Application:
        app = web.Application(middlewares=[self._guard], client_max_size=2**20)
        app.router.add_get("/health", self._health)
        app.router.add_get("/info", self._info)
        app.router.add_get("/batches/{step}", self._batch)
        app.router.add_post("/weights", self._weights)
        app.router.add_post("/version", self._version)
        app.router.add_post("/evaluations", self._evaluate)
        app.router.add_get("/state", self._state)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Check the key, and turn exceptions into responses."""
        if self._api_key is not None and request.path != "/health":
            given = request.headers.get("Authorization", "").removeprefix("Bearer ")
            if not hmac.compare_digest(given.encode(), self._api_key.encode()):
                return _error(401, "Unauthorized", "The key is missing or wrong.")
        try:
            return await handler(request)
        except ValidationError as error:
            return _error(422, "ValidationError", _complaints(error))
        except web.HTTPException as error:  # an unknown path or method, or a body that is too large
            answer = _error(
                error.status,
                type(error).__name__,
                f"{request.method} {request.path}: {error.reason}",
            )
            answer.headers.update({k: v for k, v in error.headers.items() if k == "Allow"})
            return answer
        except UpdateFailed as error:
            details = {"failures": error.failures, "updated": error.updated}
            return _error(502, "UpdateFailed", str(error), **details)
        except ConfigError as error:
            return _error(400, type(error).__name__, str(error))
        except Error as error:
            return _error(503, type(error).__name__, str(error))

    # ------------------------------------------------------------------------------------------ routes

    async def _health(self, _: web.Request) -> web.Response:
        source = self.source
        return _answer({"ok": True, "version": source.version, "in_flight": source.in_flight})

    async def _info(self, _: web.Request) -> web.Response:
        source = self.source
        return _answer(
            {
                "env_id": source.env.env_id,
                "endpoints": [endpoint.url for endpoint in source.endpoints],
                "config": source.config.model_dump(mode="json"),
                "version": source.version,
                "last_step": source.step or None,
            }
        )

    async def _batch(self, request: web.Request) -> web.Response:
        step = _step(request.match_info["step"])
        timeout_s = min(_seconds(request.query.get("timeout_s", "30")), LONGEST_WAIT_S)
        held = self._held
        if held is None or step != held.step:
            if step != self.source.step + 1:
                return self._wrong_step(step)
            try:
                async with asyncio.timeout(timeout_s), self._pulling:
                    if self.source.step < step:  # otherwise another waiting request has taken it
                        self._held = await self.source.next_batch()
            except TimeoutError:
                return web.Response(status=204)
            held = self._held
            if held is None or held.step != step:
                return self._wrong_step(step)
        about = {"step": held.step, "version": held.version, "metrics": held.metrics}
        if ARROW in request.headers.get("Accept", ""):
            return await asyncio.to_thread(_arrow_answer, held, about)
        body = await asyncio.to_thread(_json_body, held, about)
        return web.Response(body=body, content_type="application/json")

    def _wrong_step(self, step: int) -> web.Response:
        last, held = self.source.step, self._held
        choice = f"{last} again, or {last + 1}" if held is not None else f"{last + 1}"
        message = (
            f"Step {step} is not available. The last step was {last or 'none'}; request {choice}."
        )
        return _error(409, "WrongStep", message, last_step=last or None)

    async def _weights(self, request: web.Request) -> web.Response:
        body = WeightsRequest.model_validate_json(await request.read())
        self._check_version(body.version)
        await self.source.update_weights(body.weights, body.version, pause=body.pause)
        return _answer({"version": self.source.version})

    async def _version(self, request: web.Request) -> web.Response:
        body = VersionRequest.model_validate_json(await request.read())
        self._check_version(body.version)
        await self.source.set_version(body.version)
        return _answer({"version": self.source.version})

    def _check_version(self, version: int) -> None:
        if version < self.source.version:
            raise ConfigError(
                f"The policy's version is {self.source.version}; it cannot go back to {version}."
            )

    async def _evaluate(self, request: web.Request) -> web.Response:
        body = EvaluationBody.model_validate_json(await request.read())
        result = await self.source.evaluate(
            body.num_examples, body.rollouts_per_example, sampling_args=body.sampling_args
        )
        outputs = [
            {
                name: output.get(name)
                for name in ("example_id", "reward", "metrics", "completion", "error")
            }
            | ({"score_details": details} if (details := output.get("score_details")) else {})
            for output in result.outputs
        ]
        return _answer(
            {"mean_reward": result.mean_reward, "versions": result.versions, "rollouts": outputs}
        )

    async def _state(self, _: web.Request) -> web.Response:
        return _answer(self.source.state_dict())


def _step(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise ConfigError(f"The step must be a whole number, counted from 1; got {text!r:.50}.")
    return int(text)


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or number < 0:
        raise ConfigError(f"timeout_s must be a number of at least 0; got {text!r:.50}.")
    return number


def _complaints(error: ValidationError) -> str:
    """Return the problems of a body, field by field."""
    return "; ".join(
        f"{'.'.join(map(str, each['loc'])) or 'the body'}: {each['msg']}"
        for each in error.errors(include_url=False)
    )


def _json_body(batch: Batch, about: Mapping[str, Any]) -> bytes:
    return _dumped({**about, "samples": [sample_row(sample) for sample in batch.samples]})


def _arrow_answer(batch: Batch, about: Mapping[str, Any]) -> web.Response:
    import pyarrow as pa

    table = to_arrow(batch.samples).replace_schema_metadata({"batch": _dumped(about)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return web.Response(body=sink.getvalue().to_pybytes(), content_type=ARROW)


def _dumped(value: Any) -> bytes:
    # Example ids and metrics may have types that JSON does not support.
    return orjson.dumps(
        value, default=str, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
    )


def _answer(value: Any, status: int = 200) -> web.Response:
    return web.Response(body=_dumped(value), status=status, content_type="application/json")


def _error(status: int, kind: str, message: str, **details: Any) -> web.Response:
    return _answer({"error": {"type": kind, "message": message, **details}}, status)
