"""The decoder in numpy: prefill and decode over a key/value cache, with replaceable weights.

Shapes: N tokens of all sequences of a call in one row, B sequences, H query heads, K key/value heads,
G = H/K, D head dimension, T positions, V vocabulary. All values are float32.

The matrices are small: BLAS threads that share them lose time, up to tenfold. A separate process sets environment
variables before numpy loads (`process.BLAS_THREAD_VARIABLES`). Inside another program numpy is loaded already and the
program may need its threads, so `one_blas_thread` limits them during a step. It supports the OpenBLAS in numpy's
wheels and has no effect on another BLAS.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from verifiers.endpoint.errors import WeightsError
from verifiers.endpoint.tokenizer import VOCAB_SIZE
from verifiers.endpoint.weights import (
    ModelConfig,
    Tensors,
    check_tensors,
    read_config,
    read_safetensors,
)

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

SHIPPED_WEIGHTS = Path(__file__).parent / "weights"
"""The model folder in this package."""


class LayerWeights(NamedTuple):
    """One layer. The matrices are fused and transposed for `x @ matrix`."""

    qkv: Floats
    """`[hidden, (H + 2K) * D]`; includes the weight of the input norm and the factor 1/sqrt(D) of the queries."""
    out: Floats
    """`[H * D, hidden]`."""
    gate_up: Floats
    """`[hidden, 2 * inner]`; includes the weight of the second norm."""
    down: Floats
    """`[inner, hidden]`."""


@dataclasses.dataclass(frozen=True)
class ModelWeights:
    """All parameters, prepared for the forward pass. Immutable: an update is a new object."""

    embedding: Floats
    """`[V, hidden]`."""
    layers: tuple[LayerWeights, ...]
    head: Floats
    """`[hidden, V]`; includes the weight of the last norm."""


def prepare_weights(tensors: Tensors, config: ModelConfig) -> ModelWeights:
    """Fuse the tensors of a checkpoint. Call `check_tensors` first."""
    layers = []
    query_scale = np.float32(1.0 / math.sqrt(config.head_dim))
    for index in range(config.num_hidden_layers):
        name = f"model.layers.{index}."
        norm_in = tensors[name + "input_layernorm.weight"][:, None]
        norm_mid = tensors[name + "post_attention_layernorm.weight"][:, None]
        attention, mlp = name + "self_attn.", name + "mlp."
        qkv = [
            tensors[attention + "q_proj.weight"].T * query_scale,
            tensors[attention + "k_proj.weight"].T,
            tensors[attention + "v_proj.weight"].T,
        ]
        gate_up = [tensors[mlp + "gate_proj.weight"].T, tensors[mlp + "up_proj.weight"].T]
        layers.append(
            LayerWeights(
                qkv=np.ascontiguousarray(np.concatenate(qkv, axis=1) * norm_in),
                out=np.ascontiguousarray(tensors[attention + "o_proj.weight"].T),
                gate_up=np.ascontiguousarray(np.concatenate(gate_up, axis=1) * norm_mid),
                down=np.ascontiguousarray(tensors[mlp + "down_proj.weight"].T),
            )
        )
    embedding = np.ascontiguousarray(tensors["model.embed_tokens.weight"])
    head = embedding if config.tie_word_embeddings else tensors["lm_head.weight"]
    return ModelWeights(
        embedding=embedding,
        layers=tuple(layers),
        head=np.ascontiguousarray(head.T * tensors["model.norm.weight"][:, None]),
    )


class Cache:
    """Keys and values of `rows` sequences of up to `length` tokens each.

    The system assigns memory when a position is first written, so unused context length costs nothing.
    """

    def __init__(self, config: ModelConfig, rows: int, length: int) -> None:
        shape = (
            config.num_hidden_layers,
            rows,
            config.num_key_value_heads,
            length,
            config.head_dim,
        )
        self.keys: Floats = np.zeros(shape, np.float32)
        self.values: Floats = np.zeros(shape, np.float32)

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of one row to another."""
        for array in (self.keys, self.values):
            array[:, target, :, :length] = array[:, source, :, :length]

    def swap(self, first: int, second: int, length: int) -> None:
        """Exchange the first `length` positions of two rows."""
        for array in (self.keys, self.values):
            kept = array[:, first, :, :length].copy()
            array[:, first, :, :length] = array[:, second, :, :length]
            array[:, second, :, :length] = kept


