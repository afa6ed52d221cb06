"""RL environments for language models: `import verifiers as vf`.

Every public name is resolved on first use (PEP 562), so importing this package costs milliseconds and pulls in no
heavy dependency. `_EXPORTS` says where each name lives; the `TYPE_CHECKING` block below mirrors it for type checkers
and a contract test holds the two together.
"""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING, Any

__version__ = "1.0.0"

logging.getLogger(__name__).addHandler(logging.NullHandler())

_EXPORTS: dict[str, str] = {
    name: module
    for module, names in {
        "verifiers.types": (
            "AssistantMessage ClientConfig ClientType ContentPart CustomBaseModel DatasetBuilder Endpoint"
            " EndpointClientConfig EndpointConfig Endpoints ErrorInfo EvalConfig EvalRunConfig FinishReason"
            " GenerateMetadata GenerateOutputs GenericContentPart GroupRewardFunc ImageUrlContentPart ImageUrlSource"
            " IndividualRewardFunc Info InputAudioContentPart InputAudioSource JsonPrimitive LogCallback Message"
            " MessageContent MessageType Messages ProgressCallback Response ResponseMessage ResponseTokens RewardFunc"
            " RolloutInput RolloutOutput RolloutScore RolloutScores RolloutTiming SamplingArgs Score StartCallback"
            " State SystemMessage TextContentPart TextMessage TimeSpan TimeSpans TokenUsage Tool ToolCall ToolMessage"
            " TrajectoryStep TrajectoryStepTokens Usage UserMessage VersionInfo"
        ),
        "verifiers.errors": (
            "AuthenticationError AuthorError BadRequestError BrowserSandboxError ConfigError DatasetError"
            " EmptyModelResponseError EndpointUnavailable EnvironmentCodeError EnvironmentNotFound Error InfraError"
            " InvalidModelResponseError MissingKeyError ModelError OverlongPromptError RateLimitError RewardError"
            " RolloutTimeout SandboxError ScoringTimeout ToolCallError ToolError ToolParseError TunnelError"
        ),
        "verifiers.decorators": "advantage cleanup metric reward setup stop teardown update",
        "verifiers.parsers.parser": "Parser",
        "verifiers.parsers.think_parser": "ThinkParser",
        "verifiers.parsers.maybe_think_parser": "MaybeThinkParser",
        "verifiers.parsers.xml_parser": "XMLParser",
        "verifiers.parsers.answers": "extract_boxed_answer extract_hash_answer",
        "verifiers.rubrics.rubric": "Rubric",
        "verifiers.rubrics.rubric_group": "RubricGroup",
        "verifiers.rubrics.judge_rubric": "JudgeRubric",
        "verifiers.rubrics.math_rubric": "MathRubric",
        "verifiers.rubrics.tool_rubric": "ToolRubric",
        "verifiers.clients": (
            "AnthropicMessagesClient Client NeMoRLChatCompletionsClient OpenAIChatCompletionsClient"
            " OpenAIChatCompletionsTokenClient OpenAICompletionsClient OpenAIResponsesClient"
        ),
        "verifiers.envs.environment": "Environment",
        "verifiers.envs.singleturn_env": "SingleTurnEnv",
        "verifiers.envs.multiturn_env": "MultiTurnEnv",
        "verifiers.envs.tool_env": "ToolEnv",
        "verifiers.envs.stateful_tool_env": "StatefulToolEnv",
        "verifiers.envs.env_group": "EnvGroup",
        "verifiers.envs.mcp_env": "MCPEnv",
        "verifiers.envs.integrations.gym_env": "GymEnv",
        "verifiers.envs.integrations.reasoninggym_env": "ReasoningGymEnv",
        "verifiers.envs.integrations.textarena_env": "TextArenaEnv",
        "verifiers.loading": "load_environment",
        "verifiers.example_datasets": "load_example_dataset",
        "verifiers.keys": "ensure_keys",
        "verifiers.logs": "log_level print_prompt_completions_sample quiet_verifiers setup_logging",
    }.items()
    for name in names.split()
}

_GONE = {
    "GRPOTrainer": "`verifiers.training` (docs/migrating.md), or the trainer of your choice",
    "GRPOConfig": "the configuration of the trainer of your choice",
    "RLTrainer": "`verifiers.training` (docs/migrating.md), or the trainer of your choice",
    "RLConfig": "the configuration of the trainer of your choice",
    "grpo_defaults": "the configuration of the trainer of your choice",
    "lora_defaults": "`peft.LoraConfig`",
    "get_model": "`transformers.AutoModelForCausalLM.from_pretrained`",
    "get_model_and_tokenizer": "`transformers.AutoModelForCausalLM` and `AutoTokenizer`",
}
"""Names of the oldest releases that nothing here replaces one for one, and what to use."""

_SUBMODULES = frozenset(
    "clients decorators envs errors parsers rollouts rubrics runs scripts testing tools types utils".split()
)

__all__ = sorted(_EXPORTS)  # noqa: PLE0605 - the table is the one list of names


def __getattr__(name: str) -> Any:
    if (module := _EXPORTS.get(name)) is not None:
        value = getattr(importlib.import_module(module), name)
        globals()[name] = value
        return value
    if name in _SUBMODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _GONE:
        raise ImportError(f"verifiers.{name} belonged to an older release. Use {_GONE[name]} instead.")
    raise AttributeError(f"module 'verifiers' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
