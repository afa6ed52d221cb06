"""Names of the trainers that older releases contained. None of them is offered: each name is an error with advice.

`hasattr` has to be False and `getattr` with a default has to return the default, so an access raises AttributeError.
`from package import name` raises ImportError. Python replaces the text of an AttributeError there, so `missing` raises
the ImportError itself.
"""

from __future__ import annotations

import dis
import sys

_TRAINER = "`verifiers.training`, or the trainer of your choice"
_CONFIGURATION = "the configuration of the trainer of your choice"
_MODEL = "`transformers.AutoModelForCausalLM` and `AutoTokenizer`"
_INFERENCE = "the inference server of the trainer of your choice"

REPLACEMENTS = {
    "AsyncBatchGenerator": "`verifiers.training.source.RolloutSource`",
    "GRPOConfig": _CONFIGURATION,
    "GRPOEnvTrainer": _TRAINER,
    "GRPOTrainer": _TRAINER,
    "RLConfig": _CONFIGURATION,
    "RLTrainer": _TRAINER,
    "VLLMClient": _INFERENCE,
    "get_lora_model_and_tokenizer": f"{_MODEL} with `peft.LoraConfig`",
    "get_model": "`transformers.AutoModelForCausalLM.from_pretrained`",
    "get_model_and_tokenizer": _MODEL,
    "get_tokenizer": "`transformers.AutoTokenizer.from_pretrained`",
    "grpo_defaults": _CONFIGURATION,
    "inference": _INFERENCE,
    "lora_defaults": "`peft.LoraConfig`",
    "preprocess_dataset": "`vf.load_example_dataset`",
    "trainers": _TRAINER,
}
"""Name → its replacement."""


def advice(package: str, name: str) -> str:
    """Return the sentence that errors about `package.name` contain."""
    return (
        f"{package}.{name} belonged to an older release and left the package with its trainer. "
        f"Use {REPLACEMENTS[name]} instead; `verifiers.training` and docs/migrating.md show how to train."
    )


def missing(package: str, name: str) -> AttributeError | ImportError | None:
    """Return the error for an access to `package.name`, or None for any other name. Only the `__getattr__` of the
    package calls this function.
    """
    if name not in REPLACEMENTS:
        return None
    access = sys._getframe(2)  # of the code that names `package.name`
    is_import = dis.opname[access.f_code.co_code[access.f_lasti]] == "IMPORT_FROM"
    return (ImportError if is_import else AttributeError)(advice(package, name))


def missing_module(name: str) -> ModuleNotFoundError:
    """Return the error for `import verifiers.name`."""
    return ModuleNotFoundError(advice("verifiers", name), name=f"verifiers.{name}")
