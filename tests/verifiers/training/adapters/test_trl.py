"""Against a double of TRL 1.16's `GRPOTrainer._generate`: what it passes, what it requires, what it makes of it."""

import shutil
from copy import deepcopy
from types import SimpleNamespace

import pytest
from games import EditedTurns, alternating, question_env, text_of, two_turns

import verifiers as vf
from verifiers.endpoint import endpoint_process
from verifiers.endpoint.model import SHIPPED_WEIGHTS
from verifiers.errors import ConfigError
from verifiers.testing import Reply, ScriptedClient
from verifiers.training.adapters.trl import TRLRollouts, WeightPush, env_reward
from verifiers.training.inference_admin import AdminConfig, UpdateFailed
from verifiers.training.policy import PolicyClient
from verifiers.training.samples import SampleError


class Trainer:
    """Calls as `GRPOTrainer` does: prompts deep-copied, each `num_generations` times side by side."""

    def __init__(self, rollout_func, dataset, reward_funcs=env_reward, num_generations=4):
        self.rollout_func = rollout_func
        self.dataset = dataset
        self.reward_func = reward_funcs
        self.num_generations = num_generations
        self.num_generations_eval = 1
        self.model = SimpleNamespace(training=True)
        self.args = SimpleNamespace(temperature=0.7, top_p=0.9, max_completion_length=32)
        self.state = SimpleNamespace(global_step=0)

    def generate(self, count=2):
        size = self.num_generations if self.model.training else self.num_generations_eval
        prompts = [row["prompt"] for row in self.dataset.select(range(count)) for _ in range(size)]
        output = self.rollout_func(deepcopy(prompts), self)
        required = {"prompt_ids", "completion_ids", "logprobs"}
        assert required <= output.keys()
        extra = {key: value for key, value in output.items() if key not in required}
        mask = extra.pop("env_mask")
        for ids, own, logprobs in zip(
            output["completion_ids"], mask, output["logprobs"], strict=True
        ):
            assert len(ids) == len(own) == len(logprobs)
        assert len(output["prompt_ids"]) == len(prompts)
        self.rewards = self.reward_func(prompts=prompts, completions=[None] * len(prompts), **extra)
        return output


async def test_every_prompt_gets_one_rollout_in_order_and_the_environment_s_reward():
    client = alternating()
    rollouts = TRLRollouts(question_env(), client, "m")
    trainer = Trainer(rollouts, rollouts.dataset())
    output = trainer.generate()
    said = [text_of(ids) for ids in output["completion_ids"]]
    assert [float("yes" in text) for text in said] == trainer.rewards == output["env_reward"]
    assert ["q0" in text_of(ids) for ids in output["prompt_ids"]] == [True] * 4 + [False] * 4
    assert output["env_mask"] == [[1] * len(ids) for ids in output["completion_ids"]]
    sampled_with = client.requests[0].sampling_args
    assert {"temperature": 0.7, "top_p": 0.9, "max_tokens": 32}.items() <= sampled_with.items()


def test_what_the_environment_says_is_masked():
    rollouts = TRLRollouts(two_turns(), alternating(), "m")
    output = Trainer(rollouts, rollouts.dataset()).generate()
    for ids, mask in zip(output["completion_ids"], output["env_mask"], strict=True):
        others = text_of([t for t, own in zip(ids, mask, strict=True) if not own])
        own = text_of([t for t, own in zip(ids, mask, strict=True) if own])
        assert "go on" in others
        assert "go on" not in own


def test_a_branching_rollout_does_not_fit_trl_and_is_refused_unless_its_last_context_will_do():
    rollouts = TRLRollouts(two_turns(EditedTurns), alternating(), "m")
    trainer = Trainer(rollouts, rollouts.dataset())
    with pytest.raises(SampleError, match=r"Use on_drift='fork'.*or 'last'"):
        trainer.generate()
    rollouts.on_drift = "last"
    assert len(trainer.generate()["prompt_ids"]) == 8


