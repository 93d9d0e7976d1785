"""The table of patches: one row for each object of vLLM that this package replaces."""

from constrained_k2.vllm_plugin.start.patch import Patch, reads

PATCHES = (
    # Entry patches ----------------------------------------------------------------------------------------------------
    Patch("vllm.engine.arg_utils:EngineArgs.from_cli_args", "start.entry:from_cli_args", ("api_server",), reads("args"),
          "The engine core must constrain where our tool parser is chosen, but only the API server knows the parser.",
          "vLLM tells every process the name of the tool parser.", is_entry=True),
    Patch("vllm.v1.engine.input_processor:InputProcessor.__init__", "start.entry:input_processor_init", ("api_server",),
          reads("vllm_config", "vllm.v1.engine.input_processor:InputProcessor get_tokenizer",
                "vllm.config:VllmConfig additional_config model_config speculative_config use_v2_model_runner",
                "vllm.config:ModelConfig logits_processors served_model_name skip_tokenizer_init",
                "vllm.config:ModelConfig is_diffusion runner_type"),
          "The process that admits requests must know the operator's settings before the engine starts.",
          "vllm.general_plugins receive the configuration.", is_entry=True),
    Patch("vllm.v1.engine.core:StructuredOutputManager", "start.entry:structured_output_manager", ("engine_core",),
          reads("vllm_config", "vllm.v1.structured_output:StructuredOutputManager grammar_init(request)",
                "vllm.v1.structured_output:StructuredOutputManager grammar_bitmask(requests) executor _grammar_bitmask "
                "grammar_bitmask(structured_output_request_ids) accept_tokens(new_token_ids) validate_tokens "
                "_use_async_grammar_compilation",
                "vllm.v1.structured_output.backend_types:StructuredOutputGrammar fill_bitmask validate_tokens",
                "vllm.v1.structured_output.request:StructuredOutputRequest grammar reasoning_ended",
                "vllm.sampling_params:StructuredOutputsParams grammar _backend",
                "vllm.v1.request:Request num_prompt_tokens prompt_token_ids",
                "vllm.config:VllmConfig num_speculative_tokens"),
          "Structured-output backends are a closed set, one an engine, and none takes Kimi's special tokens.",
          "A backend can be registered and named by a request.", is_entry=True),
    Patch("vllm.v1.worker.worker_base:WorkerWrapperBase.init_device", "start.entry:init_device", ("worker",),
          reads("vllm.v1.worker.worker_base:WorkerWrapperBase vllm_config"),
          "Workers load no class of ours on the structured-output route, but count what the masks change. "
          "worker_extension_cls would be a public way to load one, but there is only one, and it is the operator's.",
          "vllm.general_plugins receive the configuration.", is_entry=True),
    # Prompts ----------------------------------------------------------------------------------------------------------
    Patch("vllm.renderers.online_renderer:OnlineRenderer.preprocess_chat",
          "api_server.patched:preprocess_chat", ("api_server",),
          reads("request messages tool_dicts default_template default_template_content_format",
                "vllm.entrypoints.openai.chat_completion.protocol:ChatCompletionRequest extract_structured_outputs",
                "vllm.entrypoints.openai.responses.protocol:ResponsesRequest extract_structured_outputs",
                "vllm.renderers.online_renderer:OnlineRenderer parser renderer model_config",
                "vllm.renderers.hf:resolve_chat_template(model_config)",
                "vllm.parser.utils:count_chat_history_tool_calls", "vllm.parser.utils:count_history_tool_calls"),
          "adjust_request runs only when the prompt is made; repairs and compilation must come before. Chat "
          "completions, responses, Anthropic's messages, the render endpoint and /tokenize all pass here.",
          "ToolParser has a hook that sees messages and tools before the chat template does."),
    *(Patch(f"vllm.renderers.{module}:_postprocess_messages",
            "api_server.patched:postprocess_messages", ("api_server",),
            reads("messages"),
            "vLLM parses the arguments of earlier calls and writes them anew: other blanks than the model's own, so "
            "the prefix cache misses, and {} for anything but a JSON object. Kimi's templates take the text.",
            "Templates can ask for arguments as text.", versions=(version,))
      for version, module in (("0.32", "chat_utils"), ("0.33", "chat_utils.chat_message"))),
    # Requests ---------------------------------------------------------------------------------------------------------
    Patch("vllm.v1.engine.input_processor:InputProcessor.process_inputs",
          "api_server.patched:process_inputs", ("api_server",),
          reads("params resumable", "vllm.v1.engine:EngineCoreRequest sampling_params",
                "vllm:SamplingParams structured_outputs bad_words bad_words_token_ids _bad_words_token_ids",
                "vllm:SamplingParams extra_args allowed_token_ids thinking_token_budget trace_decode_token_ids"),
          "Every request of every endpoint passes here: limits on tokens, which beside masks may leave no token, are "
          "taken over, and on the structured-output route the request is checked and tagged for the core.",
          "A backend can be registered and named by a request."),
    # Answers ----------------------------------------------------------------------------------------------------------
    Patch("vllm.parser:ParserManager.get_parser", "api_server.patched:get_parser", ("api_server",),
          reads("vllm.parser.abstract_parser:DelegatingParser adjust_request(request) parse(model_output_token_ids) "
                "parse_delta(delta_token_ids) parse_delta(prompt_token_ids) tool_parser_cls reasoning_parser_cls"),
          "vLLM's composed Parser hands a tool parser text, in which a marker and its spelling are the same.",
          "A Parser class can be registered under a name."),
    Patch("vllm.entrypoints.openai.chat_completion.serving:OpenAIServingChat.chat_completion_full_generator",
          "api_server.patched:chat_completion_full_generator", ("api_server",),
          reads("request result_generator parser",
                "vllm.entrypoints.openai.chat_completion.serving:OpenAIServingChat parser_cls"),
          "vLLM reports finish_reason tool_calls for every answer with calls, also if max_tokens cut one. On 0.33 "
          "no function below sees a whole answer's choice together with its finish_reason.",
          "Parser.parse returns a finish_reason."),
    Patch("vllm.entrypoints.openai.chat_completion.serving:maybe_filter_parallel_tool_calls",
          "api_server.patched:maybe_filter_parallel_tool_calls", ("api_server",), reads("item request"),
          "As above for streams: the last function that sees each choice of a stream together with its request.",
          "DeltaMessage carries a finish_reason.", versions=("0.32",)),
    Patch("vllm.entrypoints.openai.chat_completion.stream_processor:ChatStreamProcessor.step",
          "api_server.patched:stream_step", ("api_server",), (),
          "As above for streams since 0.33, where a choice's finish_reason comes with its delta. No function sees the "
          "request there, so streams carry no diagnostics.",
          "DeltaMessage carries a finish_reason.", versions=("0.33",)),
    *(Patch(f"vllm.entrypoints.openai.responses.serving:OpenAIServingResponses.{method}",
            "api_server.patched:responses", ("api_server",),
            reads("vllm.entrypoints.openai.responses.serving:OpenAIServingResponses parser"),
            "Of a response that max_output_tokens cuts, vLLM says completed in its items, and in the last event of its "
            "stream (vllm-project/vllm#45386, #57998).",
            "A stream that max_output_tokens cuts ends in response.incomplete.")
      for method in ("create_responses", "retrieve_responses")),
    Patch("vllm.v1.engine.detokenizer:IncrementalDetokenizer.from_new_request",
          "api_server.patched:from_new_request",
          ("api_server",),
          reads("tokenizer request", "vllm.v1.engine:EngineCoreRequest sampling_params prompt_token_ids",
                "vllm:SamplingParams extra_args stop",
                "vllm.v1.engine.detokenizer:BaseIncrementalDetokenizer update(new_token_ids) "
                "update(stop_terminated) stop output_text"),
          "A stop string in the reasoning ends the answer before any text or call (vllm-project/vllm#52393, #38499), "
          "one in a call drops the call.",
          "vLLM looks for stop strings in the text alone."),
    # Adoption ---------------------------------------------------------------------------------------------------------
    Patch("vllm.v1.engine.core:EngineCore.preprocess_add_request", "engine_core.patched:preprocess_add_request",
          ("engine_core",),
          reads("request", "vllm.v1.engine.core:EngineCore structured_output_manager",
                "vllm.v1.engine:EngineCoreRequest request_id prompt_token_ids sampling_params resumable",
                "vllm.sampling_params:StructuredOutputsParams structural_tag",
                "vllm:SamplingParams extra_args structured_outputs trace_decode_token_ids",
                "vllm.config:VllmConfig structured_outputs_config",
                "vllm.config:StructuredOutputsConfig reasoning_parser"),
          "Requests of the Rust front end, of gateways and of other tool parsers pass no code of ours before they "
          "reach the engine core. It reads their structural tags, before vLLM compiles them.",
          "A backend can be registered and takes structural tags."),
    # The scheduler ----------------------------------------------------------------------------------------------------
    Patch("vllm.config.scheduler:SchedulerConfig.get_scheduler_cls",
          "engine_core.patched:get_scheduler_cls", ("engine_core",),
          reads("vllm.v1.core.sched.scheduler:Scheduler structured_output_manager requests running",
                "vllm.v1.core.sched.scheduler:Scheduler get_grammar_bitmask(scheduler_output) make_stats",
                "vllm.v1.core.sched.scheduler:Scheduler update_from_output(scheduler_output) _free_request(request)",
                "vllm.v1.core.sched.scheduler:Scheduler update_from_output(model_runner_output)",
                "vllm.v1.core.sched.output:SchedulerOutput scheduled_spec_decode_tokens",
                "vllm.v1.core.sched.output:GrammarOutput structured_output_request_ids",
                "vllm.v1.request:Request num_output_tokens structured_output_request sampling_params prompt_token_ids",
                "vllm.v1.request:Request _output_token_ids"),
          "The workers do not know a row's position in its turn, and the list of ids is the only part of a step's "
          "masks that both model runners hand on; the counters that come with a worker's output go on with the "
          "statistics of the step; calls that nothing constrains must show in the metrics. If scheduler_cls names a "
          "class, vLLM warns at each start that asynchronous scheduling is off.",
          "GrammarOutput, ModelRunnerOutput and SchedulerStats have free fields, and finished requests a hook; or vLLM "
          "has a list of schedulers' mixins."),
    # Metrics ----------------------------------------------------------------------------------------------------------
    Patch("vllm.v1.metrics.loggers:PrometheusStatLogger.__init__",
          "api_server.patched:stat_logger_init", ("api_server",),
          reads("vllm_config", "vllm.v1.metrics.loggers:PrometheusStatLogger engine_indexes"),
          "Counters start at 0 with the server. vllm.stat_logger_plugins cannot serve: one installed plugin turns "
          "--disable-log-stats off for every server of the environment (AsyncLLM: has_custom_loggers), LLM never "
          "loads it, and it is dropped when the number of data-parallel ranks grows. Earlier at start, neither the "
          "ranks of the engines nor whether statistics are on is known.",
          "vllm.stat_logger_plugins leave --disable-log-stats alone."),
    Patch("vllm.v1.metrics.loggers:PrometheusStatLogger.record",
          "api_server.patched:stat_logger_record", ("api_server",),
          reads("scheduler_stats engine_idx", "vllm.v1.metrics.loggers:PrometheusStatLogger vllm_config"),
          "Shows what the engine has counted; see the row above.",
          "vllm.stat_logger_plugins leave --disable-log-stats alone."),
    Patch("vllm.v1.metrics.stats:SchedulerStats.__dataclass_fields__",
          "shared.transport:stats_fields", ("api_server", "engine_core"),
          reads("vllm.v1.engine:EngineCoreOutputs scheduler_stats"),
          "The only object that the engine core sends its front end every step. A new dataclass would not reach the "
          "names that are bound to this one elsewhere.",
          "SchedulerStats has a dictionary for plugins."),
    Patch("vllm.v1.outputs:ModelRunnerOutput.__getstate__",
          "worker.patched:model_runner_output_getstate", ("worker",), (),
          "A worker in a process of its own sends the engine core nothing but this object, pickled.",
          "ModelRunnerOutput has a dictionary for plugins."),
    # Examined rows ----------------------------------------------------------------------------------------------------
    Patch("vllm.v1.worker.gpu_model_runner:apply_grammar_bitmask",
          "worker.patched:apply_grammar_bitmask", ("worker",),
          reads("scheduler_output grammar_output input_batch logits",
                "vllm.v1.core.sched.output:GrammarOutput structured_output_request_ids",
                "vllm.v1.core.sched.output:SchedulerOutput scheduled_spec_decode_tokens"),
          "The V1 model runner's only call that has the logits before and after the masks.",
          "vLLM says what a mask changes, or has a hook around the masks."),
    Patch("vllm.v1.worker.gpu.structured_outputs:StructuredOutputsWorker.apply_grammar_bitmask",
          "worker.patched:apply_grammar_bitmask_v2", ("worker",),
          reads("logits input_batch grammar_req_ids grammar_bitmask",
                "vllm.v1.worker.gpu.input_batch:InputBatch req_ids cu_num_logits"),
          "As above in the V2 model runner.",
          "vLLM says what a mask changes, or has a hook around the masks."),
    # Draft rows -------------------------------------------------------------------------------------------------------
    Patch("vllm.v1.sample.rejection_sampler:expand_batch_to_tokens",
          "worker.patched:expand_batch_to_tokens", ("worker",),
          reads("x cu_num_tokens num_tokens replace_from replace_to"),
          "On the CPU build, temperature, top-k and top-p of draft tokens are uninitialized memory if a request of the "
          "batch samples (vllm-project/vllm#55005): such answers are noise, or the engine stops.",
          "_expand_kernel_impl in vllm/utils/cpu_triton_utils.py writes to the tensor that it is given "
          "(vllm-project/vllm#55006)."),
)  # fmt: skip
