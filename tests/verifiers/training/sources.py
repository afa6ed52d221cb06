"""Sources of rollouts for tests: small environments, a model that is right every second time, real endpoints."""

import verifiers as vf
from verifiers.testing import ScriptedClient
from verifiers.training.inference_admin import AdminConfig
from verifiers.training.policy import PolicyEndpoint
from verifiers.training.source import RolloutSource
from verifiers.training.source_config import SourceConfig


def right(completion, answer) -> float:
    return float(answer in completion[-1]["content"])


def environment(count=8, **options):
    rows = [{"question": f"q{n}", "answer": "yes"} for n in range(count)]
    options = {"rubric": vf.Rubric(funcs=[right])} | options
    return vf.SingleTurnEnv(dataset=rows, **options)


def half_right():
    """Answers right every second time."""
    count = iter(range(10**9))
    return ScriptedClient(lambda _: "no" if next(count) % 2 else "yes", token_ids=True)


def source(env, client=None, *, endpoints=None, state=None, **changed):
    options = {
        name: changed.pop(name)
        for name in list(changed)
        if (name.startswith("on_") and name != "on_stale") or name == "version"
    }
    config = {"groups_per_batch": 2, "rollouts_per_group": 2, "max_in_flight": 8} | changed
    chosen = endpoints or [PolicyEndpoint(client or half_right())]
    return RolloutSource(env, chosen, SourceConfig(**config), model="m", state=state, **options)


def letters():
    """Short answers with rewards that vary: the share of letters an answer shares with the question."""

    def overlap(completion, prompt) -> float:
        content = completion[-1]["content"] or ""
        wanted = set(prompt[-1]["content"])
        return len(wanted & set(content)) / len(wanted)

    rows = [
        {"question": "".join(chr(97 + (n * k) % 26) for k in range(1, 7)), "answer": ""}
        for n in range(1, 12)
    ]
    return vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric(funcs=[overlap]))


QUICK = AdminConfig(max_attempts=2, first_wait_s=0.0)
