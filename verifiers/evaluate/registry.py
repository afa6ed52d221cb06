"""The endpoint registry: short names of models at addresses.

    # configs/endpoints.toml
    [[endpoint]]
    endpoint_id = "qwen"                      # `vf-eval my-env -m qwen`
    model = "Qwen/Qwen3-4B"
    url = "http://localhost:8000/v1"
    key = "VLLM_API_KEY"                      # name of the environment variable, never the key itself
    # api_client_type = "openai_completions", headers = { "X-Team" = "rl" }

Several entries with one `endpoint_id` are replicas, used in turn. The older `endpoints.py` with a dict `ENDPOINTS`
is also read, as data: the dict must be a literal, because the file is not executed.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from verifiers.configs import CLIENT_TYPES
from verifiers.errors import ConfigError
from verifiers.types import Endpoint, Endpoints

DEFAULT_ENDPOINTS_PATH = "./configs/endpoints.toml"

_ALIASES = {
    "api_base_url": "url",
    "api_key_var": "key",
    "type": "api_client_type",
    "headers": "extra_headers",
}
_KEYS = ("endpoint_id", "model", "url", "key", "api_client_type", "extra_headers")


def registry_file(path: str | Path) -> Path | None:
    """Return the registry at `path`: the file itself, or `endpoints.toml` or else `endpoints.py` of a folder.

    A path that ends in `.toml` and does not exist falls back to `endpoints.py` beside it. None without a registry.
    """
    path = Path(path)
    if path.is_dir():
        candidates = (path / "endpoints.toml", path / "endpoints.py")
    elif path.suffix == ".toml":
        candidates = (path, path.with_suffix(".py"))
    else:
        candidates = (path,)
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def load_endpoints(endpoints_path: str | Path) -> Endpoints:
    """Return the registry at a path: name → replicas. `{}` without a registry; ConfigError if it is not valid."""
    file = registry_file(endpoints_path)
    if file is None:
        return {}
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The endpoint registry {file} cannot be read: {error}.") from error
    if file.suffix == ".py":
        return _from_python(text, file)
    return _from_toml(text, file)


def _from_toml(text: str, file: Path) -> Endpoints:
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"The endpoint registry {file} is not valid TOML: {error}.") from error
    entries = table.get("endpoint", [])
    if not isinstance(entries, list):
        raise ConfigError(f"{file}: write each endpoint as [[endpoint]], with double brackets.")
    stray = [key for key in table if key != "endpoint"]
    if stray:
        raise ConfigError(
            f"{file}: {stray[0]!r} is not part of a registry. Each endpoint is an [[endpoint]] table with "
            "endpoint_id, model, url and key."
        )
    endpoints: Endpoints = {}
    for index, entry in enumerate(entries, 1):
        where = f"{file}, [[endpoint]] number {index}"
        endpoint_id = entry.get("endpoint_id") if isinstance(entry, dict) else None
        if not isinstance(endpoint_id, str) or not endpoint_id:
            raise ConfigError(f"{where}: endpoint_id must be a name; got {endpoint_id!r}.")
        endpoints.setdefault(endpoint_id, []).append(_endpoint(entry, f"{where} ({endpoint_id})"))
    return endpoints


def _from_python(text: str, file: Path) -> Endpoints:
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise ConfigError(f"The endpoint registry {file} is not valid Python: {error}.") from error
    for statement in tree.body:
        targets = (
            statement.targets
            if isinstance(statement, ast.Assign)
            else [getattr(statement, "target", None)]
        )
        if any(isinstance(target, ast.Name) and target.id == "ENDPOINTS" for target in targets):
            try:
                table = ast.literal_eval(statement.value)  # pyright: ignore[reportAttributeAccessIssue]
            except ValueError as error:
                raise ConfigError(
                    f"{file}: ENDPOINTS is not a literal dict, and a registry is read without being executed. "
                    f"Move it to {file.with_suffix('.toml').name}."
                ) from error
            return _from_dict(table, file)
    raise ConfigError(f"{file} has no dict named ENDPOINTS.")


def _from_dict(table: Any, file: Path) -> Endpoints:
    if not isinstance(table, dict):
        raise ConfigError(f"{file}: ENDPOINTS must be a dict; got {type(table).__name__}.")
    endpoints: Endpoints = {}
    for name, value in table.items():
        replicas = value if isinstance(value, list) else [value]
        endpoints[str(name)] = [
            _endpoint(replica, f"{file}, ENDPOINTS[{name!r}]") for replica in replicas
        ]
    return endpoints


def _endpoint(entry: Any, where: str) -> Endpoint:
    if not isinstance(entry, Mapping):
        raise ConfigError(f"{where} must be a table with model, url and key; got {entry!r}.")
    values: dict[str, Any] = {}
    for key, value in entry.items():
        name = _ALIASES.get(key, key)
        if name not in _KEYS:
            near = get_close_matches(str(key), [*_KEYS, *_ALIASES], n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ConfigError(f"{where} has no key {key!r}.{hint}")
        if name == "extra_headers" and name in values:
            raise ConfigError(f"{where} has both headers and extra_headers; keep one of them.")
        if values.get(name, value) != value:
            raise ConfigError(
                f"{where} has {name!r} twice, under two names ({key!r} is one of them), with different values."
            )
        values[name] = value
    values.pop("endpoint_id", None)
    for name in ("model", "url", "key"):
        if not isinstance(values.get(name), str) or not values[name]:
            raise ConfigError(
                f"{where} needs {name!r}, a non-empty string; got {values.get(name)!r}."
            )
    client_type = values.get("api_client_type")
    if client_type is not None and client_type not in CLIENT_TYPES:
        raise ConfigError(
            f"{where}: api_client_type {client_type!r} is not one of {', '.join(CLIENT_TYPES)}."
        )
    headers = values.get("extra_headers")
    if headers is not None and not (
        isinstance(headers, dict)
        and all(isinstance(text, str) for pair in headers.items() for text in pair)
    ):
        raise ConfigError(f"{where}: headers must be a table of strings; got {headers!r}.")
    return Endpoint(**values)
