"""A policy behind inference servers: clients that record the version of each sampled token, and the administration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from verifiers.clients.openai_chat_completions_token_client import OpenAIChatCompletionsTokenClient
from verifiers.configs import ClientConfig
from verifiers.training.inference_admin import AdminConfig, InferenceAdmin, cache_salt
from verifiers.types import Response


class PolicyClient(OpenAIChatCompletionsTokenClient):
    """The token client of one inference server whose weights change.

    Every sampled token carries a version: the one that the server reports (`token_versions`, the embedded endpoint),
    else the version at the time of the request, which is never newer than the real one. Requests carry a prefix-cache
    salt of their version, unless `salts` is off for a server that does not support the field.
    """

    def __init__(self, client_or_config: Any, *, version: int = 0, salts: bool = True) -> None:
        super().__init__(client_or_config)
        self.version = version
        self.salts = salts

    def request_body(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the JSON body of a request, with the salt."""
        body = super().request_body(*args, **kwargs)
        if self.salts:
            body.setdefault("cache_salt", cache_salt(self.version))
        return body

    async def _ask(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        version = self.version
        payload = await super()._ask(*args, **kwargs)
        payload["policy_version"] = version
        return payload

    def response_of(self, payload: Any) -> Response:
        """Return a response in the library's format, its tokens with their versions."""
        response = super().response_of(payload)
        tokens = response["message"].get("tokens")
        if tokens is not None and "versions" not in tokens:
            tokens["versions"] = payload["policy_version"]
        return response


@dataclass(frozen=True, eq=False)
class PolicyEndpoint:
    """One inference server: the client that samples from it, and its administration if its weights can be changed."""

    client: Any
    """A `PolicyClient`. Any other client works as well, but its tokens carry no versions."""
    admin: InferenceAdmin | None = None

    @classmethod
    def at(
        cls,
        url: str,
        *,
        api_key_var: str | None = None,
        api_key: str | None = None,
        admin: AdminConfig | None = None,
        salts: bool = True,
    ) -> PolicyEndpoint:
        """Return the endpoint of the server at `url`, its root or its `/v1`.

        `api_key_var` names the environment variable with the key for sampling; `api_key` is the key for
        administration.
        """
        root = url.rstrip("/").removesuffix("/v1")
        fields = {"client_type": "openai_chat_completions_token", "api_base_url": f"{root}/v1"}
        if api_key_var is not None:
            fields["api_key_var"] = api_key_var
        config = ClientConfig.model_validate(fields)
        return cls(PolicyClient(config, salts=salts), InferenceAdmin(root, admin, api_key=api_key))

    @property
    def url(self) -> str:
        """Root URL of the server, or the client's name for a server without administration."""
        return self.admin.url if self.admin is not None else type(self.client).__name__

    def set_version(self, version: int) -> None:
        """Record that the server now has the weights of this version."""
        if isinstance(self.client, PolicyClient):
            self.client.version = version
