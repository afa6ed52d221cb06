from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest

from verifiers.endpoint import EmbeddedEndpoint, EndpointConfig, load_model
from verifiers.endpoint.model import Model, prepare_weights
from verifiers.endpoint.tokenizer import VOCAB_SIZE
from verifiers.endpoint.weights import ModelConfig, Tensors, expected_shapes

TINY = ModelConfig(
    vocab_size=VOCAB_SIZE,
    hidden_size=24,
    intermediate_size=40,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=64,
    tie_word_embeddings=False,
)


def random_tensors(config: ModelConfig, seed: int) -> Tensors:
    rng = np.random.default_rng(seed)
    tensors = {}
    for name, shape in expected_shapes(config).items():
        scale = 1.0 if len(shape) == 1 or "embed" in name else 2.0 / np.sqrt(shape[1])
        offset = 1.0 if len(shape) == 1 else 0.0
        tensors[name] = (offset + rng.normal(size=shape) * scale * 0.5).astype(np.float32)
    return tensors


@pytest.fixture
def tiny_config() -> ModelConfig:
    return TINY


@pytest.fixture
def make_tensors() -> Callable[[int], Tensors]:
    """Random tensors of the tiny model, by seed."""
    return lambda seed: random_tensors(TINY, seed)


@pytest.fixture
def random_tensors_of() -> Callable[[ModelConfig, int], Tensors]:
    return random_tensors


@pytest.fixture
def tiny_model() -> Model:
    """A model with random weights: fast, and with entropy everywhere."""
    return Model(TINY, prepare_weights(random_tensors(TINY, 0), TINY))


@pytest.fixture(scope="session")
def shipped_model() -> Model:
    return load_model()


@pytest.fixture
def reference_logits() -> Callable[[Tensors, ModelConfig, list[int]], np.ndarray]:
    return forward_in_float64


def forward_in_float64(tensors: Tensors, config: ModelConfig, ids: list[int]) -> np.ndarray:
    """The decoder written as in the papers: one sequence, no cache, no fused matrices, position by position."""
    w = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}
    heads, kv_heads, dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim

    def norm(x, weight):
        return x / np.sqrt((x**2).mean() + config.rms_norm_eps) * weight

    def rotated(vector, position):
        out = np.empty_like(vector)
        for i in range(dim // 2):
            angle = position * config.rope_theta ** (-2 * i / dim)
            a, b = vector[i], vector[i + dim // 2]
            out[i] = a * np.cos(angle) - b * np.sin(angle)
            out[i + dim // 2] = b * np.cos(angle) + a * np.sin(angle)
        return out

    states = [w["model.embed_tokens.weight"][token] for token in ids]
    for index in range(config.num_hidden_layers):
        layer = {
            name.removeprefix(f"model.layers.{index}.").removesuffix(".weight"): tensor
            for name, tensor in w.items()
            if name.startswith(f"model.layers.{index}.")
        }
        keys, values, following = [], [], []
        for position, state in enumerate(states):
            x = norm(state, layer["input_layernorm"])
            q = (layer["self_attn.q_proj"] @ x).reshape(heads, dim)
            keys.append(
                [
                    rotated(k, position)
                    for k in (layer["self_attn.k_proj"] @ x).reshape(kv_heads, dim)
                ]
            )
            values.append((layer["self_attn.v_proj"] @ x).reshape(kv_heads, dim))
            out = []
            for head in range(heads):
                group = head // (heads // kv_heads)
                query = rotated(q[head], position)
                scores = np.array([query @ k[group] for k in keys]) / np.sqrt(dim)
                share = np.exp(scores - scores.max())
                share /= share.sum()
                out.append(sum(s * v[group] for s, v in zip(share, values, strict=True)))
            state = state + layer["self_attn.o_proj"] @ np.concatenate(out)
            x = norm(state, layer["post_attention_layernorm"])
            gate, up = layer["mlp.gate_proj"] @ x, layer["mlp.up_proj"] @ x
            following.append(state + layer["mlp.down_proj"] @ (gate / (1 + np.exp(-gate)) * up))
        states = following
    head = w["model.embed_tokens.weight" if config.tie_word_embeddings else "lm_head.weight"]
    return np.array([head @ norm(state, w["model.norm.weight"]) for state in states])


class Caller:
    """Sends requests to an endpoint."""

    def __init__(self, endpoint: EmbeddedEndpoint, session: aiohttp.ClientSession) -> None:
        self.endpoint = endpoint
        self.session = session

    async def post(self, path: str, body: Any = None, **options: Any) -> tuple[int, Any]:
        if body is not None:
            options["json"] = body
        async with self.session.post(self.endpoint.url + path, **options) as response:
            return response.status, await response.json()

    async def get(self, path: str, **options: Any) -> tuple[int, Any]:
        async with self.session.get(self.endpoint.url + path, **options) as response:
            if response.content_type == "application/json":
                return response.status, await response.json()
            return response.status, await response.text()

    async def chat(self, text: str, **options: Any) -> dict[str, Any]:
        body = {"messages": [{"role": "user", "content": text}], "max_tokens": 8, **options}
        status, answer = await self.post("/v1/chat/completions", body)
        assert status == 200, answer
        return answer

    async def until(self, condition: Callable[[], bool]) -> None:
        """Lets the loop run until the condition holds; the test's time limit ends it otherwise."""
        while not condition():  # noqa: ASYNC110 - what is awaited sets no event
            await asyncio.sleep(0)


@pytest.fixture
def serve() -> Callable[..., Any]:
    """Opens an endpoint with a config and a model."""

    @asynccontextmanager
    async def opened(model: Model, **options: Any) -> AsyncIterator[Caller]:
        async with (
            EmbeddedEndpoint(EndpointConfig(**options), model=model) as endpoint,
            aiohttp.ClientSession() as session,
        ):
            yield Caller(endpoint, session)

    return opened


@pytest.fixture
async def tiny(serve, tiny_model) -> AsyncIterator[Caller]:
    """An endpoint with random weights and a context of 64 tokens."""
    async with serve(tiny_model) as caller:
        yield caller


@pytest.fixture
async def shipped(serve, shipped_model) -> AsyncIterator[Caller]:
    """An endpoint with the shipped weights, whose engine is its own."""
    async with serve(Model(shipped_model.config, shipped_model.weights)) as caller:
        yield caller


@pytest.fixture
def folder(tmp_path) -> Path:
    """A path for a model folder."""
    return tmp_path / "model"
