"""Token ids, masks and log-probabilities of rollouts, stored once. Read `graph` first.

    packed        `PackedTokens`: the tokens of one response as clients make them, without building long lists
    graph         `TokenGraph`: all tokens of a rollout as chains of int32 ids, to which a turn adds only new ones;
                  `StepTokens`: one turn of a graph, readable as v0's `trajectory[i]["tokens"]`
    token_file    `TokenFile`: the graphs of many rollouts in one Arrow file beside a run

This package imports numpy and pyarrow only when arrays or files are requested, because the rollout loop imports it.
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
