"""The model clients of a run.

In this process one client serves all rollouts: it distributes the requests among the endpoints of its configuration.
Two older forms distribute whole groups instead, each group to the next endpoint: an environment server, which receives
the configuration of one endpoint, and a caller's replacement of `verifiers.envs.environment.resolve_client`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import cycle
from typing import Any

from verifiers.clients import resolve_client
from verifiers.clients.connect import resolve_client_configs
from verifiers.configs import ClientConfig
from verifiers.envs.hooks import call_hook
from verifiers.envs.protocol import RunnableEnvironment
from verifiers.errors import ConfigError


class RunClients:
    """Clients, or configurations for a server, that the groups of a run use in turn."""

    def __init__(self, described: Any, clients: Sequence[Any]) -> None:
        self.described = described
        """Client or configuration that names all endpoints of the run."""
        self._clients = cycle(clients)
        self._of_example: dict[Any, Any] = {}

    def next(self) -> Any:
        """Return the client of the next request."""
        return next(self._clients)

    def of(self, row: Mapping[str, Any]) -> Any:
        """Return the client of a row's group."""
        example = row["example_id"]
        if example not in self._of_example:
            self._of_example[example] = self.next()
        return self._of_example[example]


@asynccontextmanager
async def clients_of_run(env: RunnableEnvironment, client: Any) -> AsyncIterator[RunClients]:
    """Yield the clients of one run. Close them afterwards if a replaced `resolve_client` made them for this run."""
    resolve = env._client_resolver()
    if env.env_client is not None:
        config = server_config(client)
        yield RunClients(config, endpoints_for(env.env_client, config))
    elif resolve is resolve_client or not isinstance(client, ClientConfig):
        resolved = resolve(client)
        yield RunClients(resolved, [resolved])
    else:
        made: list[Any] = []
        try:
            for config in resolve_client_configs(client):
                made.append(resolve(config))
            yield RunClients(client, made)
        finally:
            for one in made:
                if (close := getattr(one, "close", None)) is not None:
                    await call_hook(close)


def server_config(client: Any) -> ClientConfig:
    """Return the configuration of a client, which can be sent to an environment server. Raises ConfigError (a
    ValueError) for a client without one.
    """
    config = client if isinstance(client, ClientConfig) else getattr(client, "config", None)
    if isinstance(config, ClientConfig):
        return config
    raise ConfigError(  # callers of v0 match its first words
        f"client must be have type ClientConfig in server mode, got {type(client)}. An environment server runs in a "
        "process that cannot receive a client object: pass a vf.ClientConfig, or run without a server."
    )


def endpoints_for(remote: Any, config: ClientConfig) -> list[ClientConfig]:
    """Return the configurations that the requests to a server carry in turn.

    One configuration per endpoint, `client_idx` first; the complete configuration if the server itself distributes
    the requests.
    """
    if shares_endpoints(remote):
        return [config]
    configs = resolve_client_configs(config)
    first = config.client_idx % len(configs)
    return configs[first:] + configs[:first]


def shares_endpoints(remote: Any) -> bool:
    """Return whether an environment server distributes requests among the endpoints of a configuration.

    Clients of this library's servers have this attribute. The clients of v0 do not have it.
    """
    return getattr(remote, "shares_endpoints", False) is True