class Segment(NamedTuple):
    """New tokens of one sequence in a prefill call."""

    row: int
    """Row of the sequence in the cache."""
    start: int
    """Number of positions of the row that are filled already."""
    token_ids: Sequence[int]
    """The tokens for the positions from `start` on; at least one."""


class Model:
    """A configuration, the current weights, and the forward passes."""

    def __init__(self, config: ModelConfig, weights: ModelWeights) -> None:
        self.config = config
        self.weights = weights
        half = np.arange(0, config.head_dim, 2, dtype=np.float64) / config.head_dim
        angles = np.outer(np.arange(config.max_position_embeddings), config.rope_theta**-half)
        self._cos: Floats = np.cos(angles).astype(np.float32)
        self._sin: Floats = np.sin(angles).astype(np.float32)

    def new_cache(self, rows: int) -> Cache:
        """Return a cache for `rows` sequences of the full context length."""
        return Cache(self.config, rows, self.config.max_position_embeddings)

    def prefill(
        self, segments: Sequence[Segment], cache: Cache, *, all_positions: bool = False
    ) -> Floats:
        """Compute new tokens of several sequences and fill their rows of the cache.

        Return logits `[B, V]` after the last token of each segment, or `[N, V]` after every token.
        """
        counts = [len(segment.token_ids) for segment in segments]
        ends = np.cumsum(counts)
        tokens = np.concatenate([np.asarray(s.token_ids, np.int64) for s in segments])
        positions = np.concatenate(
            [np.arange(s.start, s.start + n) for s, n in zip(segments, counts, strict=True)]
        )
        spans = [
            (s.row, s.start, int(end) - count, int(end))
            for s, count, end in zip(segments, counts, ends, strict=True)
        ]
        x = self.weights.embedding[tokens]
        for index, layer in enumerate(self.weights.layers):
            q, k, v = self._project(x, layer, positions)
            attended = np.empty_like(q)
            for row, start, begin, end in spans:
                keys, values = cache.keys[index, row], cache.values[index, row]
                keys[:, start : start + end - begin] = k[begin:end].swapaxes(0, 1)
                values[:, start : start + end - begin] = v[begin:end].swapaxes(0, 1)
                attended[begin:end] = self._attend_segment(q[begin:end], keys, values, start)
            x = self._finish_layer(x, attended, layer)
        if not all_positions:
            x = x[ends - 1]
        return self._normalise(x) @ self.weights.head

    def decode(self, token_ids: Ints, positions: Ints, cache: Cache) -> Floats:
        """Compute one more token for each of the rows 0..B-1 and return logits `[B, V]`.

        `positions[b]` is the position of the new token: row b holds that many tokens already.
        """
        config = self.config
        batch, longest = len(token_ids), int(positions.max()) + 1
        rows = np.arange(batch)
        hidden = np.arange(longest)[None, :] > positions[:, None]
        mask = np.where(hidden, np.float32(-1e30), np.float32(0.0))[:, None, None, :]
        heads = (batch, config.num_key_value_heads, -1, config.head_dim)
        x = self.weights.embedding[token_ids]
        for index, layer in enumerate(self.weights.layers):
            q, k, v = self._project(x, layer, positions)
            keys, values = cache.keys[index], cache.values[index]
            keys[rows, :, positions] = k
            values[rows, :, positions] = v
            scores = q.reshape(heads) @ keys[:batch, :, :longest].swapaxes(-1, -2)
            scores += mask
            attended = _softmax(scores) @ values[:batch, :, :longest]
            x = self._finish_layer(x, attended, layer)
        return self._normalise(x) @ self.weights.head

    def _project(
        self, x: Floats, layer: LayerWeights, positions: Ints
    ) -> tuple[Floats, Floats, Floats]:
        # Returns queries [N, H, D], keys and values [N, K, D]; queries and keys are rotated.
        config = self.config
        heads, kv_heads, half = (
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim // 2,
        )
        fused = self._normalise(x) @ layer.qkv
        fused = fused.reshape(len(x), heads + 2 * kv_heads, config.head_dim)
        cos, sin = self._cos[positions][:, None], self._sin[positions][:, None]
        turned = fused[:, : heads + kv_heads]
        first, second = turned[..., :half], turned[..., half:]
        rotated = np.empty_like(turned)
        np.multiply(first, cos, out=rotated[..., :half])
        rotated[..., :half] -= second * sin
        np.multiply(second, cos, out=rotated[..., half:])
        rotated[..., half:] += first * sin
        return rotated[:, :heads], rotated[:, heads:], fused[:, heads + kv_heads :]

    def _attend_segment(self, q: Floats, keys: Floats, values: Floats, start: int) -> Floats:
        # q [N, H, D] at positions start.. of one row; keys and values [K, length, D] already include them.
        config = self.config
        count, total = len(q), start + len(q)
        kv_heads, head_dim = config.num_key_value_heads, config.head_dim
        grouped = q.reshape(count, kv_heads, -1, head_dim).transpose(1, 2, 0, 3)
        flat = grouped.reshape(kv_heads, -1, head_dim)
        scores = flat @ keys[:, :total].swapaxes(-1, -2)
        if count > 1:
            future = np.arange(total)[None, :] > np.arange(start, total)[:, None]
            scores.reshape(kv_heads, -1, count, total)[:, :, future] = -np.inf
        attended = _softmax(scores) @ values[:, :total]
        grouped = attended.reshape(kv_heads, -1, count, head_dim).transpose(2, 0, 1, 3)
        return grouped.reshape(count, -1, head_dim)

    def _finish_layer(self, x: Floats, attended: Floats, layer: LayerWeights) -> Floats:
        x = np.add(x, attended.reshape(len(x), -1) @ layer.out, dtype=np.float32)
        gate_up = self._normalise(x) @ layer.gate_up
        inner = self.config.intermediate_size
        gate = gate_up[:, :inner]
        # silu(g) = g * sigmoid(g). Sigmoid by tanh cannot overflow.
        activated = np.tanh(gate * np.float32(0.5))
        activated += np.float32(1.0)
        activated *= gate
        activated *= gate_up[:, inner:]
        activated *= np.float32(0.5)
        x += activated @ layer.down
        return x

    def _normalise(self, x: Floats) -> Floats:
        # Root mean square. The weights of the norms are folded into the matrices that follow.
        mean_square = np.einsum("nd,nd->n", x, x) / np.float32(x.shape[1])
        return x * (1.0 / np.sqrt(mean_square + np.float32(self.config.rms_norm_eps)))[:, None]


