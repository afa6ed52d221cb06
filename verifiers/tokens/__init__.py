"""Token ids, masks and log-probabilities of rollouts, stored once.

    graph         `TokenGraph`: what the model saw and said, as chains of int32 ids; a turn adds only what is new
    step_tokens   `StepTokens`: one turn of a graph, readable as v0's `trajectory[i]["tokens"]`
    token_file    `TokenFile`: the graphs of many rollouts in one Arrow file beside a run

Nothing here imports numpy or pyarrow until arrays or files are asked for: the rollout loop imports this package.
"""

from verifiers.tokens.graph import (
    Chain,
    StepTokens,
    TokenGraph,
    TokensInvalid,
    graph_of,
    stored_steps,
)

__all__ = ["Chain", "StepTokens", "TokenGraph", "TokensInvalid", "graph_of", "stored_steps"]
