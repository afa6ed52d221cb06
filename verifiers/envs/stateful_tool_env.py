"""v0 import path of `StatefulToolEnv`."""

from verifiers.envs.tool_env import StatefulToolEnv as StatefulToolEnv
from verifiers.envs.tool_env import filter_signature as filter_signature
