"""An import path of version 1.0. The code is in `rllm`."""

from verifiers.training.adapters.rllm import RolloutEngineClient as RolloutEngineClient
