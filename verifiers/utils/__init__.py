"""Import paths of v0; the code they name lives elsewhere, and nothing inside the library imports from here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from verifiers.lazy_names import lazy_names

if TYPE_CHECKING:
    from verifiers.example_datasets import load_example_dataset as load_example_dataset
    from verifiers.logs import setup_logging as setup_logging
    from verifiers.parsers.answers import extract_boxed_answer as extract_boxed_answer
    from verifiers.parsers.answers import extract_hash_answer as extract_hash_answer

__all__, _load, __dir__ = lazy_names(__name__)


def __getattr__(name: str) -> Any:
    try:
        return _load(name)
    except AttributeError:
        from verifiers.v0.trainer_names import missing

        if (error := missing(__name__, name)) is not None:
            raise error from None
        raise
