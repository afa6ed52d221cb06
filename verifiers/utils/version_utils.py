"""v0 import path; see `verifiers.runs.description`."""

from verifiers.runs.description import get_commit_for_path as get_commit_for_path
from verifiers.runs.description import get_env_commit as get_env_commit
from verifiers.runs.description import get_env_version as get_env_version
from verifiers.runs.description import get_package_source_path as get_package_source_path
from verifiers.runs.description import get_version_info as get_version_info
from verifiers.runs.description import get_vf_commit as get_vf_commit
from verifiers.runs.description import get_vf_version as get_vf_version
