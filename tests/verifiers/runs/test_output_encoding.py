import dataclasses
import datetime
import enum
import json
import logging
import math
import pathlib
import uuid
from array import array
from decimal import Decimal

import numpy as np
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verifiers.runs.output import decode_line, encode_document, encode_line, is_jsonable, jsonable
from verifiers.state import State
from verifiers.types import AssistantMessage


class Colour(enum.Enum):
    RED = "red"


class Point(pydantic.BaseModel):
    x: int
    y: int | None = None


@dataclasses.dataclass
class Pair:
    left: int
    right: object


class Text(str):
    __slots__ = ()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float32(1.5), 1.5),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (np.arange(3), [0, 1, 2]),
        (np.arange(6).reshape(2, 3)[:, ::2], [[0, 2], [3, 5]]),
        (np.array(["a", None], dtype=object), ["a", None]),
        (datetime.datetime(2020, 1, 2, 3, 4, 5), "2020-01-02T03:04:05"),
        (datetime.date(2020, 1, 2), "2020-01-02"),
        (datetime.timedelta(seconds=1.5), 1.5),
        (pathlib.PurePosixPath("/a/b"), "/a/b"),
        ({3, 1, 2}, [1, 2, 3]),
        (b"abc", "abc"),
        (b"\xff\x00", "data:;base64,/wA="),
        (array("d", [1.0]), [1.0]),
        ((1, (2,)), [1, [2]]),
        (Colour.RED, "red"),
        (Point(x=1), {"x": 1}),
        (Pair(1, {2}), {"left": 1, "right": [2]}),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (ValueError("no"), "ValueError('no')"),
        (AssistantMessage(content="c", tool_calls=None), {"role": "assistant", "content": "c"}),
        (State(a=1), {"a": 1}),
        (Text("t"), "t"),
        ({1: "a", None: "b"}, {"1": "a", "null": "b"}),
        ({2.5: "a", False: "b", True: "c"}, {"2.5": "a", "false": "b", "true": "c"}),
        ({(1, 2): 3}, {"(1, 2)": 3}),
        (Decimal("1.5"), 1.5),
        (float("nan"), None),
        (-math.inf, None),
        (np.float64("nan"), None),
    ],
)
def test_values_json_has_no_type_for_are_converted(value, expected, caplog):
    assert jsonable({"v": value}) == {"v": expected}
    assert not caplog.records


def test_a_value_of_an_unknown_type_is_saved_as_its_repr_and_its_key_is_named(caplog):
    class Handle:
        def __repr__(self):
            return "<handle>"

    with caplog.at_level(logging.WARNING):
        line = encode_line({"example_id": 7, "reward": 1.0, "box": {"handles": [1, Handle()]}})
    assert json.loads(line) == {"example_id": 7, "reward": 1.0, "box": {"handles": [1, "<handle>"]}}
    [record] = caplog.records
    assert "Example 7" in record.getMessage()
    assert "box.handles[1]" in record.getMessage()
    assert "Handle" in record.getMessage()


def test_a_repr_that_raises_does_not_cost_the_rollout(caplog):
    class Broken:
        def __repr__(self):
            raise RuntimeError("no")

    assert json.loads(encode_line({"x": Broken()})) == {
        "x": "<Broken whose repr raises RuntimeError>"
    }
    assert caplog.records


def test_a_value_that_contains_itself_is_cut_off(caplog):
    loop: dict[str, object] = {"reward": 1.0}
    loop["me"] = loop
    saved = json.loads(encode_line({"example_id": 1, "loop": loop}))
    assert saved["loop"]["me"]["reward"] == 1.0
    assert caplog.records


def test_huge_integers_and_lone_surrogates_survive_exactly():
    line = encode_line(
        {"n": 2**80, "text": "a\ud800b", "nan": float("nan"), "when": datetime.date(2020, 1, 1)}
    )
    assert json.loads(line) == {"n": 2**80, "text": "a\ud800b", "nan": None, "when": "2020-01-01"}
    assert decode_line(line)["text"] == "a\ud800b"


def test_dataclasses_and_uuids_are_converted_on_the_slow_path_too():
    pair = Pair(1, uuid.UUID(int=1))
    value = {"n": 2**80, "pair": pair, "colour": Colour.RED, "point": Point(x=2), "a": np.arange(2)}
    assert jsonable(value) == {
        "n": 2**80,
        "pair": {"left": 1, "right": "00000000-0000-0000-0000-000000000001"},
        "colour": "red",
        "point": {"x": 2},
        "a": [0, 1],
    }


def test_lines_of_0_1_14_with_nan_are_read():
    output = decode_line(b'{"example_id": 0, "reward": NaN}\n')
    assert math.isnan(output.reward)


@pytest.mark.parametrize("line", [b"[1]", b"3", b"null", b"{bad", b"", b"\x00\x00"])
def test_what_is_no_object_is_refused(line):
    with pytest.raises(ValueError, match=r"expected|Expecting|unexpected|char"):
        decode_line(line)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=20,
)


@settings(max_examples=50)
@given(st.dictionaries(st.text(), JSON))
def test_plain_values_come_back_as_they_were(value):
    line = encode_line(value)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert decode_line(line) == value


ODD = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters())
    | st.binary()
    | st.dates(),
    lambda children: (
        st.lists(children)
        | st.tuples(children)
        | st.dictionaries(st.text() | st.integers() | st.none() | st.booleans(), children)
    ),
    max_leaves=15,
)


@settings(max_examples=50)
@given(st.dictionaries(st.text(st.characters()), ODD))
def test_no_value_makes_a_line_fail(value):
    line = encode_line(value)
    assert line.count(b"\n") == 1
    assert isinstance(json.loads(line), dict)


def test_is_jsonable_tells_data_from_reprs():
    assert is_jsonable({"a": np.arange(3)})
    assert not is_jsonable([object()])


def test_documents_are_indented_and_readable():
    assert encode_document({"a": {"b": "é"}}) == '{\n  "a": {\n    "b": "é"\n  }\n}\n'.encode()
