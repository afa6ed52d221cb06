"""`HttpClient`: a `Client` over the library's transport, for the API that a `Dialect` describes.

While no hook of `Client` is overridden, a call is: dialect → `Channel.post` → dialect. The hooks
express the same in the SDK's objects, for subclasses that use or replace them, and for SDK-like objects that must be
called themselves.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar

import orjson

from verifiers.clients.client import Client
from verifiers.clients.connect import (
    channel_of_config,
    channel_of_sdk_object,
    setup_openai_client,
)
from verifiers.clients.endpoints import Channel
from verifiers.clients.payloads import (
    RequestOptions,
    encoded,
    native_of,
    payload_of,
    split,
    with_plain_ids,
)
from verifiers.clients.sdk import as_model_error, is_synchronous, split_arguments
from verifiers.configs import ClientConfig
from verifiers.dialects.dialect import Dialect
from verifiers.errors import Error, InvalidModelResponseError

if TYPE_CHECKING:
    from verifiers.types import Messages, Response, SamplingArgs, Tool

HOOKS = (
    "to_native_prompt",
    "to_native_tool",
    "to_native_tools",
    "get_native_response",
    "raise_from_native_response",
    "from_native_response",
)


class HttpClient(Client[Any, Any, Any, Any]):
    """A client of one HTTP API."""

    dialect: ClassVar[Dialect]
    """The API."""

    _is_adapted: ClassVar[bool] = False
    """Whether a class outside the library overrides a hook."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls._is_adapted = any(
            not _owner(cls, hook).__module__.startswith("verifiers.clients.") for hook in HOOKS
        )

    def __init__(self, client_or_config: Any) -> None:
        self.logger = logging.getLogger(f"{__name__}.{type(self).__name__}")
        self._config = None
        self._client = None
        if isinstance(client_or_config, ClientConfig):
            self._config = client_or_config
            if not _owner(type(self), "setup_client").__module__.startswith("verifiers.clients."):
                self._client = self.setup_client(client_or_config)
        else:
            self._client = client_or_config
        self._channel: Channel | None = (
            channel_of_config(
                self._config, key_header=self.dialect.key_header, headers=self.dialect.headers
            )
            if self._config is not None and self._client is None
            else channel_of_sdk_object(self._client, headers=self.dialect.headers)
        )

    @property
    def client(self) -> Any:
        """The SDK's object: the given one, or one made on first use. Requests do not go through it."""
        if self._client is None and self._config is not None:
            self._client = self.setup_client(self._config)
        return self._client

    def setup_client(self, config: ClientConfig) -> Any:
        """Return an `AsyncOpenAI` for the configuration."""
        return setup_openai_client(config)

    # --- steps of a request that subclasses extend ---

    def request_body(
        self,
        prompt: Any,
        model: str,
        sampling: RequestOptions,
        tools: list[Any] | None,
        extra: dict[str, Any],
    ) -> dict[str, Any]:
        """Return the JSON body of a request."""
        return self.dialect.request_body(prompt, model, sampling.body, tools, extra)

    def response_of(self, payload: Any) -> Response:
        """Return a response in the library's format."""
        return self.dialect.response_of(payload)

    # --- a request ---

    async def get_response(
        self,
        prompt: Messages,
        model: str,
        sampling_args: SamplingArgs | None,
        tools: list[Tool] | None = None,
        **kwargs: Any,
    ) -> Response:
        """Call the model once. `kwargs` may hold `state`, the rollout's state.

        Raise ModelError or a subclass, or OverlongPromptError. Cancellation passes through.
        """
        if self._channel is None or self._is_adapted or not self.__dict__.keys().isdisjoint(HOOKS):
            return await super().get_response(prompt, model, sampling_args, tools, **kwargs)
        try:
            native_prompt, extra = self.dialect.native_prompt(prompt)
            native_tools = [self.dialect.native_tool(tool) for tool in tools] if tools else None
            state = kwargs.get("state")
            headers = self._build_state_headers(state)
            if given := kwargs.get("extra_headers"):
                headers = {**given, **(headers or {})}
            payload = await self._ask(
                native_prompt, model, sampling_args, native_tools, extra, state, headers
            )
        except Error:
            raise
        except Exception as error:
            raise as_model_error(error, type(self).__name__) from error
        try:
            self.dialect.check_payload(payload)
            return self.response_of(payload)
        except Error as error:
            self._hide_keys(error)
            raise
        except Exception as error:
            text = self._channel.without_keys(repr(payload))
            raise InvalidModelResponseError(
                f"The model's response has an unexpected format ({type(error).__name__}: {error}): {text:.200}"
            ) from error

    def _without_keys(self, text: str) -> str:
        text = super()._without_keys(text)
        return text if self._channel is None else self._channel.without_keys(text)

    def _ask(
        self,
        prompt: Any,
        model: str,
        sampling_args: Mapping[str, Any] | None,
        tools: list[Any] | None,
        extra: dict[str, Any],
        state: Any,
        headers: Mapping[str, str] | None,
    ) -> Awaitable[dict[str, Any]]:
        """Send one request over our transport and return the JSON of the response.

        Not `async` itself, which saves a frame for every request in flight.
        """
        sampling = split(sampling_args, length_key=self.dialect.length_key)
        body = encoded(self.request_body(prompt, model, sampling, tools, extra))
        return self._post(self.dialect.path, body, sampling, state, headers)

    def _post(
        self,
        path: str,
        body: bytes,
        sampling: RequestOptions | None,
        state: Any,
        headers: Any,
        decode: Callable[[bytes], Any] = orjson.loads,
    ) -> Awaitable[dict[str, Any]]:
        channel = self._channel
        assert channel is not None  # both callers have added the headers already
        timeout_s: float | None = None
        if sampling is not None:
            timeout_s = sampling.timeout_s
            if sampling.headers:
                headers = {**sampling.headers, **(headers or {})}
        rollout_id: str | None = None
        if state is not None and len(channel.endpoints) > 1:
            rollout_id = state.get("trajectory_id")
        return channel.post(
            path,
            body,
            headers=headers,
            rollout_id=rollout_id,
            timeout_s=timeout_s,
            decode=decode,
        )

    async def _call_sdk(
        self,
        prompt_arguments: dict[str, Any],
        sampling_args: Mapping[str, Any] | None,
        headers: Any,
    ) -> Any:
        """Call an SDK-like object's own method with keyword arguments in the SDK's format."""
        sampling = split(
            {k: v for k, v in (sampling_args or {}).items() if k != "extra_body"},
            length_key=self.dialect.length_key,
        )
        arguments = {**prompt_arguments, **sampling.body}
        if extra_body := (sampling_args or {}).get("extra_body"):
            arguments["extra_body"] = extra_body
        if headers or sampling.headers:
            arguments["extra_headers"] = {**(sampling.headers or {}), **(headers or {})}
        if sampling.timeout_s is not None:
            arguments["timeout"] = sampling.timeout_s
        create = attrgetter(self.dialect.sdk_method)(self._client)
        arguments = split_arguments(create, arguments)
        if is_synchronous(self._client):
            return await asyncio.to_thread(create, **arguments)  # the method blocks on the network
        answer = create(**arguments)
        return await answer if inspect.isawaitable(answer) else answer

    # --- the hooks ---

    async def to_native_prompt(self, messages: Messages) -> tuple[Any, dict[str, Any]]:
        """Return messages in the API's format, and keys to add to the body."""
        return self.dialect.native_prompt(messages)

    async def to_native_tool(self, tool: Tool) -> Any:
        """Return a tool definition in the API's format."""
        return self.dialect.native_tool(tool)

    async def get_native_response(
        self,
        prompt: Any,
        model: str,
        sampling_args: SamplingArgs,
        tools: list[Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Call the model and return the SDK's response object."""
        state = kwargs.pop("state", None)
        headers = kwargs.pop("extra_headers", None)
        if self._channel is None:
            sampling = split(None, length_key=self.dialect.length_key)
            return await self._call_sdk(
                self.request_body(prompt, model, sampling, tools, kwargs), sampling_args, headers
            )
        payload = await self._ask(prompt, model, sampling_args, tools, kwargs, state, headers)
        return native_of(with_plain_ids(payload), *self.dialect.sdk_type)

    async def raise_from_native_response(self, response: Any) -> None:
        """Raise InvalidModelResponseError or EmptyModelResponseError for an unusable response."""
        self.dialect.check_payload(payload_of(response))

    async def from_native_response(self, response: Any) -> Response:
        """Return the response in the library's format."""
        return self.response_of(payload_of(response))

    async def close(self) -> None:
        """Close the connections of the running event loop, and an SDK object that was passed in."""
        await self.aclose()
        if self._client is not None and (close := getattr(self._client, "close", None)) is not None:
            closing = close()
            if inspect.isawaitable(closing):
                await closing

    async def aclose(self) -> None:
        """Close this client's connections in the running event loop. The client works on in later loops."""
        if self._channel is not None:
            await self._channel.aclose()


@cache
def plain_client_class(dialect: Dialect) -> type[HttpClient]:
    """Return the class of clients for an API that needs no code beyond its dialect."""
    name = "".join(part.capitalize() for part in dialect.name.split("_")) + "Client"
    members = {"dialect": dialect, "__doc__": type(dialect).__doc__, "__module__": __name__}
    return type(name, (HttpClient,), members)


def _owner(cls: type, name: str) -> type:
    """Return the class along the MRO that defines a method."""
    return next(kind for kind in cls.__mro__ if name in vars(kind))
