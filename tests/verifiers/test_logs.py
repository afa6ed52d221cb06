import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

import verifiers as vf
from verifiers.logs import log_once, print_size, print_time, truncate

logger = logging.getLogger("verifiers.test")


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    root = logging.getLogger("verifiers")
    before = (list(root.handlers), root.level, root.propagate)
    yield
    for handler in root.handlers:
        if handler not in before[0]:
            handler.close()
    root.handlers[:], root.propagate = before[0], before[2]
    root.setLevel(before[1])


def test_the_log_is_shown_once_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    vf.setup_logging("DEBUG")
    vf.setup_logging("INFO")
    logger.info("hello")
    logger.debug("unheard")
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("hello"), shown.err.count("unheard")) == ("", 1, 0)
    assert " - verifiers.test - INFO - hello" in shown.err


def test_setup_leaves_one_handler_however_often_it_is_called() -> None:
    package = logging.getLogger("verifiers")
    package.handlers[:] = [logging.NullHandler()]  # as after the import
    for _ in range(2):
        vf.setup_logging()
        [handler] = package.handlers
        assert type(handler) is logging.StreamHandler


def test_handlers_of_others_stay() -> None:
    other = logging.StreamHandler(io.StringIO())
    logging.getLogger("verifiers").addHandler(other)
    vf.setup_logging()
    assert other in logging.getLogger("verifiers").handlers


def test_the_log_can_go_to_a_file_as_json(tmp_path: Path) -> None:
    path = tmp_path / "new" / "log.jsonl"
    vf.setup_logging("INFO", log_file=path, console_logging=False, json_logging=True)
    try:
        raise ValueError("inside")
    except ValueError:
        logger.exception("failed with %s", "ä")
    [line] = [json.loads(line) for line in path.read_text().splitlines()]
    assert (line["level"], line["message"], line["name"]) == (
        "ERROR",
        "failed with ä",
        "verifiers.test",
    )
    assert "ValueError: inside" in line["exception"]


def test_levels_hold_inside_the_block_only() -> None:
    root = logging.getLogger("verifiers")
    vf.setup_logging("DEBUG")
    with vf.log_level("error"):
        assert root.level == logging.ERROR
        with vf.quiet_verifiers():
            assert root.level == logging.WARNING
    assert root.level == logging.DEBUG


def test_a_wrong_level_or_a_missing_file_is_said() -> None:
    with pytest.raises(ValueError, match=r"'LOUD' is not a log level\. Levels: "):
        vf.setup_logging("LOUD")
    with pytest.raises(ValueError, match="needs a log_file"):
        vf.setup_logging(file_logging=True)


def test_some_things_are_said_once(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        log_once(logger, logging.WARNING, "only once in this process")
    assert caplog.text.count("only once") == 1


def test_sizes_times_and_long_texts_for_people() -> None:
    assert [print_size(size) for size in (0, 500, 2048, 5e6, 3e9)] == [
        "0 bytes",
        "500 bytes",
        "2.0 KB",
        "4.8 MB",
        "2.8 GB",
    ]
    assert [print_time(time_s) for time_s in (0.1, 5, 65, 3700, 90000)] == [
        "100ms",
        "5s",
        "1m 5s",
        "1h 1m",
        "1d 1h",
    ]
    assert (truncate("abc", 2), truncate("abc")) == ("ab...", "abc")


PROMPT = [vf.UserMessage(content="q")]
COMPLETION = [
    vf.AssistantMessage(content="a", tool_calls=[vf.ToolCall(id="c", name="f", arguments="{}")])
]


def test_samples_are_shown_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    vf.print_prompt_completions_sample(
        [PROMPT] * 2, [COMPLETION] * 2, [None, vf.ModelError("x")], [1.0, 0.0], 3, num_samples=2
    )
    shown = capsys.readouterr().out
    for part in ("Step 3", "user: q", "assistant: a", "f({})", "error: ModelError", "1.00", "0.00"):
        assert part in shown


def test_samples_in_the_form_of_generation_a(capsys: pytest.CaptureFixture[str]) -> None:
    vf.print_prompt_completions_sample([PROMPT], [COMPLETION], [0.5], 7)  # type: ignore[arg-type]
    shown = capsys.readouterr().out
    assert ("Step 7" in shown, "0.50" in shown) == (True, True)
