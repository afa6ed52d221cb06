"""The numbers of a run in progress, and the lines they become; time is given, not waited for."""

import asyncio
import io

import pytest
from rich.console import Console

from vf_cli import output, report
from vf_cli.progress import LiveProgress, PlainProgress, Progress, displayed, duration


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def rollout(example: int, reward: float = 1.0, error: str | None = None, tokens: int = 10) -> dict:
    failed = (
        {"error": error, "error_chain_repr": f"{error}('why')", "error_chain_str": error}
        if error
        else None
    )
    usage = {"input_tokens": 5.0, "output_tokens": float(tokens)}
    return {
        "example_id": example,
        "reward": reward,
        "metrics": {},
        "error": failed,
        "token_usage": usage,
    }


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def progress(clock: Clock) -> Progress:
    started = Progress("title", 10, most_running=4, clock=clock)
    started.start(10, 10)
    return started


def test_speed_time_left_and_running_follow_what_finishes(progress, clock):
    finished = [rollout(0), rollout(1, 0.0)]
    clock.now += 2

    progress.update(finished, finished)

    assert (progress.done, progress.running, progress.tokens_per_s, progress.left_s) == (
        2,
        4,
        10.0,
        8.0,
    )
    assert progress.reward_text() == "0.500 ± 0.500"


def test_the_speed_is_that_of_late(progress, clock):
    outputs = []
    for tokens in (0, 0, 0, 300):
        clock.now += 10
        outputs.append(rollout(len(outputs), tokens=tokens))
        progress.update(outputs, outputs[-1:])

    assert progress.tokens_per_s == 15.0


def test_saved_rollouts_count_for_the_reward_but_not_for_the_speed(clock):
    progress = Progress("title", 4, clock=clock)
    saved, new = [rollout(0, 0.0, tokens=500)], [rollout(1, tokens=20)]
    progress.start(4, 3)
    clock.now += 2

    progress.update([*saved, *new], new)

    assert (progress.done, progress.saved_before, progress.tokens_per_s) == (2, 1, 10.0)
    assert progress.left_s == 4.0
    assert progress.reward_text().startswith("0.500")


def test_errors_are_counted_by_type_and_silence_is_said(progress, clock):
    outputs = [
        rollout(0, 0.0, "ModelError"),
        rollout(1, 0.0, "ModelError"),
        rollout(2, 0.0, "SandboxError"),
    ]
    progress.update(outputs, outputs)
    clock.now += 31

    facts = dict(progress.facts())

    assert facts["errors"] == "3 (ModelError 2, SandboxError 1)"
    assert facts["no rollout finished for"] == "31 s"


def test_rollouts_that_are_played_again_are_counted(progress):
    assert "retries" not in dict(progress.facts())

    progress.retried()
    progress.retried()

    assert dict(progress.facts())["retries"] == "2"


def test_plain_lines_come_every_ten_seconds_and_at_the_end(progress, clock):
    lines: list[str] = []
    plain = PlainProgress(progress, lines.append, clock)
    outputs = []
    for example in range(10):
        clock.now += 3
        outputs.append(rollout(example))
        progress.update(outputs, outputs[-1:])
        plain.changed()

    assert [line.split()[0] for line in lines] == ["4/10", "8/10", "10/10"]


def test_the_live_block_shows_hostile_names_harmlessly(clock):
    progress = Progress("bad \x1b]0;title\x07", 1, clock=clock)
    outputs = [rollout(0, 0.0, "Odd\x1b[2J")]
    progress.update(outputs, outputs)
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115

    console.print(LiveProgress(progress))
    console.file.close()

    assert "\x1b" not in console.export_text(styles=False)


async def test_output_that_is_no_terminal_gets_the_title_and_plain_lines(progress, capsys):
    async with displayed(progress) as update:
        outputs = [rollout(example) for example in range(10)]
        update(outputs, outputs)

    title, line = capsys.readouterr().err.splitlines()
    assert title == progress.title
    assert line.startswith("10/10")


@pytest.mark.parametrize("is_plain", [False, True])
async def test_a_terminal_gets_the_live_block_unless_plain_lines_are_requested(
    progress, monkeypatch, is_plain
):
    terminal = Console(file=io.StringIO(), force_terminal=True, width=100)
    monkeypatch.setattr(output, "stderr", lambda: terminal)
    async with displayed(progress, is_plain=is_plain) as update:
        outputs = [rollout(0)]
        update(outputs, outputs)
        await asyncio.sleep(0.01)

    assert ("1/10" in terminal.file.getvalue()) is not is_plain
    assert len(asyncio.all_tasks()) == 1


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.04, "0.0 s"), (9.96, "10.0 s"), (12.4, "12 s"), (134, "2 m 14 s"), (3725, "1 h 02 m")],
)
def test_durations_read_easily(seconds, shown):
    assert duration(seconds) == shown


@pytest.mark.parametrize(
    ("command", "kept"),
    [
        (["e", "--resume", "x", "-s"], ["e", "-s"]),
        (["e", "-R", "-s"], ["e", "-s"]),
        (["e", "--resume=x"], ["e"]),
        (["e", "-s", "--resume"], ["e", "-s"]),
    ],
)
def test_the_command_to_resume_names_one_run(command, kept):
    assert report.without_resume(command) == kept


def test_control_characters_never_reach_the_terminal():
    assert output.safe("a\x1b[31mb\r\nc\td\x9b") == "a�[31mb�\nc\td�"