def _softmax(scores: Floats) -> Floats:
    # Softmax over the last axis, in place.
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    return scores


def load_model(folder: str | Path | None = None) -> Model:
    """Load the model in a Hugging Face style folder (`config.json`, `model.safetensors`); None loads the shipped model.

    Raise WeightsError if the folder is incomplete, damaged, of another architecture, or made for another tokenizer.
    """
    folder = SHIPPED_WEIGHTS if folder is None else Path(folder)
    config = read_config(folder / "config.json")
    if config.vocab_size != VOCAB_SIZE:
        raise WeightsError(
            f"{folder / 'config.json'} has vocab_size={config.vocab_size}; "
            f"this server's tokenizer has {VOCAB_SIZE} tokens."
        )
    return Model(config, load_weights(folder, config))


def load_weights(path: str | Path, config: ModelConfig) -> ModelWeights:
    """Load `model.safetensors` from a folder, or the file itself, and check it against `config`."""
    path = Path(path)
    file = path / "model.safetensors" if path.is_dir() else path
    tensors = read_safetensors(file)
    check_tensors(tensors, config, source=str(file))
    return prepare_weights(tensors, config)


class ThreadControl(NamedTuple):
    """Functions that read and set the number of threads of a BLAS library."""

    get: Callable[[], int]
    set: Callable[[int], object]


@functools.cache
def thread_control() -> ThreadControl | None:
    """Return the thread control of numpy's OpenBLAS; None if numpy includes no OpenBLAS."""
    package = Path(np.__file__).parent
    folders = (package.parent / "numpy.libs", package / ".dylibs", package / ".libs")
    for library in sorted(file for folder in folders for file in folder.glob("*openblas*")):
        try:
            loaded = ctypes.CDLL(str(library))
        except OSError:
            continue
        for prefix, suffix in (
            ("scipy_openblas", "64_"),
            ("scipy_openblas", ""),
            ("openblas", "64_"),
            ("openblas", ""),
        ):
            try:
                return ThreadControl(
                    getattr(loaded, f"{prefix}_get_num_threads{suffix}"),
                    getattr(loaded, f"{prefix}_set_num_threads{suffix}"),
                )
            except AttributeError:
                continue
    return None


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit BLAS to one thread in the block, for the whole process. Costs about a microsecond."""
    control = thread_control()
    before = control.get() if control is not None else 1
    if control is None or before == 1:
        yield
        return
    control.set(1)
    try:
        yield
    finally:
        control.set(before)
