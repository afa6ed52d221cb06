"""The endpoint inside this process, as an async context manager."""

from __future__ import annotations

from contextlib import AsyncExitStack
from types import TracebackType

from verifiers.endpoint.admin_routes import add_admin_routes, add_closed_routes
from verifiers.endpoint.driver import EngineDriver
from verifiers.endpoint.engine import Engine
from verifiers.endpoint.model import Model, load_model
from verifiers.endpoint.server import EndpointConfig, build_app, listening


class EmbeddedEndpoint:
    """The embedded model behind an OpenAI-compatible server in the running event loop.

        async with EmbeddedEndpoint() as endpoint:
            client = AsyncOpenAI(base_url=endpoint.base_url, api_key="unused")

    Generation shares the loop's thread. To keep it apart, use `process.endpoint_process`.
    """

    def __init__(self, config: EndpointConfig | None = None, *, model: Model | None = None) -> None:
        self.config = config or EndpointConfig()
        self._model = model
        self._stack = AsyncExitStack()
        self._driver: EngineDriver | None = None
        self._port = 0

    @property
    def driver(self) -> EngineDriver:
        """The object that runs the engine. Raises RuntimeError unless the endpoint is open."""
        if self._driver is None:
            raise RuntimeError("The endpoint is not running; use it with `async with`.")
        return self._driver

    @property
    def engine(self) -> Engine:
        """The engine. Raises RuntimeError unless the endpoint is open."""
        return self.driver.engine

    @property
    def url(self) -> str:
        """Root URL of the server, for example `http://127.0.0.1:8000`."""
        self.driver  # noqa: B018 - raises if it is not running
        host = self.config.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self._port}"

    @property
    def base_url(self) -> str:
        """The `base_url` for OpenAI clients."""
        return f"{self.url}/v1"

    async def __aenter__(self) -> EmbeddedEndpoint:
        config = self.config
        async with AsyncExitStack() as stack:
            model = self._model or load_model(config.weights)
            driver = EngineDriver(Engine(model, max_running=config.max_running))
            await stack.enter_async_context(driver.running())
            app = build_app(driver, config)
            if config.admin_is_open:
                add_admin_routes(app, config.weights)
            else:
                add_closed_routes(app)
            self._port = await stack.enter_async_context(listening(app, config))
            self._driver = driver
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._driver = None
        await self._stack.aclose()
