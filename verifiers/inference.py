"""Former import path of the inference server; importing it raises an error with advice."""

from verifiers.v0.trainer_names import missing_module

raise missing_module("inference")
