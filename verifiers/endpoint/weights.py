"""Model folders on disk: the shape of a model (`config.json`), its tensors (safetensors), and a whole checkpoint."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from verifiers.endpoint import tokenizer
from verifiers.endpoint.chat_template import JINJA_TEMPLATE
from verifiers.endpoint.errors import WeightsError
from verifiers.files import replace_file

ARCHITECTURE = "LlamaForCausalLM"
_POSITIVE = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
)


@dataclasses.dataclass(frozen=True, slots=True)
class ModelConfig:
    """A Llama-style decoder, with the field names of Hugging Face."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    """Context length in tokens."""
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    tie_word_embeddings: bool = True

    def to_json_dict(self) -> dict[str, Any]:
        """Return the content of `config.json`."""
        return {
            "architectures": [ARCHITECTURE],
            "model_type": "llama",
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 6,
            # Both spellings: transformers 5 reads rope_parameters, older versions read rope_theta.
            "rope_parameters": {"rope_type": "default", "rope_theta": self.rope_theta},
            **dataclasses.asdict(self),
        }


def read_config(path: Path) -> ModelConfig:
    """Read and check a `config.json`.

    Raise WeightsError if the file is missing, is not valid JSON, describes another architecture, or holds
    impossible numbers.
    """
    try:
        raw = json.loads(path.read_bytes())
    except OSError as error:
        raise WeightsError(
            f"Cannot read {path}: {error.strerror}. A model folder needs this file."
        ) from error
    except ValueError as error:
        raise WeightsError(f"{path} is not valid JSON: {error}.") from error
    if not isinstance(raw, dict):
        raise WeightsError(f"{path} holds a {type(raw).__name__}, expected an object.")
    return parse_config(raw, source=str(path))


def parse_config(raw: dict[str, Any], *, source: str) -> ModelConfig:
    """Check the decoded content of a `config.json`; `source` names it in errors."""
    architectures = raw.get("architectures") or [ARCHITECTURE]
    if ARCHITECTURE not in architectures:
        raise WeightsError(
            f"{source} describes {architectures}; this server runs {ARCHITECTURE} only."
        )
    for key, supported in (("attention_bias", False), ("mlp_bias", False), ("hidden_act", "silu")):
        if raw.get(key, supported) != supported:
            raise WeightsError(f"{source} has {key}={raw[key]!r}; only {supported!r} is supported.")
    values = dict(raw)
    heads = values.get("num_attention_heads")
    values.setdefault("num_key_value_heads", heads)
    if values.get("head_dim") is None and isinstance(heads, int) and heads > 0:
        values["head_dim"] = values.get("hidden_size", 0) // heads
    rope = values.get("rope_parameters") or values.get("rope_scaling") or {}
    if rope.get("rope_type", "default") != "default":
        raise WeightsError(
            f"{source} scales its positions ({rope}); only rope_type 'default' is supported."
        )
    if "rope_theta" in rope:
        values["rope_theta"] = rope["rope_theta"]
    for key in _POSITIVE:
        value = values.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            raise WeightsError(f"{source} has {key}={value!r}; expected a positive integer.")
    if values["num_attention_heads"] % values["num_key_value_heads"]:
        raise WeightsError(
            f"{source}: num_attention_heads={values['num_attention_heads']} is not a multiple of "
            f"num_key_value_heads={values['num_key_value_heads']}."
        )
    if values["head_dim"] % 2:
        raise WeightsError(f"{source}: head_dim={values['head_dim']} must be even.")
    fields = {field.name for field in dataclasses.fields(ModelConfig)}
    return ModelConfig(**{key: value for key, value in values.items() if key in fields})


Tensors = dict[str, NDArray[np.float32]]

_DTYPES = {
    "F16": np.dtype("<f2"),
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
    "BF16": np.dtype("<u2"),
}


def read_safetensors(path: Path) -> Tensors:
    """Return all tensors of a file as float32. Raise WeightsError for a file that is missing or damaged."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise WeightsError(f"Cannot read the weights {path}: {error.strerror}.") from error
    return parse_safetensors(raw, source=str(path))


def parse_safetensors(raw: bytes, *, source: str) -> Tensors:
    """Return the tensors in the bytes of a file; `source` names the file in errors."""
    try:
        entries = safetensors.deserialize(raw)
    except (safetensors.SafetensorError, RecursionError) as error:
        raise WeightsError(
            f"{source} ({len(raw)} bytes) is not a valid safetensors file: {error}."
        ) from error
    return {name: _as_float32(name, entry, source) for name, entry in entries}


