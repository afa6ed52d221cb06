"""Settings of a warm start that cannot work are reported before it, or right after it, with values that do work."""

import asyncio
import re

import pytest

from verifiers.errors import ConfigError
from verifiers.loading import load_path
from verifiers.training.reference.config import parse_config
from verifiers.training.reference.demonstrations import fitting_noise, play_demonstrations
from verifiers.training.reference.orchestrator import Listener, _Run
from verifiers.training.reference.run_folder import RunFolder

SOURCE = """
import verifiers as vf

def exact(completion, answer):
    return FULL * (completion[-1]["content"] == answer)

def load_environment():
    rows = [{"question": f"q{n}", "answer": chr(97 + n % 26) * LENGTH} for n in range(40)]
    return vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric(funcs=[exact]))
"""


class Trainer:
    """Takes demonstrations."""

    async def ask(self, method, **arguments):
        assert method == "set_demonstrations"
        self.demonstrations = arguments


@pytest.fixture
def run(tmp_path):
    def make(*, length: int, full: float = 1.0, max_tokens: int = 64, **warm_start) -> _Run:
        file = tmp_path / f"letters_{length}.py"
        file.write_text(SOURCE.replace("LENGTH", str(length)).replace("FULL", str(full)))
        fields = {
            "steps": 1,
            "output": str(tmp_path / "run"),
            "environment": {"id": str(file)},
            "source": {"groups_per_batch": 1, "rollouts_per_group": 2},
            "sampling": {"max_tokens": max_tokens},
            "warm_start": {"steps": 10, "noisy_steps": 5, "demonstrations": 40, **warm_start},
        }
        config = parse_config(fields, name="test")
        folder = RunFolder.new(config)
        return _Run(config, load_path(file), folder, Trainer(), Listener(), None)  # type: ignore[arg-type]

    return make


def test_noise_that_leaves_too_few_right_replies_is_an_error_with_a_noise_that_does_not(run):
    failing = run(length=8, noise=0.5, min_reward=0.3)
    with pytest.raises(ConfigError, match=r"less than warm_start\.min_reward=0\.3") as caught:
        asyncio.run(failing._demonstrate())
    advised = re.search(r"Set warm_start\.noise=([\d.]+), or", str(caught.value))
    assert advised is not None
    working = run(length=8, noise=float(advised[1]), min_reward=0.3)
    asyncio.run(working._demonstrate())
    assert working.demonstrated >= 0.3


@pytest.mark.parametrize(("length", "full"), [(1, 1.0), (3, 1.0), (12, 1.0), (3, 0.1)])
def test_automatic_noise_fits_replies_of_any_length_and_any_scale_of_reward(run, length, full):
    fitting = run(length=length, full=full, noise="auto", min_reward=0.2 * full)
    asyncio.run(fitting._demonstrate())
    assert 0.35 * full <= fitting.demonstrated < 0.95 * full
    assert fitting.trainer.demonstrations["clean"] != fitting.trainer.demonstrations["noisy"]


def test_the_noise_that_fits_is_the_largest_and_zero_when_none_does(run):
    loaded = run(length=6).loaded
    noise = asyncio.run(fitting_noise(loaded, seed=0, at_least=0.5))
    played = asyncio.run(play_demonstrations(loaded, count=200, noise=noise, seed=0))
    assert 0.5 <= played.mean_reward < 0.8
    assert asyncio.run(fitting_noise(loaded, seed=0, at_least=1.1)) == 0.0


def test_right_replies_that_score_less_than_wanted_are_an_error_with_the_score(run):
    with pytest.raises(ConfigError, match=r"correct replies of letters-3 score 0\.100"):
        asyncio.run(run(length=3, full=0.1, noise=0.1, min_reward=0.3)._demonstrate())


def test_a_reply_that_does_not_fit_into_max_tokens_is_warned_about_with_a_number_that_fits(
    run, caplog
):
    asyncio.run(run(length=20, max_tokens=21)._demonstrate())
    assert not caplog.records
    # The end token is a token of the reply.
    asyncio.run(run(length=20, max_tokens=20)._demonstrate())
    assert "A correct reply has 21 tokens, more than sampling.max_tokens=20" in caplog.text
    assert "Set sampling.max_tokens=31." in caplog.text


@pytest.mark.parametrize(
    ("clean_loss", "advice"),
    [(0.4, "Set warm_start.steps=40"), (0.01, "Give the environment more different training rows")],
)
def test_a_weak_policy_after_the_warm_start_is_explained_by_what_the_warm_start_reached(
    run, clean_loss, advice
):
    weak = run(length=1, until_loss=0.02, min_reward=0.3)
    weak.clean_loss = clean_loss

    async def score(endpoint):
        return 0.164

    weak._played_mean = score
    with pytest.raises(ConfigError, match=r"scores 0\.164 after the warm start") as caught:
        asyncio.run(weak._check_warm_start(None))
    assert advice in str(caught.value)
    assert "begin a new run" in str(caught.value)
    assert weak.folder.evaluation("before") == 0.164
