"""v0 import path; see `verifiers.tools.functions`."""

from verifiers.tools.functions import VALID_TOOL_CONTENT_PART_TYPES as VALID_TOOL_CONTENT_PART_TYPES
from verifiers.tools.functions import convert_func_to_oai_tool as convert_func_to_oai_tool
from verifiers.tools.functions import convert_func_to_tool_def as convert_func_to_tool_def
from verifiers.tools.functions import is_valid_tool_content_parts as is_valid_tool_content_parts
