"""HTTP routes for generation: OpenAI's, with vLLM's token extensions. `admin_routes.py` holds the other routes.

One process and one event loop parse requests, generate and respond (see `driver.py`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import hmac
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from verifiers.endpoint import answers, requests
from verifiers.endpoint.answers import CHAT, COMPLETION, StreamKind, write_events
from verifiers.endpoint.driver import EngineDriver
from verifiers.endpoint.engine import DEFAULT_MAX_RUNNING, Engine
from verifiers.endpoint.errors import EndpointError, RequestError
from verifiers.endpoint.requests import Fields, GenerationRequest, Served, names
from verifiers.endpoint.tokenizer import VOCAB_SIZE, decode, encode, token_text
from verifiers.errors import ConfigError

_COUNTERS = (
    ("requests", "Requested generations."),
    ("prompt_tokens", "Prompt tokens of admitted generations."),
    ("cached_prompt_tokens", "Prompt tokens copied from an earlier prompt."),
    ("generation_tokens", "Tokens generated."),
    ("steps", "Engine steps."),
    ("weight_updates", "Weight updates applied."),
    ("finished_stop", "Generations ended by an end token or stop string."),
    ("finished_length", "Generations ended by a token limit."),
    ("finished_abort", "Generations cancelled."),
    ("finished_error", "Generations ended by invalid weights."),
)


def metrics_text(engine: Engine) -> str:
    """Return the engine's counters in the Prometheus text format, one block per metric.

    Source: https://prometheus.io/docs/instrumenting/exposition_formats/
    """
    lines: list[str] = []

    def add(name: str, kind: str, text: str, value: float) -> None:
        full = f"verifiers_endpoint_{name}"
        lines.extend((f"# HELP {full} {text}", f"# TYPE {full} {kind}", f"{full} {value}"))

    for name, text in _COUNTERS:
        add(f"{name}_total", "counter", text, engine.counts[name])
    status = engine.status
    add("busy_seconds_total", "counter", "CPU time spent in steps.", round(engine.busy_s, 6))
    add("running", "gauge", "Generations in the batch.", status.running)
    add("waiting", "gauge", "Generations in the queue.", status.waiting)
    add("paused", "gauge", "1 while paused.", int(status.paused))
    add("weight_version", "gauge", "Version of the current weights.", status.version)
    return "\n".join(lines) + "\n"


logger = logging.getLogger(__name__)

LOOPBACK_HOSTS = frozenset({"127.0.0.1", "::1", "localhost"})
OPEN_PATHS = frozenset({"/health", "/liveness", "/ping", "/metrics"})
"""Routes that need no API key: they reveal nothing about requests."""

DRIVER = web.AppKey("driver", EngineDriver)
SERVED = web.AppKey("served", Served)


Parser = Callable[[Any, Served], GenerationRequest]  # Any: a decoded JSON body


@dataclasses.dataclass(frozen=True)
class EndpointConfig:
    """Network and model settings of the endpoint."""

    host: str = "127.0.0.1"
    """Address to listen on. Set `api_key` for anything but a loopback address."""
    port: int = 0
    """0 selects a free port."""
    model_names: tuple[str, ...] = ("embedded",)
    """Names of the model; responses carry the first."""
    weights: Path | None = None
    """Folder with `config.json` and `model.safetensors`; None uses the model in the package."""
    api_key: str | None = None
    """If set, requests need `Authorization: Bearer <key>`."""
    max_running: int = DEFAULT_MAX_RUNNING
    """Maximum number of sequences generated at the same time; more wait in a queue."""
    admin: bool | None = None
    """Whether HTTP requests may change weights and pause generation. None: only on a loopback
    address or with an `api_key`.
    """
    max_body_bytes: int = 8 * 1024 * 1024
    """Longer request bodies are refused with status 413."""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port={self.port}: expected 0 (any free port) to 65535.")
        if not self.model_names or "" in self.model_names:
            raise ConfigError(
                f"model_names={self.model_names!r}: expected at least one, none empty."
            )
        if self.max_running < 1:
            raise ConfigError(f"max_running={self.max_running}: expected at least 1.")
        if self.api_key == "":
            raise ConfigError("api_key is empty: omit it, or set a key.")

    @property
    def admin_is_open(self) -> bool:
        """Whether the admin routes are open: `admin`, or its default."""
        if self.admin is not None:
            return self.admin
        return self.host in LOOPBACK_HOSTS or self.api_key is not None


def error_response(error: RequestError) -> web.Response:
    """Return an error in OpenAI's JSON format."""
    headers = {"WWW-Authenticate": "Bearer"} if error.status == 401 else None
    return json_response(
        {
            "error": {
                "message": error.message,
                "type": error.kind,
                "param": error.param,
                "code": error.code,
            }
        },
        status=error.status,
        headers=headers,
    )


def json_response(
    body: Any, *, status: int = 200, headers: dict[str, str] | None = None
) -> web.Response:
    """Return a JSON response."""
    return web.Response(
        body=orjson.dumps(body), status=status, content_type="application/json", headers=headers
    )


async def json_body(request: web.Request) -> Any:
    """Return the decoded body. Raise RequestError if it is too large or not valid JSON."""
    raw = await request.read()
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise RequestError(f"The body is not valid JSON: {error}.", code="invalid_json") from error


