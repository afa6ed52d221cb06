"""Filter expressions: `reward < 0.5 and metrics.accuracy == 0 and error ~ "Tool"`.

    expression   comparison, `and`, `or`, `not`, parentheses
    comparison   OPERAND  == != < <= > >= ~ !~ in  OPERAND, or an operand alone, which is tested for truth
    operand      a number, "text", true, false, null, a field, len(field), [list of literals]
    field        reward, metrics.accuracy, info.level, completion[-1].content, metrics."name with spaces"

`~` means "contains", without regard to case; `!~` is its opposite. A field that a rollout does not have is null. A
comparison of null, or of values of different types, with `<` or `>` is false.

An expression over columns is evaluated on whole arrays. Any other field is read from the saved line.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from verifiers.view.columns import ALIASES, BOOLEANS, DERIVED, RunColumns

Mask = NDArray[np.bool_]
MAX_LENGTH = 2000
"""Maximum length of an expression, in characters."""
MAX_DEPTH = 60


class FilterError(ValueError):
    """An expression that is not valid. `position` counts characters from 0."""

    def __init__(self, message: str, position: int) -> None:
        super().__init__(f"{message} (at character {position + 1})")
        self.position = position


class _Token(NamedTuple):
    kind: str
    text: str
    position: int


_TOKENS = re.compile(
    r"""\s*(?:
      (?P<number>-?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)
    | (?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
    | (?P<op>==|!=|<=|>=|!~|=~|&&|\|\||[=<>~!()\[\],.])
    | (?P<name>[^\W\d]\w*)
    )""",
    re.VERBOSE,
)
_LITERALS = {"true": True, "false": False, "null": None, "none": None}
_SAME = {"=": "==", "=~": "~", "&&": "and", "||": "or", "!": "not"}
_COMPARISONS = ("==", "!=", "<=", ">=", "<", ">", "~", "!~", "in")


def _tokens(text: str) -> list[_Token]:
    if len(text) > MAX_LENGTH:
        raise FilterError(f"A filter has at most {MAX_LENGTH} characters.", MAX_LENGTH)
    found, position = [], 0
    end = len(text.rstrip())
    while position < end:
        match = _TOKENS.match(text, position)
        if match is None or match.lastgroup is None:
            start = position + len(text[position:]) - len(text[position:].lstrip())
            if text[start] in "\"'":
                raise FilterError("The text has no closing quotation mark", start)
            raise FilterError(f"Unexpected character {text[start]!r}", start)
        kind, content = match.lastgroup, match[match.lastgroup]
        position = match.end()
        content = _SAME.get(content, content) if kind == "op" else content
        word = content.lower() if kind == "name" else content
        if word in ("and", "or", "not", "in"):
            kind, content = "op", word
        found.append(_Token(kind, content, match.start(match.lastgroup)))
    return [*found, _Token("end", "", end)]


# --- the tree


@dataclass(frozen=True)
class _Literal:
    value: Any


@dataclass(frozen=True)
class _Field:
    path: tuple[str | int, ...]
    position: int
    is_length: bool = False

    @property
    def name(self) -> str:
        return ".".join(map(str, self.path))


@dataclass(frozen=True)
class _Compare:
    op: str
    left: _Literal | _Field
    right: _Literal | _Field


@dataclass(frozen=True)
class _Both:
    op: str
    parts: tuple[Any, ...]


@dataclass(frozen=True)
class _Not:
    part: Any


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._at = 0
        self._depth = 0

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at]

    def _take(self, *texts: str) -> _Token | None:
        token = self._next
        if token.kind == "op" and token.text in texts:
            self._at += 1
            return token
        return None

    def _expect(self, text: str, what: str) -> None:
        if self._take(text) is None:
            raise FilterError(
                f"Expected {text!r} {what}, found {self._found()}", self._next.position
            )

    def _found(self) -> str:
        return "the end" if self._next.kind == "end" else repr(self._next.text)

    def whole(self) -> Any:
        tree = self._either()
        if self._next.kind != "end":
            raise FilterError(
                f"Expected `and`, `or` or the end, found {self._found()}", self._next.position
            )
        return tree

    def _either(self) -> Any:
        return self._joined("or", lambda: self._joined("and", self._negation))

    def _joined(self, op: str, part: Callable[[], Any]) -> Any:
        parts = [part()]
        while self._take(op):
            parts.append(part())
        return parts[0] if len(parts) == 1 else _Both(op, tuple(parts))

    def _negation(self) -> Any:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise FilterError("The filter is nested too deeply", self._next.position)
        try:
            if self._take("not"):
                return _Not(self._negation())
            if self._take("("):
                inner = self._either()
                self._expect(")", "after the expression")
                return inner
            return self._comparison()
        finally:
            self._depth -= 1

    def _comparison(self) -> Any:
        left = self._operand()
        token = self._take(*_COMPARISONS)
        if token is None:
            if self._take("not"):
                self._expect("in", "after `not`")
                return _Not(_Compare("in", left, self._operand()))
            return _Compare("true", left, _Literal(None))
        return _Compare(token.text, left, self._operand())

    def _operand(self) -> _Literal | _Field:
        token = self._next
        if self._take("["):
            return _Literal(tuple(self._list()))
        if token.kind == "number":
            self._at += 1
            return _Literal(float(token.text))
        if token.kind == "text":
            self._at += 1
            return _Literal(_unquoted(token))
        if token.kind != "name":
            raise FilterError(f"Expected a field or a value, found {self._found()}", token.position)
        self._at += 1
        if token.text.lower() in _LITERALS:
            return _Literal(_LITERALS[token.text.lower()])
        if token.text == "len" and self._take("("):
            inner = self._operand()
            if not isinstance(inner, _Field):
                raise FilterError("`len` takes a field", token.position)
            self._expect(")", "after the field")
            return _Field(inner.path, token.position, is_length=True)
        return self._field(token)

    def _list(self) -> list[Any]:
        values: list[Any] = []
        while not self._take("]"):
            if values:
                self._expect(",", "between two values")
            value = self._operand()
            if not isinstance(value, _Literal):
                raise FilterError("A list contains values only", self._next.position)
            values.append(value.value)
        return values

    def _field(self, first: _Token) -> _Field:
        path: list[str | int] = [first.text]
        while True:
            if self._take("."):
                token = self._next
                if (
                    token.kind not in ("name", "text", "number")
                    and token.text not in _SAME.values()
                ):
                    raise FilterError("Expected a name after the dot", token.position)
                self._at += 1
                path.append(_unquoted(token) if token.kind == "text" else token.text)
            elif self._take("["):
                token = self._next
                if token.kind not in ("number", "text"):
                    raise FilterError("Expected a number or a quoted name", token.position)
                self._at += 1
                path.append(_unquoted(token) if token.kind == "text" else int(float(token.text)))
                self._expect("]", "after the position")
            else:
                return _Field(tuple(path), first.position)


def _unquoted(token: _Token) -> str:
    inner = token.text[1:-1]
    return re.sub(r"\\(.)", lambda match: {"n": "\n", "t": "\t"}.get(match[1], match[1]), inner)


# --- evaluation


class Filter:
    """A parsed filter expression. Raises FilterError."""

    def __init__(self, text: str) -> None:
        self.text = text.strip()
        self._tree = _Parser(text).whole()

    def check_fields(self, columns: RunColumns, keys: list[str]) -> None:
        """Raise FilterError for a field that is neither a column nor a key of the saved lines."""
        for field in _fields(self._tree):
            first = str(field.path[0])
            known = {
                *keys,
                *ALIASES,
                *(name.split(".")[0] for name in columns.names()),
                *columns.metrics,
            }
            if known and first not in known:
                near = get_close_matches(first, sorted(known), n=1)
                hint = f". Did you mean {near[0]!r}?" if near else ""
                raise FilterError(f"No rollout has the field {first!r}{hint}", field.position)

    def needs_lines(self, columns: RunColumns) -> bool:
        """Whether a field is only in the saved lines."""
        return not _is_columnar(self._tree, columns)

    def mask(self, columns: RunColumns) -> Mask:
        """Return the rows that may match, `[rollouts]`: exactly the matches unless the filter needs the lines."""
        parts = self._tree.parts if _is_and(self._tree) else (self._tree,)
        mask = np.ones(columns.count, dtype=bool)
        for part in parts:
            if _is_columnar(part, columns):
                mask &= _mask(part, columns)
        return mask

    def matches(self, output: Mapping[str, Any]) -> bool:
        """Whether an output matches."""
        return _test(self._tree, output)


def _is_and(tree: Any) -> bool:
    return isinstance(tree, _Both) and tree.op == "and"


def _fields(tree: Any) -> list[_Field]:
    if isinstance(tree, _Compare):
        return [side for side in (tree.left, tree.right) if isinstance(side, _Field)]
    parts = tree.parts if isinstance(tree, _Both) else (tree.part,)
    return [field for part in parts for field in _fields(part)]


def _is_columnar(tree: Any, columns: RunColumns) -> bool:
    return all(
        not field.is_length and columns.column(field.name) is not None for field in _fields(tree)
    )


def _mask(tree: Any, columns: RunColumns) -> Mask:
    if isinstance(tree, _Both):
        masks = [_mask(part, columns) for part in tree.parts]
        return np.logical_and.reduce(masks) if tree.op == "and" else np.logical_or.reduce(masks)
    if isinstance(tree, _Not):
        return ~_mask(tree.part, columns)
    left, right = tree.left, tree.right
    if isinstance(left, _Field) and isinstance(right, _Literal):
        return _column_mask(
            columns, _column_of(left, tree, columns), lambda v: _compare(tree.op, v, right.value)
        )
    if isinstance(left, _Literal) and isinstance(right, _Field):
        return _column_mask(
            columns, _column_of(right, tree, columns), lambda v: _compare(tree.op, left.value, v)
        )
    if isinstance(left, _Literal):
        return np.full(columns.count, _compare(tree.op, left.value, right.value))
    names = _column_of(left, tree, columns), _column_of(right, tree, columns)
    return np.fromiter(
        (
            _compare(tree.op, columns.value(names[0], row), columns.value(names[1], row))
            for row in range(columns.count)
        ),
        dtype=bool,
        count=columns.count,
    )


def _column_of(field: _Field, compare: _Compare, columns: RunColumns) -> str:
    name = columns.column(field.name)
    assert name is not None
    # `error == "ToolError"` compares the type; `error ~ "…"` searches the type and the message.
    return "error_type" if name == "error" and compare.op in ("==", "!=", "in") else name


def _column_mask(columns: RunColumns, name: str, test: Callable[[Any], bool]) -> Mask:
    """Return where `test` holds, evaluated once per different value."""
    if name in columns.texts:
        column = columns.texts[name]
        results = np.array([*(test(label) for label in column.labels), test(None)], dtype=bool)
        return results[column.codes]  # code -1, no text, is the last entry
    values, places = np.unique(columns.numbers[name], return_inverse=True)
    is_boolean = name in BOOLEANS
    results = [
        test(None if value != value else bool(value) if is_boolean else value)  # NaN
        for value in values.tolist()
    ]
    return np.array(results, dtype=bool)[places] if results else np.zeros(0, dtype=bool)


_ORDERS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def _compare(op: str, left: Any, right: Any) -> bool:
    if op == "true":
        return bool(left)
    if op in ("==", "!="):
        return _equal(left, right) == (op == "==")
    if op == "in":
        if isinstance(right, tuple | list):
            return any(_equal(left, item) for item in right)
        return _contains(right, left)
    if op in ("~", "!~"):
        return _contains(left, right) == (op == "~")
    if isinstance(left, str) != isinstance(right, str):
        left, right = _as_number(left), _as_number(right)
    is_number = _is_number(left) and _is_number(right)
    if is_number or (isinstance(left, str) and isinstance(right, str)):
        return bool(_ORDERS[op](left, right))
    return False


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _as_number(value: Any) -> Any:
    """Return a text that is a number as a number: example ids are texts in some datasets."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return None


def _equal(left: Any, right: Any) -> bool:
    if _is_number(left) != _is_number(right) and isinstance(left, str) != isinstance(right, str):
        left, right = _as_number(left), _as_number(right)
        return left is not None and right is not None and bool(left == right)
    return bool(left == right)


def _contains(whole: Any, part: Any) -> bool:
    if whole is None or part is None:
        return False
    return as_text(part).casefold() in as_text(whole).casefold()


def as_text(value: Any) -> str:
    """Return a value as text: a text unchanged, other values as JSON."""
    if isinstance(value, str):
        return value
    try:
        return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
    except TypeError:
        return str(value)


def _test(tree: Any, output: Mapping[str, Any]) -> bool:
    if isinstance(tree, _Both):
        tests = (_test(part, output) for part in tree.parts)
        return all(tests) if tree.op == "and" else any(tests)
    if isinstance(tree, _Not):
        return not _test(tree.part, output)
    return _compare(
        tree.op,
        _operand_value(tree.left, tree.op, output),
        _operand_value(tree.right, tree.op, output),
    )


def _operand_value(operand: _Literal | _Field, op: str, output: Mapping[str, Any]) -> Any:
    if isinstance(operand, _Literal):
        return operand.value
    value = _lookup(operand, op, output)
    if not operand.is_length:
        return value
    return len(value) if isinstance(value, str | list | dict) else None


def _lookup(field: _Field, op: str, output: Mapping[str, Any]) -> Any:
    name = ALIASES.get(field.name, field.name)
    if name in DERIVED:
        is_type = name == "error" and op in ("==", "!=", "in")
        return DERIVED["error_type" if is_type else name](output)
    path = field.path if name == field.name else tuple(name.split("."))
    value = _inside(output, path)
    if value is None and len(path) == 1:
        value = _inside(output, ("metrics", path[0]))
    if isinstance(value, Mapping) and path[:1] == ("timing",):
        value = value.get("duration")
    return value


def _inside(value: Any, path: tuple[str | int, ...]) -> Any:
    for key in path:
        if isinstance(value, Mapping):
            value = value.get(str(key))
        elif isinstance(value, list) and str(key).lstrip("-").isdigit():
            position = int(key)
            value = value[position] if -len(value) <= position < len(value) else None
        else:
            return None
    return value
