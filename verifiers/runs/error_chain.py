"""Errors as v0's names read them: chains of causes, and what is saved of an error turned back into one.

The library itself uses `verifiers.errors.error_chain` and `verifiers.saved_errors.error_info`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import takewhile
from typing import Any, TypedDict

from verifiers.errors import Error, error_chain
from verifiers.saved_errors import error_info


class ErrorData(TypedDict):
    """What 0.3 saved of an error."""

    error: str
    message: str
    error_chain_repr: str
    error_chain_str: str


def get_error_chain(
    error: BaseException | None, parent_type: type[BaseException] | None = None
) -> list[BaseException]:
    """The error and its causes, outermost first; up to the first that is no `parent_type`, if one is given."""
    chain = error_chain(error)
    if parent_type is None:
        return chain
    return list(takewhile(lambda link: isinstance(link, parent_type), chain))


def get_vf_error_chain(error: BaseException) -> list[Error]:
    """The error and its causes as long as they are this library's."""
    return list(takewhile(lambda link: isinstance(link, Error), error_chain(error)))  # type: ignore[arg-type]  # checked


class ErrorChain:
    """An error with its causes; equal when the types are; `SomeError in chain` asks for a type in it."""

    def __init__(
        self,
        error: BaseException,
        build_error_chain: Callable[[BaseException], list[BaseException]] = get_error_chain,
    ) -> None:
        self.root_error = error
        self.chain = build_error_chain(error)

    def _types(self) -> tuple[type[BaseException], ...]:
        return tuple(type(link) for link in self.chain)

    def __contains__(self, error_type: type[BaseException]) -> bool:
        return any(issubclass(kind, error_type) for kind in self._types())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ErrorChain) and self._types() == other._types()

    def __hash__(self) -> int:
        return hash(self._types())

    def __str__(self) -> str:
        return " -> ".join(kind.__name__ for kind in self._types())

    def __repr__(self) -> str:
        return " -> ".join(map(repr, self.chain))


def error_data(error: BaseException) -> ErrorData:
    """What is saved of an error, with its own message apart."""
    saved = error_info(error)
    return {
        "error": saved["error"],
        "message": str(error),
        "error_chain_repr": saved["error_chain_repr"],
        "error_chain_str": saved["error_chain_str"],
    }


def is_error_data(value: object) -> bool:
    """Whether the value has every field of `ErrorData` as text."""
    return isinstance(value, Mapping) and all(
        isinstance(value.get(name), str) for name in ErrorData.__annotations__
    )


def validate_error_data(value: object) -> ErrorData:
    """The value, or TypeError when it is no `ErrorData`."""
    if not is_error_data(value):
        raise TypeError(
            f"Saved errors have the text fields {[*ErrorData.__annotations__]}; got {value!r:.200}."
        )
    return value  # type: ignore[return-value]  # just checked


def error_type_name(error: object) -> str | None:
    """The type's name of an error or of a saved one; None for anything else."""
    if isinstance(error, BaseException):
        return type(error).__name__
    name = error.get("error") if isinstance(error, Mapping) else None
    return name if isinstance(name, str) else None


def vf_error_types() -> tuple[type[Error], ...]:
    """Every error type of this library that is loaded, subclasses before their bases."""
    return tuple(dict.fromkeys(_bottom_up(Error)))


def _bottom_up(kind: type[Error]) -> Iterator[type[Error]]:
    for subclass in kind.__subclasses__():
        yield from _bottom_up(subclass)
    yield kind


def error_info_to_exception(
    error: Mapping[str, Any], error_types: tuple[type[Exception], ...]
) -> Exception | None:
    """A saved error as an exception of the first given type that it, or one of its causes, was; else None."""
    names = _chain_names(error)
    for kind in error_types:
        if names & {loaded.__name__ for loaded in _tree(kind)}:
            return kind(error.get("error_chain_repr") or error.get("error"))
    return None


error_data_to_exception = error_info_to_exception


def error_from_data(error: Mapping[str, Any]) -> Error:
    """A saved error as the most special of this library's types that it was."""
    text = error.get("error_chain_repr") or error.get("error")
    for kind in vf_error_types():
        if kind.__name__ == error.get("error"):
            return kind(text)
    return Error(text)


def _chain_names(error: Mapping[str, Any]) -> set[str]:
    links = str(error.get("error_chain_str") or "").split(" -> ")
    return {str(error.get("error"))} | {link.partition(":")[0].strip() for link in links}


def _tree(kind: type[BaseException]) -> Iterator[type[BaseException]]:
    yield kind
    for subclass in kind.__subclasses__():
        yield from _tree(subclass)
