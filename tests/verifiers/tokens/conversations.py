"""Conversations as a hypothesis strategy: what a model is shown and says, turn by turn, with every way to go astray."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

# A small vocabulary makes accidental agreement, the hard case of prefix sharing, likely.
IDS = st.integers(0, 3)
PIECE = st.lists(IDS, min_size=0, max_size=4)
LOGPROB = st.floats(-20.0, 0.0, width=32)

Turn = dict[str, Any]


@st.composite
def conversations(draw: st.DrawFn, max_turns: int = 8) -> list[Turn]:
    """Turns with consistent `ResponseTokens` fields; each extends, edits, repeats or leaves an earlier context."""
    turns: list[Turn] = []
    contexts: list[list[int]] = [[]]
    for _ in range(draw(st.integers(1, max_turns))):
        context = list(draw(st.sampled_from([contexts[-1], *contexts])))
        match draw(st.sampled_from(["extend", "extend", "extend", "drift", "again", "new"])):
            case "extend":
                prompt = context + draw(PIECE)
            case "drift" if context:
                place = draw(st.integers(0, len(context) - 1))
                prompt = context[:place] + draw(PIECE) + context[place + 1 :] + draw(PIECE)
            case "again" if turns:
                prompt = list(draw(st.sampled_from(turns))["prompt_ids"])
            case _:
                prompt = draw(PIECE)
        completion = draw(PIECE)
        size = len(completion)
        turns.append(
            {
                "prompt_ids": prompt,
                "prompt_mask": [0] * len(prompt),
                "completion_ids": completion,
                "completion_mask": draw(
                    st.one_of(
                        st.just([1] * size),
                        st.lists(st.integers(0, 1), min_size=size, max_size=size),
                    )
                ),
                "completion_logprobs": draw(st.lists(LOGPROB, min_size=size, max_size=size)),
            }
        )
        contexts.append(prompt + completion)
    return turns
