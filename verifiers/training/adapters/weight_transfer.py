"""An earlier import path. The code is in `trl`."""

from verifiers.training.adapters.trl import FolderWeightTransfer as FolderWeightTransfer
