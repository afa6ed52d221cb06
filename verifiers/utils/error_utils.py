"""v0 import path; see `verifiers.errors` and `verifiers.runs.v0`."""

from verifiers.errors import error_info as error_info
from verifiers.runs.v0 import ErrorChain as ErrorChain
from verifiers.runs.v0 import ErrorData as ErrorData
from verifiers.runs.v0 import error_data as error_data
from verifiers.runs.v0 import error_data_to_exception as error_data_to_exception
from verifiers.runs.v0 import error_from_data as error_from_data
from verifiers.runs.v0 import error_info_to_exception as error_info_to_exception
from verifiers.runs.v0 import error_type_name as error_type_name
from verifiers.runs.v0 import get_error_chain as get_error_chain
from verifiers.runs.v0 import get_vf_error_chain as get_vf_error_chain
from verifiers.runs.v0 import is_error_data as is_error_data
from verifiers.runs.v0 import validate_error_data as validate_error_data
from verifiers.runs.v0 import vf_error_types as vf_error_types
