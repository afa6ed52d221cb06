"""Reads safetensors files into numpy arrays, checking everything before an array is made.

Format: 8 bytes little-endian header length, that many bytes of JSON
(`{name: {"dtype", "shape", "data_offsets": [begin, end]}}`), then the data.
Source: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verifiers.endpoint.configuration import ModelConfig
from verifiers.endpoint.errors import WeightsError

HEADER_BYTES_LIMIT = 100_000_000
"""The longest header the format allows."""

Tensors = dict[str, NDArray[np.float32]]

_DTYPES = {
    "F16": np.dtype("<f2"),
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
    "BF16": np.dtype("<u2"),
}


def read_safetensors(path: Path) -> Tensors:
    """All tensors of a file, as float32.

    Raises WeightsError if the file is missing, cut short, has bytes no tensor claims, or describes
    tensors that overlap, leave the file or have another size than their shape says.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise WeightsError(f"Cannot read the weights {path}: {error.strerror}.") from error
    return parse_safetensors(raw, source=str(path))


def parse_safetensors(raw: bytes, *, source: str) -> Tensors:
    """The tensors in the bytes of a file; `source` names it in errors."""
    if len(raw) < 8:
        raise WeightsError(f"{source} has {len(raw)} bytes; a safetensors file has at least 8.")
    header_bytes = int.from_bytes(raw[:8], "little")
    if header_bytes > min(HEADER_BYTES_LIMIT, len(raw) - 8):
        raise WeightsError(
            f"{source} announces a header of {header_bytes} bytes but {len(raw) - 8} follow: "
            "cut short, or no safetensors file."
        )
    try:
        header = json.loads(raw[8 : 8 + header_bytes])
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"{source} has a header that is no JSON: {error}.") from error
    if not isinstance(header, dict):
        raise WeightsError(f"{source} has a header that is a {type(header).__name__}, no object.")
    header.pop("__metadata__", None)
    data = memoryview(raw)[8 + header_bytes :]
    spans = sorted(_span(name, entry, source) for name, entry in header.items())
    covered = 0
    for begin, end, name in spans:
        if begin != covered:
            raise WeightsError(f"{source}: tensor {name!r} begins at {begin}, expected {covered}.")
        covered = end
    if covered != len(data):
        raise WeightsError(
            f"{source} holds {len(data)} bytes of tensors, its header says {covered}."
        )
    return {name: _array(header[name], data[begin:end]) for begin, end, name in spans}


def write_safetensors(
    path: Path, tensors: Mapping[str, NDArray[Any]], *, dtype: str = "F32"
) -> None:
    """Writes arrays as `dtype` (F16, F32 or F64), through a temporary file: readers never see half a file."""
    layout, blobs, begin = {}, [], 0
    for name, array in tensors.items():
        blob = np.ascontiguousarray(array, _DTYPES[dtype]).tobytes()
        end = begin + len(blob)
        layout[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [begin, end]}
        blobs.append(blob)
        begin = end
    header = json.dumps({"__metadata__": {"format": "pt"}, **layout}).encode()
    # Readers map the data in place, so the format wants it to begin at a multiple of 8 bytes.
    header += b" " * (-len(header) % 8)
    temporary = path.with_name(path.name + ".part")
    temporary.write_bytes(b"".join([len(header).to_bytes(8, "little"), header, *blobs]))
    temporary.replace(path)


def _span(name: str, entry: Any, source: str) -> tuple[int, int, str]:
    if not isinstance(entry, dict):
        raise WeightsError(f"{source}: tensor {name!r} is described by {entry!r}, no object.")
    dtype = _DTYPES.get(str(entry.get("dtype")))
    if dtype is None:
        raise WeightsError(
            f"{source}: tensor {name!r} has dtype {entry.get('dtype')!r}; readable: {', '.join(_DTYPES)}."
        )
    shape, offsets = _sizes(entry.get("shape")), _sizes(entry.get("data_offsets"))
    if shape is None or offsets is None or len(offsets) != 2:
        raise WeightsError(
            f"{source}: tensor {name!r} has shape {entry.get('shape')!r} and offsets "
            f"{entry.get('data_offsets')!r}; expected lists of whole numbers."
        )
    begin, end = offsets
    needed = math.prod(shape) * dtype.itemsize
    if end - begin != needed:
        raise WeightsError(
            f"{source}: tensor {name!r} of shape {shape} and dtype {entry['dtype']} needs {needed} bytes, "
            f"its offsets {offsets} hold {end - begin}."
        )
    return begin, end, name


def _sizes(value: Any) -> list[int] | None:
    if isinstance(value, list) and all(type(item) is int and item >= 0 for item in value):
        return value
    return None


def _array(entry: Mapping[str, Any], data: memoryview) -> NDArray[np.float32]:
    array = np.frombuffer(data, _DTYPES[entry["dtype"]])
    if entry["dtype"] == "BF16":
        # bfloat16 is the upper half of a float32.
        array = (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32).reshape(entry["shape"])


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor a checkpoint of this model has."""
    width, inner, head = config.hidden_size, config.intermediate_size, config.head_dim
    queries, keys = config.num_attention_heads * head, config.num_key_value_heads * head
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config.vocab_size, width),
        "model.norm.weight": (width,),
    }
    for index in range(config.num_hidden_layers):
        layer = f"model.layers.{index}."
        shapes |= {
            layer + "input_layernorm.weight": (width,),
            layer + "self_attn.q_proj.weight": (queries, width),
            layer + "self_attn.k_proj.weight": (keys, width),
            layer + "self_attn.v_proj.weight": (keys, width),
            layer + "self_attn.o_proj.weight": (width, queries),
            layer + "post_attention_layernorm.weight": (width,),
            layer + "mlp.gate_proj.weight": (inner, width),
            layer + "mlp.up_proj.weight": (inner, width),
            layer + "mlp.down_proj.weight": (width, inner),
        }
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, width)
    return shapes


def check_tensors(tensors: Mapping[str, NDArray[Any]], config: ModelConfig, *, source: str) -> None:
    """Refuses tensors that are missing, unknown, of the wrong shape, or not finite."""
    expected = expected_shapes(config)
    if config.tie_word_embeddings:
        # Some writers store the shared head as well; it says nothing new.
        tensors = {name: array for name, array in tensors.items() if name != "lm_head.weight"}
    missing, unknown = sorted(expected - tensors.keys()), sorted(tensors.keys() - expected)
    if missing or unknown:
        raise WeightsError(
            f"{source} is no checkpoint of this model: missing {missing[:5]}, unknown {unknown[:5]}."
        )
    for name, shape in expected.items():
        if tensors[name].shape != shape:
            raise WeightsError(
                f"{source}: {name} has shape {list(tensors[name].shape)}, the model needs {list(shape)}."
            )
        if not np.isfinite(tensors[name]).all():
            raise WeightsError(f"{source}: {name} holds NaN or infinity; refused.")
