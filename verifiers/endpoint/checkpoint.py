"""Writes a model folder that this server, transformers and vLLM read: weights, configuration, tokenizer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from verifiers.endpoint import tokenizer
from verifiers.endpoint.chat_template import JINJA_TEMPLATE
from verifiers.endpoint.configuration import ModelConfig
from verifiers.endpoint.weights import check_tensors, write_safetensors


def save_checkpoint(
    folder: Path, config: ModelConfig, tensors: Mapping[str, NDArray[Any]], *, dtype: str = "F32"
) -> None:
    """Writes the folder; `tensors` have the names of `LlamaForCausalLM`, `dtype` is F16 or F32.

    Raises WeightsError if the tensors do not fit the configuration or are not finite.
    """
    check_tensors(tensors, config, source="The checkpoint")
    folder.mkdir(parents=True, exist_ok=True)
    write_safetensors(folder / "model.safetensors", tensors, dtype=dtype)
    for name, content in folder_files(config, dtype=dtype).items():
        (folder / name).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def folder_files(config: ModelConfig, *, dtype: str = "F32") -> dict[str, dict[str, Any]]:
    """The JSON files next to the weights, by name."""
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
    """The printable character that stands for each byte in a byte-level vocabulary file.

    Source: the byte table of GPT-2, https://github.com/openai/gpt-2 (`encoder.py`): printable Latin-1
    bytes stand for themselves, the others for the characters from U+0100 on, in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    unused = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(unused)) for byte in range(256)]
