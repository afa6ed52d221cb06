"""Find the reward functions that need the `answer` of a dataset row.

If a row has no `answer`, the rollout offers "", as in v0. `"" in text` is always true, so such a function rewards any
text. But half of all published functions name `answer` only because v0's examples do. This module therefore reads the
code of a function. The answer counts as needed if the function uses it: compares it, searches for it, computes with it.
It is not needed by a function that never reads it, tests it for emptiness, only displays it, or passes it to a judge
together with the rest of the rollout. Functions that the function calls are read in the same way.
"""

from __future__ import annotations

import ast
import dis
import inspect
import linecache
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any

from verifiers.rubrics.reward_call import RewardCall
from verifiers.rubrics.rubric import Rubric
from verifiers.rubrics.rubric_group import scores_plainly

_ROLLOUT_VALUES = frozenset({"prompt", "completion", "state"})
"""A call that receives one of these values beside `answer`, and whose code cannot be read, counts as a judge."""
_SHOWING = frozenset(
    {"print", "format", "debug", "info", "warning", "error", "exception", "log", "repr"}
)
"""Calls that only display their arguments or put them into a text."""
_DEEPEST = 4
"""Maximum depth of nested calls that are read."""


def functions_that_need_answers(rubric: Rubric) -> list[str]:
    """Return the names of the functions with a weight that need the `answer` of the row."""
    members = getattr(rubric, "rubrics", None)
    if members is not None:
        return [name for member in members for name in functions_that_need_answers(member)]
    if not scores_plainly(rubric) or rubric.class_objects.keys() & {"answer", "answers"}:
        return []  # the rubric calls its functions in its own way, or provides the answer itself
    return [call.name for call in rubric.reward_calls() if call.weight and _needs_answer(call)]


def _needs_answer(call: RewardCall) -> bool:
    named = {"answer", "answers"} if call.per_group else {"answer"}
    asked = named & call.required
    return any(_reads(call.func, name, _DEEPEST) for name in asked)


def stores_answer(function: Any) -> bool:
    """Whether a function sets a key `answer`: the answer may then come during the rollout."""
    function = inspect.unwrap(getattr(function, "__func__", function))
    code = getattr(function, "__code__", None)
    return code is not None and any(map(_code_stores_answer, _codes(code)))


def _code_stores_answer(code: CodeType) -> bool:
    if any(isinstance(const, tuple) and "answer" in const for const in code.co_consts):
        return True  # the names of keyword arguments, or the keys of a dict
    previous: Any = None
    for instruction in dis.get_instructions(code):
        if instruction.opname == "STORE_SUBSCR" and previous == "answer":
            return True
        previous = instruction.argval
    return "update" in code.co_names and "answer" in code.co_consts


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _codes(const)


# ------------------------------------------------------------------------------------- reading a function's code


def _reads(function: Any, parameter: str, depth: int) -> bool:
    """Whether a function needs the value of its parameter. A function without readable code needs it."""
    plain = _plain_function(function)
    if plain is None:
        return True
    if not any(_loads(code, parameter) for code in _codes(plain.__code__)):
        return False
    node = _node_of(plain)
    return node is None or _Reading(plain, node, parameter, depth).is_needed()


def _plain_function(function: Any) -> FunctionType | None:
    while (inner := getattr(function, "func", None)) is not None:  # functools.partial
        function = inner
    function = inspect.unwrap(getattr(function, "__func__", function))
    if not isinstance(function, FunctionType):
        function = getattr(type(function), "__call__", None)  # noqa: B004 - an object that is called
    return function if isinstance(function, FunctionType) else None


def _loads(code: CodeType, name: str) -> bool:
    return any(
        instruction.opname.startswith("LOAD")
        and (instruction.argval == name or _holds(instruction.argval, name))
        for instruction in dis.get_instructions(code)
        if instruction.opname not in ("LOAD_CLOSURE", "LOAD_CONST", "LOAD_ATTR", "LOAD_METHOD")
    )


def _holds(value: Any, name: str) -> bool:
    return isinstance(value, tuple) and name in value


def _node_of(function: FunctionType) -> ast.AST | None:
    """Return the syntax tree of a function, found by its first line; None if the source is missing or ambiguous."""
    code = function.__code__
    lines = linecache.getlines(code.co_filename, function.__globals__)
    try:
        tree = ast.parse("".join(lines))
    except (SyntaxError, ValueError):
        return None
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        and _first_line(node) == code.co_firstlineno
        and tuple(arg.arg for arg in _arguments(node.args)) == names
    ]
    return found[0] if len(found) == 1 else None


