"""Every import path and name of the v0 API that real environments and trainers use.

`NOT_YET` is the visible list of what is missing. A name that starts to work must be moved out of it.
"""

import importlib

import pytest

PATHS = {
    "verifiers": """AssistantMessage BrowserEnv ChatCompletionMessageParam ChatMessage ChatMessages CliAgentEnv
        ClientConfig EmptyModelResponseError EnvGroup Environment Error GymEnv HarborEnv Info InfraError
        InvalidModelResponseError JudgeRubric MathRubric MaybeThinkParser Message Messages ModelError MultiTurnEnv
        OpenEnvEnv Parser PythonEnv ReasoningGymEnv Response ResponseMessage RolloutInput RolloutScore RolloutTiming
        Rubric RubricGroup SandboxEnv SandboxError SingleTurnEnv State StatefulToolEnv SystemMessage TextArenaEnv
        ThinkParser Tool ToolCall ToolCallError ToolEnv ToolError ToolMessage ToolParseError ToolRubric
        TrajectoryStep Usage UserMessage XMLParser cleanup ensure_keys extract_boxed_answer legacy load_environment
        load_example_dataset log_level print_prompt_completions_sample quiet_verifiers setup_logging stop teardown""",
    "verifiers.clients": """AnthropicMessagesClient Client NeMoRLChatCompletionsClient OpenAIChatCompletionsClient
        OpenAIChatCompletionsTokenClient OpenAICompletionsClient OpenAIResponsesClient resolve_client""",
    "verifiers.clients.anthropic_messages_client": "AnthropicMessagesClient",
    "verifiers.clients.client": "Client",
    "verifiers.clients.nemorl_chat_completions_client": "NeMoRLChatCompletionsClient",
    "verifiers.clients.openai_chat_completions_client": "OpenAIChatCompletionsClient",
    "verifiers.clients.openai_chat_completions_token_client": "OpenAIChatCompletionsTokenClient",
    "verifiers.clients.openai_completions_client": "OpenAICompletionsClient",
    "verifiers.clients.openai_responses_client": "OPENAI_RESPONSES_OUTPUT_FIELD OpenAIResponsesClient",
    "verifiers.decorators": "cleanup reward stop teardown",
    "verifiers.envs.env_group": "EnvGroup EnvGroupRubric",
    "verifiers.envs.environment": "Environment resolve_client",
    "verifiers.envs.experimental.cli_agent_env": "AgentError CliAgentEnv CliAgentMonitorRubric",
    "verifiers.envs.experimental": """ComposableEnv Harness SandboxMixin SandboxSpec SandboxTaskSet Task
        TaskSet""",
    "verifiers.envs.experimental.composable": """ComposableEnv Harness SandboxSpec SandboxTaskSet Task TaskSet
        discover_sibling_dir""",
    "verifiers.envs.experimental.composable.composable_env": "ComposableEnv tarfile",
    "verifiers.envs.experimental.composable.harness": "Harness",
    "verifiers.envs.experimental.composable.harnesses": """DEFAULT_DISABLED_TOOLS DEFAULT_RELEASE_SHA256
        DEFAULT_RLM_EXEC_TIMEOUT DEFAULT_RLM_MAX_TURNS DEFAULT_RLM_REF DEFAULT_RLM_REPO_URL DEFAULT_SYSTEM_PROMPT
        MINI_SWE_AGENT_CONFIG MINI_SWE_AGENT_INSTALL_SCRIPT OPENCODE_INSTALL_SCRIPT
        build_mini_swe_agent_install_script build_mini_swe_agent_run_command build_opencode_config
        build_opencode_install_script build_opencode_run_command build_rlm_install_script build_rlm_run_command
        mini_swe_agent_harness opencode_harness rlm_harness""",
    "verifiers.envs.experimental.composable.harnesses.mini_swe_agent": "mini_swe_agent_harness",
    "verifiers.envs.experimental.composable.harnesses.opencode": """DEFAULT_DISABLED_TOOLS DEFAULT_RELEASE_REPO
        DEFAULT_RELEASE_SHA256 DEFAULT_RELEASE_VERSION DEFAULT_SYSTEM_PROMPT OPENCODE_INSTALL_SCRIPT
        build_install_script build_opencode_config build_opencode_run_command opencode_harness""",
    "verifiers.envs.experimental.composable.harnesses.rlm": """COMPACTION_BOUNDARY_MARKER
        DEFAULT_APPEND_TO_SYSTEM_PROMPT_PATH DEFAULT_RLM_CHECKOUT_PATH DEFAULT_RLM_CHECKOUT_UPLOAD_NAME
        DEFAULT_RLM_LOCAL_CHECKOUT_CACHE_ROOT DEFAULT_RLM_MAX_DEPTH build_install_script build_run_command
        render_completion_with_branches render_rlm_completion resolve_local_checkout rlm_harness""",
    "verifiers.envs.experimental.composable.task": """SandboxSpec SandboxTaskSet Task TaskSet
        discover_sibling_dir""",
    "verifiers.envs.experimental.composable.tasksets": """
        CPRubric CPTaskSet HarborDatasetRubric HarborDatasetTaskSet HarborRubric HarborTaskSet
        LEAN_SYSTEM_PROMPT LeanTaskSet MathTaskSet make_multiswe_taskset make_openswe_taskset
        make_r2e_taskset make_scaleswe_taskset make_swe_taskset make_swebench_taskset
        make_swelego_real_taskset make_swerebench_v2_taskset make_swesmith_cpp_taskset
        make_swesmith_go_taskset make_swesmith_java_taskset make_swesmith_js_taskset
        make_swesmith_php_taskset make_swesmith_py_taskset make_swesmith_rs_taskset make_swesmith_taskset
        make_swesmith_ts_taskset""",
    "verifiers.envs.experimental.composable.tasksets.cp": "CPRubric CPTaskSet",
    "verifiers.envs.experimental.composable.tasksets.harbor": """HarborDatasetRubric HarborDatasetTaskSet HarborRubric
        HarborTaskSet""",
    "verifiers.envs.experimental.composable.tasksets.lean": """LEAN_GUARD_BEGIN_MARKER LEAN_GUARD_END_MARKER
        LEAN_SYSTEM_PROMPT LeanTaskSet""",
    "verifiers.envs.experimental.composable.tasksets.math": "MathTaskSet",
    "verifiers.envs.experimental.composable.tasksets.swe": """R2EGymTaskSet SWEBenchTaskSet make_r2e_taskset
        make_swe_taskset make_swebench_taskset""",
    "verifiers.envs.experimental.gym_env": "EpisodicSumRubric GymEnv",
    "verifiers.envs.experimental.harbor_env": """HarborEnv HarborMCPHealthcheck HarborMCPMixin HarborMCPServer
        mcp_agent_url mcp_url_port parse_mcp_servers""",
    "verifiers.envs.experimental.mcp_env": "MCPEnv",
    "verifiers.envs.experimental.opencode_env": """DEFAULT_INSTALL_COMMAND DEFAULT_RUN_COMMAND_TEMPLATE
        DEFAULT_SYSTEM_PROMPT OPENCODE_TOOLS OpenCodeEnv OpenCodeMonitorRubric""",
    "verifiers.envs.experimental.opencode_qa_env": "OpenCodeQAEnv",
    "verifiers.envs.experimental.opencode_rlm_env": """OpenCodeRLMEnv OpenCodeRLMMonitorRubric
        RLM_RUN_COMMAND_TEMPLATE""",
    "verifiers.envs.experimental.rlm_env": """RLMCodeExecutionTimeout RLMEnv RLMExecResult RLMExecutor
        RLMMonitorRubric RLMPromptBuilder RLMSandboxCommandTimeout RLMSessionError RLMSetupError RLMWorkerError
        RLMWorkerPaths RLMWorkerRecoveryError SubLLMEmptyModelResponseError SubLLMResult SubLLMTurn
        update_rlm_metrics_from_step""",
    "verifiers.envs.experimental.sandbox_mixin": """APIClient SandboxClient SandboxCreationError SandboxMixin
        SandboxNotReadyError SandboxSetupError SandboxTimeouts ThreadedAsyncSandboxClient is_retryable_sandbox_api_error
        is_retryable_sandbox_read_error""",
    "verifiers.envs.experimental.utils": """DEFAULT_GIT_CHECKOUT_CACHE_ROOT exclusive_file_lock
        exclusive_path_lock file_locks git_checkout_cache resolve_git_checkout shared_file_lock shared_path_lock
        sibling_lock_path validate_git_checkout""",
    "verifiers.envs.experimental.utils.file_locks": """exclusive_file_lock exclusive_path_lock shared_file_lock
        shared_path_lock sibling_lock_path""",
    "verifiers.envs.experimental.utils.git_checkout_cache": """DEFAULT_GIT_CHECKOUT_CACHE_ROOT
        _release_all_in_use_locks resolve_git_checkout subprocess validate_git_checkout""",
    "verifiers.envs.integrations": "openenv_env",
    "verifiers.envs.integrations.browser_env": "BrowserEnv ModeType",
    "verifiers.envs.integrations.openenv_env": "OpenEnvEnv",
    "verifiers.envs.integrations.textarena_env": "TextArenaEnv",
    "verifiers.envs.multiturn_env": "MultiTurnEnv",
    "verifiers.envs.python_env": "PythonEnv PythonWorkerState",
    "verifiers.envs.sandbox_env": "AdvancedConfigs CreateSandboxRequest SandboxEnv SandboxState",
    "verifiers.envs.singleturn_env": "SingleTurnEnv",
    "verifiers.envs.stateful_tool_env": "StatefulToolEnv filter_signature",
    "verifiers.envs.textarena_env": "TextArenaEnv",
    "verifiers.envs.tool_env": "ToolEnv",
    "verifiers.errors": """EmptyModelResponseError Error InfraError InvalidModelResponseError ModelError
        OverlongPromptError SandboxError ToolCallError ToolError ToolParseError TunnelError""",
    "verifiers.gepa": """GEPAConfig GEPADisplay VerifiersGEPAAdapter adapter config display gepa_utils
        make_reflection_lm save_gepa_results""",
    "verifiers.gepa.adapter": "VerifiersGEPAAdapter make_reflection_lm",
    "verifiers.gepa.config": "GEPAConfig",
    "verifiers.gepa.display": "GEPADisplay",
    "verifiers.gepa.gepa_utils": "save_gepa_results",
    "verifiers.parsers.maybe_think_parser": "MaybeThinkParser",
    "verifiers.parsers.parser": "Parser",
    "verifiers.parsers.think_parser": "ThinkParser",
    "verifiers.parsers.xml_parser": "XMLParser",
    "verifiers.rubrics": "math_rubric",
    "verifiers.rubrics.experimental.hybrid_math_rubric": "HybridMathRubric RemoteHybridMathRubric",
    "verifiers.rubrics.judge_rubric": "JudgeRubric",
    "verifiers.rubrics.math_rubric": "MathRubric",
    "verifiers.rubrics.rubric": "Rubric",
    "verifiers.rubrics.rubric_group": "RubricGroup",
    "verifiers.rubrics.tool_rubric": "ToolRubric",
    "verifiers.scripts": "build setup",
    "verifiers.scripts.eval": "main",
    "verifiers.scripts.gepa": """_gepa_extra_headers_from_group _load_gepa_dataset load_gepa_toml_config main optimize
        resolve_gepa_config_args run_gepa_optimization""",
    "verifiers.scripts.init": "init_environment",
    "verifiers.scripts.install": "main",
    "verifiers.types": """AssistantMessage ChatCompletion ChatCompletionMessageToolCall ChatCompletionToolParam
        ChatMessage ChatMessages ClientConfig Completion ContentPart DatasetBuilder EndpointClientConfig
        EndpointConfig EvalConfig EvalRunConfig FinishReason FunctionParameters GenerateInputs GenerateMetadata
        GenerateOutputs ImageUrlContentPart ImageUrlSource Info InputAudioContentPart InputAudioSource Message
        MessageType Messages ModelResponse ProcessedOutputs Response ResponseMessage ResponseTokens RewardFunc
        RolloutInput RolloutOutput RolloutScore RolloutScores RolloutTiming SamplingArgs State SystemMessage
        TextContentPart TextMessage Tool ToolCall ToolMessage TrajectoryStep TrajectoryStepTokens Usage UserMessage""",
    "verifiers.utils": "load_example_dataset pricing_utils",
    "verifiers.utils.async_utils": """EventLoopLagMonitor NullAsyncContext maybe_await maybe_call_with_named_args
        maybe_retry maybe_semaphore with_sem""",
    "verifiers.utils.client_utils": "load_prime_config resolve_client_config setup_openai_client",
    "verifiers.utils.config_utils": "MissingKeyError ensure_keys",
    "verifiers.utils.data_utils": """BOXED_SYSTEM_PROMPT THINK_BOXED_SYSTEM_PROMPT extract_boxed_answer
        extract_hash_answer format_dataset get_preprocess_fn load_example_dataset strip_non_numeric""",
    "verifiers.utils.env_utils": "load_environment",
    "verifiers.utils.error_utils": "ErrorChain error_data get_vf_error_chain",
    "verifiers.utils.eval_utils": """load_endpoints load_toml_config make_dataset print_results
        quiet_datasets run_evaluation""",
    "verifiers.utils.interception_utils": """InterceptionServer StreamInterrupted create_empty_completion
        deliver_response protocol_from_path serialize_intercept_response serialize_tool_defs synthesize_stream""",
    "verifiers.utils.install_utils": """check_hub_env_installed is_hub_env is_installed normalize_package_name
        parse_env_id""",
    "verifiers.utils.logging_utils": "log_level print_prompt_completions_sample quiet_verifiers setup_logging",
    "verifiers.utils.message_utils": """ChatCompletionMessage concat_messages from_raw_message get_messages
        message_to_printable messages_to_printable normalize_messages sanitize_tool_calls
        serialize_message_for_output""",
    "verifiers.utils.metric_utils": """EnvMetrics ErrorRateMetric FinalInputTokensMetric FinalOutputTokensMetric
        InputTokensMetric Metric OutputTokensMetric PassAtKMetric RewardMetric""",
    "verifiers.legacy": "Rubric ToolEnv load_environment",
    "verifiers.utils.path_utils": """find_latest_incomplete_eval_results_path get_eval_runs_dir
        is_valid_eval_results_path write_temp_file""",
    "verifiers.utils.pricing_utils": "format_cost_usd",
    "verifiers.utils.response_utils": "parse_response_message parse_response_messages parse_response_tokens",
    "verifiers.utils.save_utils": """GenerateOutputsBuilder extract_usage_tokens load_outputs make_dataset
        make_serializable save_metadata save_new_outputs state_to_output states_to_outputs validate_resume_metadata""",
    "verifiers.utils.tool_utils": "convert_func_to_oai_tool convert_func_to_tool_def is_valid_tool_content_parts",
    "verifiers.serve": """EnvClient HealthRequest HealthResponse PendingRequest RunGroupRequest RunGroupResponse
        RunRolloutRequest RunRolloutResponse ServerError ServerState ZMQEnvClient ZMQEnvServer""",
    "verifiers.utils.serve_utils": "decode_tensor_payload get_free_port make_ipc_address msgpack_encoder",
    "verifiers.utils.tunnel_utils": "extract_tunnel_url_from_line",
    "verifiers.utils.usage_utils": "StateUsageTracker compute_context_token_metrics response_usage_tokens",
}

NOT_YET: dict[str, str] = {}


def names(paths: dict[str, str]) -> list[tuple[str, str]]:
    return [(module, name) for module, listed in paths.items() for name in listed.split() or [""]]


def offered(module: str, name: str) -> bool:
    try:
        found = importlib.import_module(module)
        if name and not hasattr(found, name):
            importlib.import_module(f"{module}.{name}")
    except ImportError:
        return False
    return True


@pytest.mark.parametrize(("module", "name"), names(PATHS))
def test_a_v0_name_is_offered(module: str, name: str) -> None:
    assert offered(module, name)


@pytest.mark.parametrize(("module", "name"), names(NOT_YET))
def test_a_name_of_the_list_is_really_missing(module: str, name: str) -> None:
    assert not offered(module, name), "it works now: move it from NOT_YET to PATHS"
