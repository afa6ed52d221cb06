import pytest
from higher_lower import gold_completion, gold_reply, load_environment

from verifiers.testing import ScriptedClient, run

GAME = {"size": 15, "smallest": 10, "largest": 24, "num_eval_examples": 1}


async def play(*guesses, **options):
    """A game from 10 to 24 that has these guesses."""
    env = load_environment(**GAME | options)
    written = [f"<try>{guess}</try>" for guess in guesses]
    [output] = await run(env, ScriptedClient(written, then="I do not know."))
    return output


def told(output):
    return [message["content"] for message in output["completion"] if message["role"] == "user"]


def secret(**options) -> int:
    return int(load_environment(**GAME | options).get_eval_dataset()[0]["answer"])


async def test_halving_finds_every_number_with_the_guesses_there_are():
    env = load_environment(size=15, smallest=10, largest=40)
    games = env.get_dataset()
    lengths = set()
    for row in {game["answer"]: game for game in games}.values():
        replies = gold_completion(row)
        lengths.add(len(replies))
        state = await env.rollout(dict(row), ScriptedClient(replies), "scripted", {})
        assert (state["is_found"], state["wasted_guesses"]) == (True, 0)
    assert max(lengths) == 4
    assert {int(row["answer"]) for row in games} >= set(range(11, 40))


async def test_every_answer_narrows_the_range_and_finding_it_scores_full():
    number = secret()
    output = await play(number - 1, number)
    assert told(output) == [
        f"Higher. It is from {number} to 24.",
        f"Yes. It is {number}.",
    ]
    assert (output["reward"], output["metrics"]["num_turns"]) == (1.0, 2.0)


async def test_the_last_guess_counts_and_then_the_number_is_told():
    number = secret()
    wrong = [n for n in range(10, 24) if n != number]
    assert (await play(*wrong[:3], number))["metrics"]["is_found"] == 1.0
    lost = await play(*wrong[:4])
    assert lost["metrics"]["is_found"] == 0.0
    assert 0.0 < lost["reward"] < 0.5
    assert told(lost)[-1].endswith(f". It is {number}.")
    assert len(told(lost)) == 4


async def test_guesses_outside_of_what_is_left_and_replies_without_a_number_are_wasted():
    number = secret()
    output = await play(99, "", "a few", "-3")
    assert told(output)[:2] == [
        "No. It is from 10 to 24.",
        "Write a number inside <try> and </try>. It is from 10 to 24.",
    ]
    assert (output["reward"], output["metrics"]["wasted_guesses"]) == (0.0, 4.0)
    assert output["error"] is None
    again = await play(number - 1, number - 1)
    assert again["metrics"]["wasted_guesses"] == 3.0


async def test_the_best_reply_follows_from_what_was_answered():
    state = {"low": 10, "high": 24}
    assert gold_reply(state) == "<try>17</try>"
    assert gold_reply(state | {"low": 18}) == "<try>21</try>"


def test_ranges_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="size=15 numbers must fit"):
        load_environment(size=15, smallest=10, largest=23)


def test_a_split_without_games_is_named():
    with pytest.raises(ValueError, match="None of the 2 games is for the split 'eval'"):
        load_environment(size=2, smallest=1, largest=2)


def test_the_number_of_guesses_is_told_and_can_be_set():
    row = load_environment(**GAME | {"guesses": 9}).get_eval_dataset()[0]
    assert row["question"] == "It is from 10 to 24. 9 guesses."