def _first_line(node: Any) -> int:
    return min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", []))])


def _arguments(arguments: ast.arguments) -> list[ast.arg]:
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]


class _Reading:
    """The uses of one parameter in one function."""

    def __init__(self, function: FunctionType, node: Any, parameter: str, depth: int) -> None:
        self._function = function
        self._parameter = parameter
        self._depth = depth
        body = node.body if isinstance(node.body, list) else [node.body]
        self._nodes = [inner for statement in body for inner in ast.walk(statement)]
        self._parents = {
            child: outer for outer in self._nodes for child in ast.iter_child_nodes(outer)
        }

    def is_needed(self) -> bool:
        """Whether a use is not a test for emptiness, a display, or an argument of a call that ignores it."""
        uses = [node for node in self._nodes if self._is_use(node)]
        return not any(map(self._is_tested, uses)) and any(map(self._is_needed_at, uses))

    def _is_use(self, node: ast.AST) -> bool:
        return (
            isinstance(node, ast.Name)
            and node.id == self._parameter
            and isinstance(node.ctx, ast.Load)
        )

    def _is_tested(self, use: ast.AST) -> bool:
        outer = self._parents.get(use)
        match outer:
            case ast.If() | ast.IfExp() | ast.While():
                return outer.test is use
            case ast.BoolOp() | ast.UnaryOp(op=ast.Not()):
                return True
            case ast.Compare(
                ops=[ast.Is() | ast.IsNot() | ast.Eq() | ast.NotEq()],
                comparators=[ast.Constant(value=None | "")],
            ):
                return outer.left is use
            case ast.Call(func=ast.Name(id="len" | "bool")):
                return True
            case ast.Call(func=ast.Attribute(attr="strip")) | ast.Attribute(attr="strip"):
                return self._is_tested(outer)  # `if not answer.strip()`
            case _:
                return False

    def _is_needed_at(self, use: ast.AST) -> bool:
        outer = self._parents.get(use)
        if isinstance(outer, ast.FormattedValue | ast.Expr):
            return False
        if isinstance(outer, ast.Tuple):  # `_ = prompt, answer`
            outer = self._parents.get(outer)
        if isinstance(outer, ast.Assign):
            return not all(isinstance(t, ast.Name) and t.id == "_" for t in outer.targets)
        keyword = outer.arg if isinstance(outer, ast.keyword) else None
        if isinstance(outer, ast.keyword):
            outer = self._parents.get(outer)
        if not isinstance(outer, ast.Call) or outer.func is use:
            return True
        return self._is_needed_by(outer, use, keyword)

    def _is_needed_by(self, call: ast.Call, use: ast.AST, keyword: str | None) -> bool:
        name = call.func.attr if isinstance(call.func, ast.Attribute) else None
        name = call.func.id if isinstance(call.func, ast.Name) else name
        if name in _SHOWING:
            return False
        callee = self._callee(call.func)
        if callee is not None and self._depth:
            parameter = keyword or _parameter_at(callee, call, use)
            return parameter is None or _reads(callee, parameter, self._depth - 1)
        given = [*call.args, *(one.value for one in call.keywords)]
        return not any(isinstance(one, ast.Name) and one.id in _ROLLOUT_VALUES for one in given)

    def _callee(self, called: ast.AST) -> Callable[..., Any] | None:
        """Return the function behind a plain name, from the closure or the globals."""
        if not isinstance(called, ast.Name) or called.id in self._function.__code__.co_varnames:
            return None
        cells = zip(
            self._function.__code__.co_freevars, self._function.__closure__ or (), strict=False
        )
        for name, cell in cells:
            if name == called.id:
                try:
                    found = cell.cell_contents
                except ValueError:
                    return None
                return found if isinstance(found, FunctionType) else None
        found = self._function.__globals__.get(called.id)
        return found if isinstance(found, FunctionType) else None


def _parameter_at(callee: FunctionType, call: ast.Call, use: ast.AST) -> str | None:
    if any(isinstance(argument, ast.Starred) for argument in call.args) or use not in call.args:
        return None
    position = call.args.index(use)  # type: ignore[arg-type]  # `use in call.args` above
    names = callee.__code__.co_varnames[: callee.__code__.co_argcount]
    return names[position] if position < len(names) else None
