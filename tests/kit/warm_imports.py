"""Imports the modules of vLLM's servers, engine cores and workers, and none of this package, which some do not load."""
# ruff: noqa: F401

import transformers.models.auto
import vllm.entrypoints.cli.main
import vllm.entrypoints.openai.api_server
import vllm.model_executor.models.deepseek_v2
import vllm.model_executor.models.llama
import vllm.v1.engine.async_llm
import vllm.v1.engine.core
import vllm.v1.executor.multiproc_executor
import vllm.v1.worker.cpu_worker
