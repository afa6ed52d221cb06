"""RL environments for language models: `import verifiers as vf`.

Every public name loads on first use (PEP 562), so importing this package takes milliseconds and imports no heavy
dependency. The `TYPE_CHECKING` block below is the list of the names; see `verifiers.lazy_names`.
"""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING, Any

from verifiers.lazy_names import lazy_names

if TYPE_CHECKING:
    from verifiers.clients import AnthropicMessagesClient as AnthropicMessagesClient
    from verifiers.clients import Client as Client
    from verifiers.clients import NeMoRLChatCompletionsClient as NeMoRLChatCompletionsClient
    from verifiers.clients import OpenAIChatCompletionsClient as OpenAIChatCompletionsClient
    from verifiers.clients import (
        OpenAIChatCompletionsTokenClient as OpenAIChatCompletionsTokenClient,
    )
    from verifiers.clients import OpenAICompletionsClient as OpenAICompletionsClient
    from verifiers.clients import OpenAIResponsesClient as OpenAIResponsesClient
    from verifiers.comparison.compare import compare as compare
    from verifiers.decorators import advantage as advantage
    from verifiers.decorators import cleanup as cleanup
    from verifiers.decorators import metric as metric
    from verifiers.decorators import reward as reward
    from verifiers.decorators import setup as setup
    from verifiers.decorators import stop as stop
    from verifiers.decorators import teardown as teardown
    from verifiers.decorators import update as update
    from verifiers.envs.cli_agent_env import CliAgentEnv as CliAgentEnv
    from verifiers.envs.code_env import CodeEnv as CodeEnv
    from verifiers.envs.env_group import EnvGroup as EnvGroup
    from verifiers.envs.environment import Environment as Environment
    from verifiers.envs.harbor.env import HarborEnv as HarborEnv
    from verifiers.envs.integrations.browser_env import BrowserEnv as BrowserEnv
    from verifiers.envs.integrations.gym_env import GymEnv as GymEnv
    from verifiers.envs.integrations.openenv_env import OpenEnvEnv as OpenEnvEnv
    from verifiers.envs.integrations.reasoninggym_env import ReasoningGymEnv as ReasoningGymEnv
    from verifiers.envs.integrations.textarena_env import TextArenaEnv as TextArenaEnv
    from verifiers.envs.mcp_env import MCPEnv as MCPEnv
    from verifiers.envs.multiturn_env import MultiTurnEnv as MultiTurnEnv
    from verifiers.envs.multiturn_env import SingleTurnEnv as SingleTurnEnv
    from verifiers.envs.python_env import PythonEnv as PythonEnv
    from verifiers.envs.sandbox_env import SandboxEnv as SandboxEnv
    from verifiers.envs.tool_env import StatefulToolEnv as StatefulToolEnv
    from verifiers.envs.tool_env import ToolEnv as ToolEnv
    from verifiers.errors import AuthenticationError as AuthenticationError
    from verifiers.errors import AuthorError as AuthorError
    from verifiers.errors import BadRequestError as BadRequestError
    from verifiers.errors import BrowserSandboxError as BrowserSandboxError
    from verifiers.errors import ConfigError as ConfigError
    from verifiers.errors import DatasetError as DatasetError
    from verifiers.errors import EmptyModelResponseError as EmptyModelResponseError
    from verifiers.errors import EndpointUnavailable as EndpointUnavailable
    from verifiers.errors import EnvironmentCodeError as EnvironmentCodeError
    from verifiers.errors import EnvironmentNotFound as EnvironmentNotFound
    from verifiers.errors import Error as Error
    from verifiers.errors import InfraError as InfraError
    from verifiers.errors import InvalidModelResponseError as InvalidModelResponseError
    from verifiers.errors import MCPServerError as MCPServerError
    from verifiers.errors import MissingKeyError as MissingKeyError
    from verifiers.errors import ModelError as ModelError
    from verifiers.errors import OverlongPromptError as OverlongPromptError
    from verifiers.errors import RateLimitError as RateLimitError
    from verifiers.errors import RewardError as RewardError
    from verifiers.errors import RolloutTimeout as RolloutTimeout
    from verifiers.errors import SandboxError as SandboxError
    from verifiers.errors import ScoringTimeout as ScoringTimeout
    from verifiers.errors import ToolCallError as ToolCallError
    from verifiers.errors import ToolError as ToolError
    from verifiers.errors import ToolParseError as ToolParseError
    from verifiers.errors import ToolTimeout as ToolTimeout
    from verifiers.errors import TunnelError as TunnelError
    from verifiers.example_datasets import load_example_dataset as load_example_dataset
    from verifiers.loading import ensure_keys as ensure_keys
    from verifiers.loading import load_environment as load_environment
    from verifiers.logs import log_level as log_level
    from verifiers.logs import print_prompt_completions_sample as print_prompt_completions_sample
    from verifiers.logs import quiet_verifiers as quiet_verifiers
    from verifiers.logs import setup_logging as setup_logging
    from verifiers.parsers.answers import extract_boxed_answer as extract_boxed_answer
    from verifiers.parsers.answers import extract_hash_answer as extract_hash_answer
    from verifiers.parsers.maybe_think_parser import MaybeThinkParser as MaybeThinkParser
    from verifiers.parsers.parser import Parser as Parser
    from verifiers.parsers.think_parser import ThinkParser as ThinkParser
    from verifiers.parsers.xml_parser import XMLParser as XMLParser
    from verifiers.rubrics.judge_rubric import JudgeRubric as JudgeRubric
    from verifiers.rubrics.math_rubric import MathRubric as MathRubric
    from verifiers.rubrics.rubric import Rubric as Rubric
    from verifiers.rubrics.rubric_group import RubricGroup as RubricGroup
    from verifiers.rubrics.tool_rubric import ToolRubric as ToolRubric
    from verifiers.runs.frames import messages_df as messages_df
    from verifiers.runs.frames import rollouts_df as rollouts_df
    from verifiers.runs.frames import runs_df as runs_df
    from verifiers.tools.mcp import MCPTool as MCPTool
    from verifiers.tools.mcp import MCPToolConfig as MCPToolConfig
    from verifiers.types import AssistantMessage as AssistantMessage
    from verifiers.types import ChatCompletionMessageParam as ChatCompletionMessageParam
    from verifiers.types import ChatMessage as ChatMessage
    from verifiers.types import ChatMessages as ChatMessages
    from verifiers.types import ClientConfig as ClientConfig
    from verifiers.types import ClientType as ClientType
    from verifiers.types import ContentPart as ContentPart
    from verifiers.types import CustomBaseModel as CustomBaseModel
    from verifiers.types import DatasetBuilder as DatasetBuilder
    from verifiers.types import Endpoint as Endpoint
    from verifiers.types import EndpointClientConfig as EndpointClientConfig
    from verifiers.types import EndpointConfig as EndpointConfig
    from verifiers.types import Endpoints as Endpoints
    from verifiers.types import ErrorInfo as ErrorInfo
    from verifiers.types import EvalConfig as EvalConfig
    from verifiers.types import EvalRunConfig as EvalRunConfig
    from verifiers.types import FinishReason as FinishReason
    from verifiers.types import GenerateMetadata as GenerateMetadata
    from verifiers.types import GenerateOutputs as GenerateOutputs
    from verifiers.types import GenericContentPart as GenericContentPart
    from verifiers.types import GroupRewardFunc as GroupRewardFunc
    from verifiers.types import ImageUrlContentPart as ImageUrlContentPart
    from verifiers.types import ImageUrlSource as ImageUrlSource
    from verifiers.types import IndividualRewardFunc as IndividualRewardFunc
    from verifiers.types import Info as Info
    from verifiers.types import InputAudioContentPart as InputAudioContentPart
    from verifiers.types import InputAudioSource as InputAudioSource
    from verifiers.types import JsonPrimitive as JsonPrimitive
    from verifiers.types import LogCallback as LogCallback
    from verifiers.types import Message as Message
    from verifiers.types import MessageContent as MessageContent
    from verifiers.types import Messages as Messages
    from verifiers.types import MessageType as MessageType
    from verifiers.types import ProgressCallback as ProgressCallback
    from verifiers.types import Response as Response
    from verifiers.types import ResponseMessage as ResponseMessage
    from verifiers.types import ResponseTokens as ResponseTokens
    from verifiers.types import RewardFunc as RewardFunc
    from verifiers.types import RolloutInput as RolloutInput
    from verifiers.types import RolloutOutput as RolloutOutput
    from verifiers.types import RolloutScore as RolloutScore
    from verifiers.types import RolloutScores as RolloutScores
    from verifiers.types import RolloutTiming as RolloutTiming
    from verifiers.types import SamplingArgs as SamplingArgs
    from verifiers.types import Score as Score
    from verifiers.types import StartCallback as StartCallback
    from verifiers.types import State as State
    from verifiers.types import SystemMessage as SystemMessage
    from verifiers.types import TextContentPart as TextContentPart
    from verifiers.types import TextMessage as TextMessage
    from verifiers.types import TimeSpan as TimeSpan
    from verifiers.types import TimeSpans as TimeSpans
    from verifiers.types import TokenUsage as TokenUsage
    from verifiers.types import Tool as Tool
    from verifiers.types import ToolCall as ToolCall
    from verifiers.types import ToolMessage as ToolMessage
    from verifiers.types import TrajectoryStep as TrajectoryStep
    from verifiers.types import TrajectoryStepTokens as TrajectoryStepTokens
    from verifiers.types import Usage as Usage
    from verifiers.types import UserMessage as UserMessage
    from verifiers.types import VersionInfo as VersionInfo

__version__ = "1.0.0"

logging.getLogger(__name__).addHandler(logging.NullHandler())

_LATER = frozenset({"CLIHarness", "Harness"} | {"RLMEnv", "RendererClient", "Taskset"})

_SUBMODULES = frozenset(
    [
        "clients",
        "decorators",
        "envs",
        "errors",
        "legacy",
        "parsers",
        "rollouts",
        "rubrics",
        "runs",
        "scripts",
        "testing",
        "tools",
        "types",
        "utils",
    ]
)

__all__, _load, __dir__ = lazy_names(__name__)


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _LATER:
        raise AttributeError(
            f"module 'verifiers' has no attribute {name!r}. The public package had it; this one does not offer it yet."
        )
    try:
        return _load(name)
    except AttributeError:
        from verifiers.v0.trainer_names import missing

        if (error := missing(__name__, name)) is not None:
            raise error from None
        raise
