"""v0 import path of tasksets in Harbor's format."""

from verifiers.envs.agents.tasksets.harbor import (
    HarborDatasetRubric,
    HarborDatasetTaskSet,
    HarborRubric,
    HarborTaskSet,
)

__all__ = [
    "HarborDatasetRubric",
    "HarborDatasetTaskSet",
    "HarborRubric",
    "HarborTaskSet",
]
