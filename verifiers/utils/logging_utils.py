"""v0 import path; see `verifiers.logs`."""

from verifiers.logs import LOGGER_NAME as LOGGER_NAME
from verifiers.logs import JsonFormatter as JsonFormatter
from verifiers.logs import log_level as log_level
from verifiers.logs import log_once as log_once
from verifiers.logs import print_prompt_completions_sample as print_prompt_completions_sample
from verifiers.logs import print_size as print_size
from verifiers.logs import print_time as print_time
from verifiers.logs import quiet_verifiers as quiet_verifiers
from verifiers.logs import setup_logging as setup_logging
from verifiers.logs import truncate as truncate
from verifiers.logs import warning_once as warning_once
