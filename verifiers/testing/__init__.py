"""For the tests of environments, clients and trainers: a model with scripted replies, and contract checks.

    from verifiers.testing import ScriptedClient, call, check_environment, run

    def test_my_environment():
        check_environment(load_environment())                      # raises ContractBroken, one sentence per problem

    async def test_a_right_answer_scores_full():
        [output] = await run(load_environment(), ScriptedClient(["4"]))
        assert output["reward"] == 1.0

    async def test_the_tool_is_used():
        client = ScriptedClient([[call("add", a=2, b=2)], "The answer is 4."])
        [output] = await run(load_environment(), client)
        assert client.requests[1].prompt[-1]["content"] == "4"

`scripted_client` has the model, `environment_contract` and `client_contract` the checks. Nothing here sleeps, needs a
network or is a mock: a scripted reply passes through the same code as a real one.
"""

from verifiers.testing.client_contract import check_client, client_problems
from verifiers.testing.environment_contract import (
    ContractBroken,
    check_environment,
    environment_problems,
)
from verifiers.testing.scripted_client import (
    Reply,
    Request,
    ScriptedClient,
    ScriptExhausted,
    call,
    run,
)

__all__ = [
    "ContractBroken",
    "Reply",
    "Request",
    "ScriptExhausted",
    "ScriptedClient",
    "call",
    "check_client",
    "check_environment",
    "client_problems",
    "environment_problems",
    "run",
]
