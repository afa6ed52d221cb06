"""The shape of a model, read from a Hugging Face `config.json`."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from verifiers.endpoint.errors import WeightsError

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
