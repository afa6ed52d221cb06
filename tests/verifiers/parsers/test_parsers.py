from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import verifiers as vf
from verifiers.parsers import extract_hash_answer, strip_non_numeric


def said(*texts: Any) -> list[dict[str, Any]]:
    """A completion in which the model speaks and the user answers in turns."""
    messages: list[dict[str, Any]] = []
    for text in texts:
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "and?"}]
    return messages


# ------------------------------------------------------------------------------------------ answers in text


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{4}", "4"),
        (r"\boxed{1} then \boxed{2}", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{1} then \boxed{2", "1"),
        (r"\boxed{}", ""),
        ("no box", "no box"),
        (r"\boxed{", r"\boxed{"),
    ],
)
def test_the_last_complete_box_is_the_answer(text: str, answer: str) -> None:
    assert vf.extract_boxed_answer(text) == answer


def test_without_a_box_a_strict_reader_finds_nothing() -> None:
    assert vf.extract_boxed_answer("4", strict=True) == ""


@given(st.text(alphabet="{}\\boxed ab1", max_size=60))
def test_reading_a_box_never_fails_and_gives_balanced_braces(text: str) -> None:
    found = vf.extract_boxed_answer(text, strict=True)
    assert found.count("{") == found.count("}")
    assert found in text


def test_hash_answers_and_numbers() -> None:
    assert extract_hash_answer("2+2\n#### 4 ") == "4"
    assert extract_hash_answer("4") == "4"
    assert strip_non_numeric("$1,234.5 dollars") == "1234.5"


# --------------------------------------------------------------------------------------------------- Parser


def test_the_plain_parser_gives_the_last_message_of_the_model() -> None:
    parser = vf.Parser(extract_fn=str.upper)
    assert parser.parse_answer(said("a", "b")) == "B"
    assert parser.parse_answer("text") == "TEXT"
    assert parser.parse_answer([]) is None
    assert parser.parse_answer([{"role": "text", "content": "raw"}]) == "RAW"
    assert parser.parse_answer([{"role": "assistant", "content": None}]) == ""


@pytest.mark.parametrize(
    "message",
    [
        {
            "role": "assistant",
            "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
        },
        vf.AssistantMessage(content=[vf.TextContentPart(text="a"), vf.TextContentPart(text="b")]),
        SimpleNamespace(role="assistant", content="a b"),
    ],
    ids=["dict", "record", "object"],
)
def test_messages_of_every_kind_are_read(message: Any) -> None:
    assert vf.Parser().parse_answer([message]) == "a b"


def test_messages_by_role() -> None:
    parser = vf.Parser()
    messages = [*said("a"), {"role": "system", "content": "s"}, {"role": "tool", "content": "t"}]
    assert [m["content"] for m in parser.get_assistant_messages(messages)] == ["a"]
    assert [m["content"] for m in parser.get_user_messages(messages)] == ["and?"]
    assert [m["content"] for m in parser.get_system_messages(messages)] == ["s"]
    assert [m["content"] for m in parser.get_tool_messages(messages)] == ["t"]


def test_the_plain_format_is_always_right() -> None:
    assert vf.Parser().get_format_reward_func()(said("x")) == 1.0


# ------------------------------------------------------------------------------------------------- thinking


@pytest.mark.parametrize(
    ("text", "always", "maybe"),
    [
        ("<think>a</think> b", "b", "b"),
        ("a</think>b", "b", "b"),
        ("b", "", "b"),
        ("<think>a", "", "<think>a"),
        ("<think>a</think>b<think>c</think>d", "d", "d"),
    ],
)
def test_what_follows_the_thoughts_is_the_answer(text: str, always: str, maybe: str) -> None:
    assert vf.ThinkParser().parse(text) == always
    assert vf.MaybeThinkParser().parse(text) == maybe
    assert vf.ThinkParser(extract_fn=len).parse(text) == len(always)


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ("<think>a</think>b", 1.0),
        (" <think>a</think>b ", 1.0),
        ("<think>a</think>", 0.0),
        ("a</think>b", 0.0),
        ("<think>a</think><think>b</think>c", 0.0),
    ],
)
def test_the_format_of_thoughts(text: str, reward: float) -> None:
    follows = vf.ThinkParser().get_format_reward_func()
    assert follows(said(text)) == reward
    assert follows(said(text, "<think>x</think>y")) == (reward + 1.0) / 2
    assert follows([]) == 0.0


# ---------------------------------------------------------------------------------------------------- XML