def test_rows_that_differ_only_in_their_answer_are_told_apart():
    rows = [{"question": "Guess.", "answer": str(n)} for n in range(3)]

    def is_answer(completion, answer) -> float:
        return float(completion[-1]["content"] == answer)

    env = vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric(funcs=[is_answer]))
    rollouts = TRLRollouts(env, ScriptedClient(then="1", token_ids=True), "m")
    trainer = Trainer(rollouts, rollouts.dataset(), num_generations=2)
    trainer.generate(3)
    assert trainer.rewards == [0.0, 0.0, 1.0, 1.0, 0.0, 0.0]


def test_evaluation_rows_are_found_too_and_come_once_each():
    env = question_env(2, eval_dataset=[{"question": "e", "answer": "0"}])
    rollouts = TRLRollouts(env, alternating(), "m")
    trainer = Trainer(rollouts, rollouts.dataset("eval"))
    trainer.model.training = False
    assert len(trainer.generate(1)["prompt_ids"]) == 1


def test_a_prompt_of_somebody_else_is_refused():
    rollouts = TRLRollouts(question_env(), alternating(), "m")
    trainer = Trainer(rollouts, rollouts.dataset())
    with pytest.raises(ConfigError, match=r"not in the environment's dataset.*other"):
        rollouts([[{"role": "user", "content": "other"}]], trainer)


def test_a_part_of_a_group_cannot_be_scored_as_a_group():
    def best(completions) -> list[float]:
        return [float(len(c[-1]["content"])) for c in completions]

    rows = [{"question": "q", "answer": "a"}]
    env = vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric(funcs=[best]))
    rollouts = TRLRollouts(env, alternating(), "m")
    trainer = Trainer(rollouts, rollouts.dataset())
    assert sorted(trainer.generate(1)["env_reward"]) == [2.0, 2.0, 3.0, 3.0]
    with pytest.raises(ConfigError, match="a multiple of num_generations=4"):
        rollouts(rollouts.dataset()["prompt"][:1] * 3, trainer)


def test_a_failed_rollout_gets_a_stand_in():
    replies = [Reply("yes"), RuntimeError("broken"), Reply("yes"), Reply("no")]
    rollouts = TRLRollouts(question_env(1), ScriptedClient(replies, token_ids=True), "m")
    output = Trainer(rollouts, rollouts.dataset()).generate(1)
    assert [sum(mask) > 0 for mask in output["env_mask"]].count(False) == 1
    assert output["env_reward"][1] == pytest.approx(2 / 3)


class Model:
    """`save_pretrained` as of a Hugging Face model; what it saves are the weights of the endpoint."""

    def save_pretrained(self, folder, state_dict):
        assert state_dict == {"weights": 1}
        shutil.copytree(SHIPPED_WEIGHTS, folder)


def accelerated(trainer):
    trainer.model = SimpleNamespace(training=True)
    trainer.accelerator = SimpleNamespace(
        is_main_process=True,
        get_state_dict=lambda model: {"weights": 1},
        unwrap_model=lambda model: Model(),
        wait_for_everyone=lambda: None,
    )
    return trainer


def test_weights_are_pushed_once_a_step_and_tokens_are_of_the_step(tmp_path):
    with endpoint_process() as endpoint:
        client = PolicyClient(
            vf.ClientConfig(
                api_base_url=endpoint.base_url, client_type="openai_chat_completions_token"
            )
        )
        push = WeightPush(endpoint.url, tmp_path)
        rollouts = TRLRollouts(question_env(), client, endpoint.model, before=push)
        trainer = accelerated(Trainer(rollouts, rollouts.dataset()))
        trainer.generate()
        trainer.state.global_step = 3
        first = trainer.generate()
        assert push.pushed_step == 3
        assert len(first["prompt_ids"]) == 8
        assert list(tmp_path.iterdir()) == []


def test_a_server_that_does_not_take_the_weights_is_named(tmp_path):
    config = AdminConfig(max_attempts=1, request_timeout_s=1.0)
    push = WeightPush("http://127.0.0.1:9", tmp_path, config=config)
    trainer = accelerated(SimpleNamespace(state=SimpleNamespace(global_step=1)))
    with pytest.raises(UpdateFailed, match=r"http://127\.0\.0\.1:9"):
        push(trainer)
    assert push.pushed_step is None
