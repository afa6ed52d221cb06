import copy
import json
import pickle
from typing import Any

import pytest
from pydantic import BaseModel

import verifiers as vf
from verifiers.records import Record


class Point(Record):
    __slots__ = ()
    x: int
    y: int = 0
    tags: list[str] | None = None


class Line(Record):
    __slots__ = ()
    _nested = {"start": Point, "more": Point}
    type: str = "line"
    start: Point
    more: list[Point] | None = None


def test_a_record_reads_as_a_dict_and_by_attribute() -> None:
    point = Point(x=1)
    assert (point["x"], point.x, point.get("x"), point["y"], point.y, point.tags) == (
        1,
        1,
        1,
        0,
        0,
        None,
    )
    assert dict(point) == {"x": 1}  # what was not given is not stored
    point.y = 5
    point["extra"] = 6
    assert (point["y"], point.extra) == (5, 6)
    del point.y
    assert "y" not in point


def test_a_missing_field_or_attribute_is_named() -> None:
    with pytest.raises(ValueError, match=r"Point needs a 'x'; it received only \['y'\]"):
        Point(y=1)  # type: ignore[call-arg]
    with pytest.raises(AttributeError, match="'Point' object has no attribute 'z'"):
        _ = Point(x=1).z
    with pytest.raises(KeyError):
        Point(x=1)["z"]


def test_nested_dicts_become_records() -> None:
    line = Line(start={"x": 1}, more=[{"x": 2}, Point(x=3)])  # type: ignore[arg-type]
    assert (type(line.start), [type(point) for point in line.more or []]) == (Point, [Point, Point])
    assert line["type"] == "line"


@pytest.mark.parametrize("how", ["json", "pickle", "deepcopy", "model_dump", "validate_json"])
def test_a_record_survives_every_way_of_copying(how: str) -> None:
    line = Line(start=Point(x=1, y=2), more=[Point(x=3, tags=["a"])])
    ways: dict[str, Any] = {
        "json": lambda: json.loads(json.dumps(line)),
        "pickle": lambda: pickle.loads(pickle.dumps(line)),
        "deepcopy": lambda: copy.deepcopy(line),
        "model_dump": lambda: line.model_dump(exclude_unset=True),
        "validate_json": lambda: Line.model_validate_json(line.model_dump_json(exclude_none=True)),
    }
    found = ways[how]()
    assert found == line or found == json.loads(line.model_dump_json(exclude_none=True))
    if how in ("pickle", "deepcopy", "validate_json"):
        assert type(found) is Line
        assert found.start is not line.start


def test_pydantics_options_of_dumping() -> None:
    point = Point(x=1, y=0)
    assert point.model_dump() == {"x": 1, "y": 0, "tags": None}
    assert point.model_dump(exclude_none=True) == {"x": 1, "y": 0}
    assert point.model_dump(exclude_unset=True) == {"x": 1, "y": 0}
    assert point.model_dump(exclude_defaults=True) == {"x": 1}
    assert point.model_dump(include={"x"}) == {"x": 1}
    assert point.model_dump(exclude={"y", "tags"}) == {"x": 1}
    assert point.model_copy(update={"x": 9}) == {"x": 9, "y": 0}
    assert Point.model_validate(point) is point


def test_records_are_fields_of_authors_pydantic_models() -> None:
    class Config(BaseModel):
        opening: vf.UserMessage

    config = Config(opening={"role": "user", "content": "hi"})  # type: ignore[arg-type]
    assert type(config.opening) is vf.UserMessage
    assert config.model_dump() == {"opening": {"role": "user", "content": "hi"}}
    assert Config.model_validate_json(config.model_dump_json()) == config


def test_a_schema_and_the_types_of_fields_can_be_asked_for() -> None:
    assert Point.model_json_schema()["required"] == ["x"]
    assert Point.field_types() == {"x": int, "y": int, "tags": list[str] | None}
