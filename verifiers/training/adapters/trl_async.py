"""An earlier import path. The code is in `trl`."""

from verifiers.training.adapters.trl import AsyncGRPOWorker as AsyncGRPOWorker
from verifiers.training.adapters.trl import WorkerFailed as WorkerFailed
