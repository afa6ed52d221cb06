import pytest
from wordle import candidates, is_for_evaluation, load_environment, marks_of, words

from verifiers.testing import ScriptedClient, run

SECRET = load_environment(num_eval_examples=1).get_eval_dataset()[0]["answer"]


async def play(*guesses: str, **options):
    env = load_environment(num_eval_examples=1, **options)
    [output] = await run(env, ScriptedClient([f"<guess>{guess}</guess>" for guess in guesses]))
    return output


def told(output):
    return [m["content"] for m in output["completion"] if m["role"] == "user"]


def wrong(count: int) -> list[str]:
    return [word for word in words() if word != SECRET][:count]


@pytest.mark.parametrize(
    ("guess", "secret", "marks"),
    [
        ("crane", "crane", "GGGGG"),
        ("eerie", "crane", "--Y-G"),
        ("allot", "loyal", "YYY Y-".replace(" ", "")),
        ("speed", "abide", "--Y-Y"),
    ],
)
def test_letters_are_marked_as_often_as_the_secret_has_them(guess, secret, marks):
    assert marks_of(guess, secret) == marks


async def test_guessing_at_once_scores_full_and_later_less():
    at_once, later = await play(SECRET), await play(*wrong(2), SECRET)
    assert (at_once["reward"], at_once["metrics"]["num_turns"]) == (pytest.approx(1.0), 1.0)
    assert later["reward"] == pytest.approx(0.7 + 0.2 + 0.1 * 4 / 6)
    assert told(at_once) == [f"Yes, the word is {SECRET}."]


async def test_the_sixth_guess_counts():
    last = await play(*wrong(5), SECRET)
    assert last["metrics"]["is_solved"] == 1.0
    lost = await play(*wrong(6))
    assert 0.0 < lost["reward"] <= 0.2
    assert told(lost)[-1].endswith(f"The word was {SECRET}.")


async def test_information_is_what_the_guesses_rule_out():
    one, two = await play(*wrong(1) * 6), await play(*wrong(2) * 3)
    assert one["metrics"]["information"] < two["metrics"]["information"]
    left = len(candidates(wrong(2), SECRET))
    assert left < len(words())


async def test_repeated_unknown_and_malformed_guesses_cost_a_turn_and_bring_nothing():
    first = wrong(1)[0]
    output = await play(first, first, "zzzzz", "too long", "", first.upper())
    assert output["metrics"]["invalid_guesses"] == 5.0
    assert output["reward"] == pytest.approx((await play(first, *[""] * 5))["reward"])
    assert "You have guessed" in told(output)[1]
    assert "not in the word list" in told(output)[2]
    assert "Write one word" in told(output)[3]


async def test_an_unparsed_reply_does_not_repeat_the_guess_before_it():
    env = load_environment(num_eval_examples=1)
    first = wrong(1)[0]
    [output] = await run(env, ScriptedClient([f"<guess>{first}</guess>"], then="I am thinking."))
    assert "Write one word" in told(output)[1]


async def test_in_hard_mode_guesses_must_fit_what_is_known():
    first = next(word for word in words() if marks_of(word, SECRET) == "-----")
    unfit = next(w for w in words() if w != first and w not in candidates([first], SECRET))
    output = await play(first, unfit, SECRET, hard_mode=True)
    assert "does not fit" in told(output)[1]
    assert output["metrics"]["is_solved"] == 1.0


def test_the_word_list_is_large_clean_and_split_for_good():
    assert len(words()) >= 1500
    assert all(len(word) == 5 and word.isascii() and word.islower() for word in words())
    assert list(words()) == sorted(set(words()))
    secrets = {row["answer"] for row in load_environment(num_train_examples=5000).get_dataset()}
    assert secrets == {word for word in words() if not is_for_evaluation(word)}
