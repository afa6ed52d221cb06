"""v0 import path; see `verifiers.runs.folders` and `verifiers.runs.resume`."""

from verifiers.runs.folders import folder_for as get_eval_results_path
from verifiers.runs.folders import is_run_folder as is_valid_eval_results_path
from verifiers.runs.folders import named_folder as get_results_path
from verifiers.runs.folders import prompt_search_folder as get_gepa_results_path
from verifiers.runs.folders import runs_folder as get_eval_runs_dir
from verifiers.runs.folders import write_temp_file as write_temp_file
from verifiers.runs.resume import (
    find_latest_incomplete as find_latest_incomplete_eval_results_path,
)

__all__ = [
    "find_latest_incomplete_eval_results_path",
    "get_eval_results_path",
    "get_eval_runs_dir",
    "get_gepa_results_path",
    "get_results_path",
    "is_valid_eval_results_path",
    "write_temp_file",
]
