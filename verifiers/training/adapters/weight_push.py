"""An import path of version 1.0. The code is in `trl`."""

from verifiers.training.adapters.trl import WeightPush as WeightPush
