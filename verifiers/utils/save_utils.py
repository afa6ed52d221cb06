"""v0 import path; see `verifiers.runs`."""

from verifiers.runs.output import is_jsonable as is_json_serializable
from verifiers.runs.output import jsonable as make_serializable
from verifiers.runs.output import saved_timing as serialize_timing
from verifiers.runs.publish import get_hf_hub_dataset_name as get_hf_hub_dataset_name
from verifiers.runs.publish import make_dataset as make_dataset
from verifiers.runs.publish import push_results_to_hf_hub as push_results_to_hf_hub
from verifiers.runs.publish import sanitize_metadata as sanitize_metadata
from verifiers.runs.resume import validate_resume_metadata as validate_resume_metadata
from verifiers.runs.store import load_outputs as load_outputs
from verifiers.runs.store import save_metadata as save_metadata
from verifiers.runs.store import save_new_outputs as save_new_outputs
from verifiers.runs.store import save_outputs as save_outputs
from verifiers.runs.v0 import GenerateOutputsBuilder as GenerateOutputsBuilder
from verifiers.runs.v0 import state_to_output as state_to_output
from verifiers.runs.v0 import states_to_outputs as states_to_outputs
from verifiers.state import extract_usage_tokens as extract_usage_tokens

__all__ = [
    "is_json_serializable",
    "make_serializable",
    "serialize_timing",
]
