"""A function as the model sees it."""

from enum import Enum
from typing import Annotated, Any, Literal, Optional

import pytest
from pydantic import BaseModel, Field

import verifiers as vf
from verifiers.tools.functions import (
    convert_func_to_oai_tool,
    convert_func_to_tool_def,
    is_valid_tool_content_parts,
    normalize_tool,
)


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Place(BaseModel):
    city: str
    zip: str | None = None


def parameters(func: Any) -> dict[str, Any]:
    return dict(convert_func_to_tool_def(func).parameters)


def test_name_description_and_arguments_come_from_the_function() -> None:
    def search(query: str, limit: int = 10) -> str:
        """Search the web.

        Looks everywhere.

        Args:
            query: What to look for.
            limit: How many results.

        Returns:
            Text.
        """
        return query

    tool = convert_func_to_tool_def(search)
    assert (tool.name, tool.description) == ("search", "Search the web.\n\nLooks everywhere.")
    properties: Any = tool.parameters["properties"]
    assert properties["query"] == {
        "description": "What to look for.",
        "title": "Query",
        "type": "string",
    }
    assert properties["limit"]["default"] == 10
    assert tool.parameters["required"] == ["query", "limit"]
    assert tool.parameters["additionalProperties"] is False


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        (bool, {"type": "boolean"}),
        (list[int], {"type": "array", "items": {"type": "integer"}}),
        (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
        (Optional[int], {"anyOf": [{"type": "integer"}, {"type": "null"}]}),  # noqa: UP045 - authors write it
        (Annotated[int, "How many"], {"type": "integer", "description": "How many"}),
        (Annotated[int, Field(ge=1)], {"type": "integer", "minimum": 1}),
        (Any, {}),
    ],
)
def test_types(annotation: Any, expected: dict[str, Any]) -> None:
    def func(value):  # type: ignore[no-untyped-def]
        """F."""

    func.__annotations__ = {"value": annotation}
    [found] = parameters(func)["properties"].values()
    assert {key: value for key, value in found.items() if key != "title"} == expected


def test_models_and_enums_are_described_strictly() -> None:
    def visit(place: Place, colour: Colour) -> str:
        """Visit."""
        return ""

    schema = parameters(visit)
    place = schema["$defs"]["Place"]
    assert (place["required"], place["additionalProperties"]) == (["city", "zip"], False)
    assert schema["$defs"]["Colour"]["enum"] == ["red", "blue"]
    # As in v0, a definition is inlined only where the parameter adds a description or a default.
    assert schema["properties"]["colour"] == {"$ref": "#/$defs/Colour"}

    def paint(colour: Colour, other: Colour | None, last: Colour = Colour.RED) -> None:
        """Paint.

        Args:
            colour: of the wall
        """

    properties = parameters(paint)["properties"]
    inlined = {"title": "Colour", "type": "string", "enum": ["red", "blue"]}
    assert properties["colour"] == {"description": "of the wall", **inlined}
    assert properties["other"] == {"anyOf": [{"$ref": "#/$defs/Colour"}, {"type": "null"}]}
    assert properties["last"] == {"default": "red", **inlined}


def test_names_that_pydantic_dislikes_are_kept() -> None:
    def odd(schema: str, _private: int, model_config: str, copy: str) -> str:
        """Odd."""
        return ""

    assert list(parameters(odd)["properties"]) == ["schema", "_private", "model_config", "copy"]


def test_a_function_without_documentation_or_parameters() -> None:
    def bare(): ...  # type: ignore[no-untyped-def]

    tool = convert_func_to_tool_def(bare)
    assert (tool.description, tool.parameters["properties"], tool.parameters["required"]) == (
        "",
        {},
        [],
    )


def test_what_json_cannot_express_is_refused() -> None:
    class Opaque:
        pass

    def takes(thing: Opaque) -> None: ...

    def takes_all(**kwargs: Any) -> None: ...

    with pytest.raises(vf.ConfigError, match="'takes' has a parameter that JSON cannot express"):
        convert_func_to_tool_def(takes)
    with pytest.raises(vf.ConfigError, match=r"takes \*\*kwargs, which a schema cannot describe"):
        convert_func_to_tool_def(takes_all)


def test_definitions_of_every_shape_are_normalised() -> None:
    def add(a: int) -> int:
        """Add."""
        return a

    tool = convert_func_to_tool_def(add)
    openai = convert_func_to_oai_tool(add)
    assert normalize_tool(tool) is tool
    assert normalize_tool(openai) == normalize_tool(dict(tool)) == tool
    assert normalize_tool({"function": {"name": "f", "strict": True}}) == {
        "name": "f",
        "description": "",
        "parameters": {"type": "object", "properties": {}},
        "strict": True,
    }
    with pytest.raises(vf.ConfigError, match="needs a 'name'"):
        normalize_tool({"description": "x"})


def test_which_results_are_content_parts() -> None:
    assert is_valid_tool_content_parts([{"type": "text", "text": "a"}])
    assert not is_valid_tool_content_parts([{"type": "video"}])
    assert not is_valid_tool_content_parts("text")
    assert not is_valid_tool_content_parts([1])


def test_a_parameter_that_cannot_be_given_by_name_is_refused() -> None:
    def take(value: int, /) -> int:
        return value

    with pytest.raises(vf.ConfigError, match="'value' by position only"):
        convert_func_to_tool_def(take)


def test_a_type_that_json_cannot_express_is_named_with_what_can_be_used() -> None:
    class Query: ...

    def ask(query: Query) -> str:
        return ""

    with pytest.raises(vf.ConfigError, match=r"Query.*Annotate it with str") as caught:
        convert_func_to_tool_def(ask)
    assert "pydantic.dev" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("tool", [3, "calculator", None])
def test_what_is_no_function_is_refused_as_a_tool(tool: Any) -> None:
    with pytest.raises(vf.ConfigError, match="A tool must be a function; got"):
        convert_func_to_tool_def(tool)


@pytest.mark.parametrize("heading", ["Args", "args", "ARGS", "arguments", "parameters", "Params"])
def test_a_section_of_a_docstring_is_recognised_in_any_case(heading: str) -> None:
    def tool(a: int, b: str) -> str:
        return ""

    tool.__doc__ = f"""Do it.

    More about args: they matter.

    {heading}:
        a: the first
        b (str): the second

    returns:
        A text.
    """
    definition = convert_func_to_tool_def(tool)
    assert definition.description == "Do it.\n\nMore about args: they matter."
    properties = definition.parameters["properties"]
    assert [properties[name]["description"] for name in "ab"] == ["the first", "the second"]


def test_numpy_sections_in_lower_case_are_recognised() -> None:
    def tool(a: int) -> str:
        """Do it.

        parameters
        ----------
        a : int
            the first

        returns
        -------
        str
            A text.
        """
        return ""

    definition = convert_func_to_tool_def(tool)
    assert definition.description == "Do it."
    assert definition.parameters["properties"]["a"]["description"] == "the first"
