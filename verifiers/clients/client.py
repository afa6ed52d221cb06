"""`Client`: how an environment calls a model, and the hooks by which a subclass adapts an API.

    prompt ── to_native_prompt ─►┐
    tools ─── to_native_tools ──►├► get_native_response → raise_from_native_response → from_native_response → Response
    sampling_args ──────────────►┘

`get_response` runs the hooks in this order. It is the only place that turns their exceptions into errors of
`verifiers.errors`. While no hook is overridden, the library's own clients take a shorter path with the same results.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from verifiers.clients.sdk import as_model_error
from verifiers.configs import ClientConfig
from verifiers.errors import ConfigError, Error

if TYPE_CHECKING:
    from verifiers.types import Messages, Response, SamplingArgs, Tool

ClientT = TypeVar("ClientT")
MessagesT = TypeVar("MessagesT")
ResponseT = TypeVar("ResponseT")
ToolT = TypeVar("ToolT")


def _no_such_key(header: str, key: str, state: Mapping[str, Any]) -> ConfigError:
    near = get_close_matches(key, [str(known) for known in state], n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return ConfigError(
        f"The header {header!r} takes its value from the rollout's state[{key!r}] (--header-from-state, "
        f"extra_headers_from_state), but the state has no such key at the time of the model call.{hint} "
        "Use a column of the dataset, or a key that setup_state sets."
    )


class Client(ABC, Generic[ClientT, MessagesT, ResponseT, ToolT]):
    """A client for one model API, made from a `ClientConfig` or around an object that implements the API."""

    def __init__(self, client_or_config: ClientT | ClientConfig) -> None:
        self.logger = logging.getLogger(f"{__name__}.{type(self).__name__}")
        self._config: ClientConfig | None = None
        if isinstance(client_or_config, ClientConfig):
            self._config = client_or_config
            self._client: ClientT = self.setup_client(client_or_config)
        else:
            self._client = client_or_config

    @property
    def client(self) -> ClientT:
        """The object that implements the API."""
        return self._client

    @property
    def config(self) -> ClientConfig | None:
        """The configuration this client was made from; None for a client made around an object."""
        return self._config

    @abstractmethod
    def setup_client(self, config: ClientConfig) -> ClientT:
        """Create the object that implements the API."""

    @abstractmethod
    async def to_native_tool(self, tool: Tool) -> ToolT:
        """Return a tool definition in the API's format."""

    @abstractmethod
    async def to_native_prompt(self, messages: Messages) -> tuple[MessagesT, dict[str, Any]]:
        """Return messages in the API's format, and keyword arguments for `get_native_response`."""

    @abstractmethod
    async def get_native_response(
        self,
        prompt: MessagesT,
        model: str,
        sampling_args: SamplingArgs,
        tools: list[ToolT] | None = None,
        **kwargs: Any,
    ) -> ResponseT:
        """Call the model. `kwargs`: the arguments from `to_native_prompt`, `state`, `extra_headers`."""

    @abstractmethod
    async def raise_from_native_response(self, response: ResponseT) -> None:
        """Raise InvalidModelResponseError or EmptyModelResponseError if the response is unusable."""

    @abstractmethod
    async def from_native_response(self, response: ResponseT) -> Response:
        """Return the response in the library's format."""

    @abstractmethod
    async def close(self) -> None:
        """Release the connections of the running event loop."""

    async def to_native_tools(self, tools: list[Tool] | None) -> list[ToolT] | None:
        """Return all tools in the API's format."""
        if tools is None:
            return None
        return [await self.to_native_tool(tool) for tool in tools]

    def _build_state_headers(self, state: Mapping[str, Any] | None) -> dict[str, str] | None:
        """Return headers whose values come from the rollout's state (`extra_headers_from_state`); None if there are
        none.
        """
        config = self._config
        if config is None or state is None or not config.extra_headers_from_state:
            return None
        headers: dict[str, str] = {}
        for name, key in config.extra_headers_from_state.items():
            value = state.get(key)
            if value is not None:
                headers[name] = str(value)
            elif key not in state and key != "example_id":
                raise _no_such_key(name, key, state)
        return headers or None

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
        native = await self.get_checked_native_response(
            prompt, model, sampling_args, tools, **kwargs
        )
        try:
            return await self.from_native_response(native)
        except Exception as error:  # noqa: BLE001 - any exception becomes one of ours
            raise self._library_error(error)  # noqa: B904 - the cause is set, or left out because it repeats a key

    async def get_checked_native_response(
        self,
        prompt: Messages,
        model: str,
        sampling_args: SamplingArgs | None,
        tools: list[Tool] | None = None,
        **kwargs: Any,
    ) -> ResponseT:
        """Call the model like `get_response` and return the response in the API's own format. Raise the same errors."""
        try:
            native_prompt, extra_kwargs = await self.to_native_prompt(prompt)
            native_tools = await self.to_native_tools(tools)
            headers = self._build_state_headers(kwargs.get("state"))
            if headers is not None:
                kwargs["extra_headers"] = {**(kwargs.get("extra_headers") or {}), **headers}
            native = await self.get_native_response(
                native_prompt,
                model,
                dict(sampling_args or {}),
                native_tools,
                **extra_kwargs,
                **kwargs,
            )
            await self.raise_from_native_response(native)
            return native
        except Exception as error:  # noqa: BLE001 - any exception of an SDK becomes one of ours
            raise self._library_error(error)  # noqa: B904 - the cause is set, or left out because it repeats a key

    def _library_error(self, error: Exception) -> Error:
        """Return the error to raise for an exception from a hook: the library's errors unchanged, without keys."""
        if isinstance(error, Error):
            self._hide_keys(error)
            return error
        library_error = as_model_error(error, type(self).__name__)
        library_error.__cause__ = error
        self._hide_keys(library_error)
        return library_error

    def _hide_keys(self, error: Error) -> None:
        """Remove keys, which some endpoints repeat in their responses, from the text of an error.

        The original exception repeats the key as well, so it is dropped in that case.
        """
        message = str(error)
        if (text := self._without_keys(message)) != message:
            error.args = (text,)
            error.__cause__ = None
            error.__suppress_context__ = True

    def _without_keys(self, text: str) -> str:
        key = getattr(self._client, "api_key", None)
        return text.replace(key, "[key]") if isinstance(key, str) and len(key) > 4 else text
