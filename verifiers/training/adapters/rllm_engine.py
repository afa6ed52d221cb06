"""An earlier import path. The code is in `rllm`."""

from verifiers.training.adapters.rllm import RolloutEngineClient as RolloutEngineClient
