"""Former import path of the trainers; importing it raises an error with advice."""

from verifiers.v0.trainer_names import missing_module

raise missing_module("trainers")
