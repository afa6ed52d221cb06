"""A source through a random life: batches, new versions, evaluations, failures, restarts; nothing lost or twice."""

import asyncio
import json
import random
from collections import Counter

import pytest
from sources import environment, right, source

import verifiers as vf
from verifiers.errors import EndpointUnavailable
from verifiers.testing import ScriptedClient
from verifiers.training.dispatch import CancelReason
from verifiers.training.policy import PolicyEndpoint

EVALUATION = [{"question": f"e{n}", "answer": "yes"} for n in range(3)]


def together(completions) -> list[float]:
    """Scores a group as a whole; a failed rollout has said nothing."""
    return [float(bool(said) and "yes" in said[-1]["content"]) for said in completions]


class Life:
    """One trainer's life, and a ledger of what became of every group."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.limits = {
            "groups_per_batch": self.random.randint(1, 3),
            "rollouts_per_group": self.random.randint(2, 3),
            "max_in_flight": self.random.randint(1, 9),
            "max_off_policy_steps": self.random.randint(0, 2),
            "max_attempts": self.random.randint(1, 3),
            "on_stale": self.random.choice(["drop", "mask"]),
        }
        rubric = vf.Rubric(funcs=[self.random.choice([right, together])])
        self.env = environment(7, rubric=rubric, eval_dataset=EVALUATION)
        self.saved = None
        self.version = 0
        self.step = 0
        self.ended = Counter()

    def client(self):
        async def reply(_):
            for _ in range(self.random.randrange(6)):
                await asyncio.sleep(0)
            if self.random.random() < 0.1:
                raise EndpointUnavailable("busy")
            return self.random.choice(["yes", "no"])

        return ScriptedClient(reply, token_ids=True)

    def note(self, cancelled):
        # What closing cancels is in the state that was saved.
        if cancelled.reason is not CancelReason.CLOSED or "ended early" in cancelled.detail:
            self.ended[cancelled.group] += 1

    async def run(self, restarts=4, actions=12):
        for _ in range(restarts):
            ends = [PolicyEndpoint(self.client()) for _ in range(self.random.randint(1, 2))]
            async with source(
                self.env, endpoints=ends, state=self.saved, version=self.version,
                on_cancellation=self.note, **self.limits,
            ) as rollouts:  # fmt: skip
                assert rollouts.step == self.step
                async with asyncio.TaskGroup() as evaluations:
                    for _ in range(actions):
                        await self.act(rollouts, evaluations)
                self.saved = json.loads(json.dumps(rollouts.state_dict()))
                self.check_tally(self.saved["dispatch"])
            assert rollouts.in_flight == 0
            assert all(end.client.in_flight == 0 for end in ends)
        self.check_ledger(self.saved["dispatch"])

    async def act(self, rollouts, evaluations):
        match self.random.choice(["batch", "batch", "version", "evaluate", "wait"]):
            case "batch":
                await self.take(rollouts)
            case "version":
                self.version += self.random.randint(1, 2)
                await rollouts.set_version(self.version)
            case "evaluate":
                evaluations.create_task(self.evaluate(rollouts, self.random.randint(1, 3)))
            case "wait":
                for _ in range(self.random.randrange(40)):
                    await asyncio.sleep(0)

    async def take(self, rollouts):
        batch = await rollouts.next_batch()
        self.step += 1
        assert (batch.step, batch.version) == (self.step, self.version)
        assert len(batch.entries) == self.limits["groups_per_batch"]
        oldest = self.version - self.limits["max_off_policy_steps"]
        for entry in batch.entries:
            self.ended[entry.group] += 1
            if self.limits["on_stale"] == "drop":
                assert entry.version >= oldest
        for sample in batch.samples:
            assert sample.trained_count
            if sample.versions is not None:
                assert sample.versions[sample.mask].min() >= oldest

    async def evaluate(self, rollouts, examples):
        if self.random.random() < 0.3:
            patience = self.random.randrange(20)
            task = asyncio.create_task(rollouts.evaluate(examples, 2))
            for _ in range(patience):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            return
        result = await rollouts.evaluate(examples, 2)
        assert [output["example_id"] for output in result.outputs] == [
            n for n in range(examples) for _ in range(2)
        ]

    def check_tally(self, saved):
        tally, waiting = saved["tally"], len(saved["open"]) + len(saved["ready"])
        ended = tally["entries"] + sum(tally["cancelled"].values()) + tally["evaluations"]
        assert tally["groups_begun"] == ended + waiting
        assert tally["batches"] == self.step

    def check_ledger(self, saved):
        waiting = Counter(group["number"] for group in saved["open"] + saved["ready"])
        assert set((self.ended + waiting).values()) <= {1}
        assert len(self.ended + waiting) == saved["next_number"] - saved["tally"]["evaluations"]


@pytest.mark.parametrize("seed", range(8))
async def test_every_group_ends_once_through_failures_new_versions_evaluations_and_restarts(seed):
    await Life(seed).run()


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_every_group_ends_once_in_many_lives():
    for seed in range(100, 400):
        await Life(seed).run()