@web.middleware
async def _errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except RequestError as error:
        return error_response(error)
    except web.HTTPRequestEntityTooLarge as error:
        return error_response(RequestError(f"{error.text} Send a smaller body.", status=413))
    except web.HTTPException as error:
        message = f"{request.method} {request.path}: {error.reason}."
        if error.status == 404:
            message += " See docs/endpoint.md for the routes of this server."
        return error_response(
            RequestError(message, status=error.status, kind="InvalidRequestError")
        )
    except EndpointError as error:
        return error_response(RequestError(str(error), status=500, kind="InternalServerError"))
    except Exception as error:
        logger.exception("%s %s failed", request.method, request.path)
        message = (
            f"The server failed with {error!r}; this is a fault of the server, not of the request."
        )
        return error_response(RequestError(message, status=500, kind="InternalServerError"))


def _api_key_check(api_key: str) -> Middleware:
    expected = f"Bearer {api_key}".encode()

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        received = request.headers.get("Authorization", "")
        if request.path not in OPEN_PATHS and not hmac.compare_digest(received.encode(), expected):
            problem = "is wrong" if received else "is missing"
            raise RequestError(
                f"The API key {problem}: this server requires the header 'Authorization: Bearer <key>' "
                "with the key it was started with.",
                status=401,
                code="invalid_api_key",
                kind="AuthenticationError",
            )
        return await handler(request)

    return check


def build_app(driver: EngineDriver, config: EndpointConfig) -> web.Application:
    """Build the application around a driver. The driver must run before requests arrive."""
    middlewares: list[Middleware] = [_errors_as_json]
    if config.api_key is not None:
        middlewares.append(_api_key_check(config.api_key))
    app = web.Application(middlewares=middlewares, client_max_size=config.max_body_bytes)
    app[DRIVER] = driver
    app[SERVED] = Served(config.model_names, driver.engine.context_length)
    router = app.router
    router.add_post("/v1/chat/completions", _generating(requests.chat_request, CHAT))
    router.add_post("/v1/chat/completions/tokens", _generating(requests.chat_tokens_request, CHAT))
    router.add_post("/v1/completions", _generating(requests.completion_request, COMPLETION))
    router.add_get("/v1/models", _models)
    router.add_get("/v1/models/{name:.+}", _model)
    router.add_post("/tokenize", _tokenize)
    router.add_post("/detokenize", _detokenize)
    for path in ("/health", "/liveness", "/ping"):
        router.add_get(path, _health)
    router.add_get("/metrics", _metrics)
    return app


def _generating(parse: Parser, kind: StreamKind) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        driver = request.app[DRIVER]
        generation_request = parse(await json_body(request), request.app[SERVED])
        if generation_request.stream:
            return await write_events(request, driver, generation_request, kind)
        sequences = await driver.generate(generation_request.generations)
        if answers.has_error(sequences):
            raise RequestError(
                "The weights produced logits that are NaN or infinite; load other weights.",
                status=500,
                kind="InternalServerError",
            )
        return json_response(kind.answer(generation_request, sequences))

    return handle


def _model_card(name: str, context_length: int) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": "verifiers",
        "root": name,
        "parent": None,
        "max_model_len": context_length,
    }


async def _models(request: web.Request) -> web.Response:
    served = request.app[SERVED]
    cards = [_model_card(name, served.context_length) for name in served.model_names]
    return json_response({"object": "list", "data": cards})


async def _model(request: web.Request) -> web.Response:
    served = request.app[SERVED]
    name = requests.check_model(Fields({"model": request.match_info["name"]}), served)
    return json_response(_model_card(name, served.context_length))


_TOKENIZE_KNOWN = names(
    ("model", "prompt", "messages", "tools", "tool_choice", "add_generation_prompt"),
    ("continue_final_message", "add_special_tokens", "return_token_strs", "chat_template_kwargs"),
)


async def _tokenize(request: web.Request) -> web.Response:
    served = request.app[SERVED]
    fields = Fields(await json_body(request))
    fields.check_known(_TOKENIZE_KNOWN)
    requests.check_model(fields, served)
    if fields.get("messages") is not None:
        ids = requests.chat_prompt(fields)
    else:
        prompt = fields.text("prompt")
        if prompt is None:
            raise RequestError("Give 'prompt' (a string) or 'messages' (a list).", param="prompt")
        ids = encode(prompt, parse_special=True)
    shown = [token_text(i) for i in ids] if fields.flag("return_token_strs") else None
    return json_response(
        {
            "count": len(ids),
            "max_model_len": served.context_length,
            "tokens": ids,
            "token_strs": shown,
        }
    )


async def _detokenize(request: web.Request) -> web.Response:
    fields = Fields(await json_body(request))
    fields.check_known(frozenset({"model", "tokens"}))
    requests.check_model(fields, request.app[SERVED])
    ids = fields.token_ids("tokens", VOCAB_SIZE)
    if ids is None:
        raise RequestError("The field 'tokens' is missing: a list of token ids.", param="tokens")
    return json_response({"prompt": decode(ids, skip_special=False)})


async def _health(request: web.Request) -> web.Response:
    driver = request.app[DRIVER]
    if driver.failure is not None:
        raise RequestError(
            f"The engine stopped after {driver.failure!r}; restart the server.",
            status=503,
            kind="ServiceUnavailableError",
        )
    return json_response({"status": "ok", **driver.engine.status._asdict()})


async def _metrics(request: web.Request) -> web.Response:
    return web.Response(
        text=metrics_text(request.app[DRIVER].engine),
        headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
    )


@contextlib.asynccontextmanager
async def listening(app: web.Application, config: EndpointConfig) -> AsyncIterator[int]:
    """Serve the application while the context is open and yield the port."""
    # handler_cancellation: a client that disconnects must free its row immediately.
    runner = web.AppRunner(
        app, access_log=None, handler_cancellation=True, shutdown_timeout=1.0, handle_signals=False
    )
    await runner.setup()
    try:
        site = web.TCPSite(runner, config.host, config.port, backlog=4096)
        await site.start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
