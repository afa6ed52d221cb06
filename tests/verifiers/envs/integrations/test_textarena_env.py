import inspect
import random

import pytest

import verifiers as vf
from verifiers.envs.integrations.textarena_env import common_words
from verifiers.errors import ConfigError
from verifiers.testing import ScriptedClient, check_environment, run


@pytest.fixture(autouse=True, scope="module")
def _textarena():
    pytest.importorskip("textarena", reason="textarena is an optional extra", exc_type=ImportError)


@pytest.fixture(scope="module")
def wordle():
    return vf.TextArenaEnv(num_train_examples=40, num_eval_examples=5)


def rows(env, split="eval", n=-1):
    return env.source(split).inputs(n)


def said(output):
    return [m["content"] for m in output["completion"] if m["role"] == "user"]


async def test_guessing_the_word_wins_and_the_game_gives_the_reward(wordle):
    secret = rows(wordle)[0]["answer"]
    wrong = next(word for word in common_words() if len(word) == 5 and word != secret)
    client = ScriptedClient(
        [f"<think>hm</think><guess>{wrong}</guess>", f"<guess>[{secret}]</guess>"]
    )
    [output] = await run(wordle, client)
    assert (output["reward"], output["metrics"]["num_turns"]) == (1.0, 2.0)
    assert "You have 5 guesses left." in said(output)[0]
    assert "guessed the word correctly" in said(output)[1]


async def test_a_reply_without_a_move_is_invalid_and_does_not_repeat_the_last_one(wordle):
    replies = ["<guess>apple</guess>", "I am thinking.", "I am still thinking."]
    [output] = await run(wordle, ScriptedClient(replies))
    assert "already guessed" not in said(output)[-1]
    assert said(output)[-1].startswith("Invalid Move")
    assert output["reward"] < 1.0


async def test_feedback_can_be_shortened():
    env = vf.TextArenaEnv(
        num_train_examples=1, feedback_fn=lambda text: text.split("Feedback:")[-1].strip()
    )
    [output] = await run(env, ScriptedClient(["<guess>apple</guess>", "x", "y"]))
    assert said(output)[0].startswith("A P P L E")


def test_words_of_the_splits_never_meet_and_depend_on_the_seed_only(wordle):
    train, evaluation = ({row["answer"] for row in rows(wordle, s)} for s in ("train", "eval"))
    assert (len(train), len(evaluation)) == (40, 5)
    assert not train & evaluation
    again = vf.TextArenaEnv(num_train_examples=40, num_eval_examples=5)
    assert rows(again) == rows(wordle)
    assert rows(vf.TextArenaEnv(num_train_examples=5, seed=9), "train") != rows(again, "train", 5)


def test_setting_up_and_playing_leaves_the_programs_random_numbers_alone(wordle):
    random.seed(1)
    expected = random.random()
    random.seed(1)
    env = vf.TextArenaEnv("GuessTheNumber-v0", num_train_examples=2)
    rows(env, "train")
    env.evaluate_sync(
        ScriptedClient(then="<guess>5</guess>"), "scripted", num_examples=1, max_concurrent=1
    )
    assert random.random() == expected


async def test_games_that_run_at_once_are_each_as_when_alone():
    env = vf.TextArenaEnv("Blackjack-v0", num_train_examples=6)
    alone = await run(env, ScriptedClient(then="<guess>stand</guess>"), n=6)
    together = await run(env, ScriptedClient(then="<guess>stand</guess>"), n=6, max_concurrent=6)
    assert [said(output) for output in alone] == [said(output) for output in together]


async def test_a_game_for_two_needs_an_opponent_and_then_alternates():
    with pytest.raises(ConfigError, match="num_players"):
        vf.TextArenaEnv("TicTacToe-v0", num_train_examples=1)
    with pytest.raises(ConfigError, match="opponent"):
        vf.TextArenaEnv("TicTacToe-v0", num_train_examples=1, num_players=2)
    moves = iter(["[3]", "[4]", "[5]"])
    env = vf.TextArenaEnv(
        "TicTacToe-v0", num_train_examples=1, num_players=2, opponent=lambda board: next(moves)
    )
    replies = [f"<guess>{square}</guess>" for square in (0, 1, 2)]
    [output] = await run(env, ScriptedClient(replies))
    assert (output["reward"], output["metrics"]["num_turns"]) == (1.0, 3.0)


def test_games_that_do_not_exist_or_load_are_named():
    with pytest.raises(ConfigError, match="Did you mean 'Wordle-v0'"):
        vf.TextArenaEnv("Wordel-v0")
    with pytest.raises(ConfigError, match="OPENROUTER"):
        vf.TextArenaEnv("TwentyQuestions-v0")


@pytest.mark.parametrize("game", ["2048-v0", "FrozenLake-v0", "Mastermind-v0", "Hangman-v0"])
async def test_single_player_games_begin_and_end(game):
    env = vf.TextArenaEnv(game, num_train_examples=2, max_turns=4)
    [output] = await run(env, ScriptedClient(then="<guess>up</guess>"))
    assert output["error"] is None
    assert output["stop_condition"] in ("has_final_env_response", "max_turns_reached")


def test_the_contract_of_environments_is_kept(wordle):
    check_environment(wordle)


def test_the_signature_and_the_import_path_are_v0s():
    from verifiers.envs.textarena_env import TextArenaEnv

    names = list(inspect.signature(TextArenaEnv.__init__).parameters)[1:9]
    assert " ".join(names) == (
        "game num_train_examples num_eval_examples system_prompt parser rubric feedback_fn seed"
    )
