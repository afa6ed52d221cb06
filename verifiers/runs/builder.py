"""`GenerateOutputsBuilder`: v0's collector of finished rollouts, on top of `RunningSummary`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from verifiers.runs.description import RunDescription
from verifiers.runs.encoding import jsonable
from verifiers.runs.provenance import endpoint_url
from verifiers.runs.summary import RunningSummary
from verifiers.runs.versions import get_version_info
from verifiers.types import GenerateMetadata, GenerateOutputs, RolloutOutput, SamplingArgs, Tool


class GenerateOutputsBuilder:
    """Collects the rollouts of a run, and gives outputs and metadata at any time."""

    def __init__(
        self,
        env_id: str,
        env_args: dict[str, Any],
        model: str,
        client: Any,
        num_examples: int,
        rollouts_per_example: int,
        state_columns: list[str] | None,
        sampling_args: SamplingArgs,
        results_path: Path | None,
        pass_threshold: float = 0.5,
    ) -> None:
        self.description = RunDescription(
            env_id=env_id,
            model=model,
            num_examples=num_examples,
            rollouts_per_example=rollouts_per_example,
            env_args=env_args,
            base_url=self.compute_base_url(client),
            sampling_args=sampling_args,
            state_columns=state_columns or (),
            path_to_save=results_path,
            pass_threshold=pass_threshold,
            version_info=get_version_info(env_id),
        )
        self.outputs: list[RolloutOutput] = []
        self.summary = RunningSummary(pass_threshold)
        self.start_time = time.time()

    def format_base_url(self, url: str) -> str:
        """The URL as text."""
        return str(url)

    def compute_base_url(self, client: Any) -> str:
        """Where the client's requests go; see `provenance.endpoint_url`."""
        return endpoint_url(client)

    def tools_key(self, tools: list[Tool] | None) -> str:
        """Text that is equal for equal tools."""
        return "" if not tools else str(jsonable(tools))

    def add_outputs(self, new_outputs: list[RolloutOutput]) -> None:
        """Add finished rollouts."""
        self.outputs += new_outputs
        self.summary.add(new_outputs)

    def build_metadata(self) -> GenerateMetadata:
        """The metadata so far."""
        elapsed_s = time.time() - self.start_time
        return self.description.metadata(
            self.summary.summary(), time_s=elapsed_s, tools=self.summary.tools
        )

    def build_outputs(self, sort_by_example_id: bool = False) -> list[RolloutOutput]:
        """The rollouts in the order they were added, or by example."""
        if sort_by_example_id:
            return sorted(self.outputs, key=lambda output: output["example_id"])
        return self.outputs

    def build(self, sort_by_example_id: bool = False) -> GenerateOutputs:
        """Outputs and metadata together."""
        return GenerateOutputs(
            outputs=self.build_outputs(sort_by_example_id), metadata=self.build_metadata()
        )