def test_a_subclass_of_the_xml_parser_may_set_its_fields_itself() -> None:
    class Quiet(vf.XMLParser):
        def __init__(self, fields: list[tuple[str, list[str]]]) -> None:
            vf.Parser.__init__(self)
            self._fields = fields
            self.answer_field = "answer"

        def parse(self, text: Any, strip: bool = True, last: bool = False) -> Any:
            return super().parse(text, strip=strip, last=last)

    parser = Quiet([("think", ["think"]), ("answer", ["answer", "result"])])
    reply = [{"role": "assistant", "content": "<think>a</think>\n<result> 4 </result>"}]
    assert parser.parse_answer(reply) == "4"
    assert parser.get_format_reward_func()(reply) == 1.0
    assert parser.get_format_str() == vf.XMLParser(["think", ("answer", "result")]).get_format_str()


PARSER = vf.XMLParser(["think", ("answer", "result")])


@pytest.mark.parametrize(
    ("text", "think", "answer", "result"),
    [
        ("<think>\na\n</think><answer> b </answer>", "a", "b", None),
        ("<result>b</result>", None, None, "b"),
        ("<answer>1</answer><answer>2</answer>", None, "1", None),
        ("<answer>open", None, None, None),
        ("<answer></answer>", None, "", None),
    ],
)
def test_fields_are_read(text: str, think: Any, answer: Any, result: Any) -> None:
    parsed = PARSER.parse(text)
    assert (parsed.think, parsed.answer, parsed.result) == (think, answer, result)


def test_the_last_of_several_can_be_asked_for() -> None:
    assert PARSER.parse("<answer>1</answer><answer>2</answer>", last=True).answer == "2"


def test_the_answer_is_the_first_one_of_a_message_and_the_last_one_of_a_text() -> None:
    twice = "<answer>3</answer> or <answer>4</answer>"
    assert PARSER.parse_answer(said("<answer>1</answer>", twice)) == "3"
    assert PARSER.parse_answer(twice) == "4"
    assert PARSER.parse_answer(said("<answer></answer><answer>5</answer>")) == ""


def test_the_answer_is_in_the_latest_message_that_has_one() -> None:
    completion = said("<answer>1</answer>", "<result>2</result>", "no tags")
    assert PARSER.parse_answer(completion) == "2"
    assert PARSER.parse_answer("<answer>3</answer>") == "3"
    assert PARSER.parse_answer(said("nothing")) is None
    assert vf.XMLParser(["a"], answer_field="a", extract_fn=int).parse_answer("<a>4</a>") == 4


def test_the_format_is_graded() -> None:
    grade = PARSER.get_format_reward_func()
    whole = "<think>a</think>\n<answer>b</answer>"
    assert grade(said(whole)) == pytest.approx(1.0)
    assert grade(said("<think>a</think>\n<result>b</result>")) == pytest.approx(1.0)
    assert grade(said("text only")) == pytest.approx(0.2)
    assert grade(said("<answer>b</answer>")) == pytest.approx(0.4 / 2 + 0.2 + 0.2)
    assert grade(said(whole, "text only")) == pytest.approx(0.6)
    assert grade([]) == 0.0


def test_a_format_can_be_shown_and_filled_in() -> None:
    assert PARSER.get_fields() == ["think", "answer"]
    assert "<[ answer | result ]>" in PARSER.get_format_str()
    filled = PARSER.format(think="a", result="b")
    assert filled == "<think>\na\n</think>\n<answer>\nb\n</answer>"
    assert PARSER.parse(filled).answer == "b"
    with pytest.raises(ValueError, match=r"Missing value for field 'answer' \(allowed:"):
        PARSER.format(think="a")


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ([5], TypeError, "string or a tuple of strings; got 5"),
        ([()], ValueError, "cannot be empty"),
        (["a", "a"], ValueError, "Duplicate field name: a"),
    ],
)
def test_wrong_fields_are_refused(fields: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        vf.XMLParser(fields)


names = st.text(alphabet="abcdefg", min_size=1, max_size=5)
values = st.text(alphabet=st.characters(blacklist_characters="<>"), max_size=20).map(str.strip)


@given(st.dictionaries(names, values, min_size=1, max_size=4))
def test_what_is_filled_in_is_read_back(fields: dict[str, str]) -> None:
    parser = vf.XMLParser(list(fields), answer_field=next(iter(fields)))
    text = parser.format(**fields)
    assert vars(parser.parse(text)) == fields
    assert parser.get_format_reward_func()(said(text)) == pytest.approx(1.0)


def test_system_prompts_are_those_of_v0_to_the_byte():
    from verifiers.utils.data_utils import BOXED_SYSTEM_PROMPT, THINK_BOXED_SYSTEM_PROMPT

    assert BOXED_SYSTEM_PROMPT == (
        "Please reason step by step, and put your final answer within \\boxed{}."
    )
    assert THINK_BOXED_SYSTEM_PROMPT == (
        "Think step-by-step inside <think>...</think> tags.     "
        "Then, give your final answer inside \\boxed{}."
    )