def _as_float32(name: str, entry: Mapping[str, Any], source: str) -> NDArray[np.float32]:
    dtype = _DTYPES.get(entry["dtype"])
    if dtype is None:
        raise WeightsError(
            f"{source}: tensor {name!r} has dtype {entry['dtype']!r}; supported: {', '.join(_DTYPES)}."
        )
    values = np.frombuffer(entry["data"], dtype).reshape(entry["shape"])
    if entry["dtype"] == "BF16":  # the upper half of a float32
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32)


def write_safetensors(
    path: Path, tensors: Mapping[str, NDArray[Any]], *, dtype: str = "F32"
) -> None:
    """Write arrays as `dtype` (F16, F32 or F64) and replace `path` atomically."""
    arrays = {name: np.ascontiguousarray(array, _DTYPES[dtype]) for name, array in tensors.items()}
    replace_file(path, safetensors.numpy.save(arrays, metadata={"format": "pt"}))


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return name and shape of every tensor in a checkpoint of this model."""
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
    """Refuse tensors that are missing, unknown, of the wrong shape, or not finite."""
    expected = expected_shapes(config)
    if config.tie_word_embeddings:
        # Some programs store the shared output head as well; it repeats the embedding.
        tensors = {name: array for name, array in tensors.items() if name != "lm_head.weight"}
    missing, unknown = sorted(expected - tensors.keys()), sorted(tensors.keys() - expected)
    if missing or unknown:
        raise WeightsError(
            f"{source} is not a checkpoint of this model: missing {missing[:5]}, unknown {unknown[:5]}."
        )
    for name, shape in expected.items():
        if tensors[name].shape != shape:
            raise WeightsError(
                f"{source}: {name} has shape {list(tensors[name].shape)}, the model needs {list(shape)}."
            )
        if not np.isfinite(tensors[name]).all():
            raise WeightsError(f"{source}: {name} holds NaN or infinity.")


def save_checkpoint(
    folder: Path, config: ModelConfig, tensors: Mapping[str, NDArray[Any]], *, dtype: str = "F32"
) -> None:
    """Write a model folder that this server, transformers and vLLM read: weights, configuration and tokenizer.

    `tensors` have the names of `LlamaForCausalLM`; `dtype` is F16 or F32. Raise WeightsError if the tensors do not
    fit the configuration or are not finite.
    """
    check_tensors(tensors, config, source="The checkpoint")
    folder.mkdir(parents=True, exist_ok=True)
    write_safetensors(folder / "model.safetensors", tensors, dtype=dtype)
    for name, content in folder_files(config, dtype=dtype).items():
        (folder / name).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def folder_files(config: ModelConfig, *, dtype: str = "F32") -> dict[str, dict[str, Any]]:
    """Return the JSON files beside the weights, by name."""
    specials = [
        {
            "id": index,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for index, token in enumerate(tokenizer.SPECIAL_TOKENS)
    ]
    vocabulary = {token: index for index, token in enumerate(tokenizer.SPECIAL_TOKENS)}
    for byte, character in enumerate(byte_characters()):
        vocabulary[character] = byte + tokenizer.BYTE_OFFSET
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": False,
    }
    return {
        "config.json": config.to_json_dict() | {"dtype": {"F16": "float16"}.get(dtype, "float32")},
        "generation_config.json": {"eos_token_id": list(tokenizer.STOP_TOKENS), "pad_token_id": 0},
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": config.max_position_embeddings,
            "clean_up_tokenization_spaces": False,
            "bos_token": "<|endoftext|>",
            "eos_token": "<|end|>",
            "pad_token": "<|pad|>",
            "chat_template": JINJA_TEMPLATE,
        },
        "tokenizer.json": {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": specials,
            "normalizer": None,
            "pre_tokenizer": byte_level,
            "post_processor": None,
            "decoder": byte_level,
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": False,
                "ignore_merges": False,
                "vocab": vocabulary,
                "merges": [],
            },
        },
    }


def byte_characters() -> list[str]:
    """Return the printable character for each byte in a byte-level vocabulary file.

    Source: the byte table of GPT-2, https://github.com/openai/gpt-2 (`encoder.py`). Printable Latin-1 bytes stand for
    themselves; the others are mapped to the characters from U+0100 on, in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    unused = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(unused)) for byte in range(256)]
