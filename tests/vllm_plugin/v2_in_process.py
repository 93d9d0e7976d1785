"""Does a job of :mod:`tests.vllm_plugin.engine_run` with vLLM's V2 model runner on a CPU."""

import tests.kit.triton_on_cpu  # isort: skip # noqa: F401 - before vLLM

import os
import sys

from tests.vllm_plugin.engine_run import ENVIRONMENT, run_file

if __name__ == "__main__":
    os.environ |= ENVIRONMENT
    run_file(sys.argv[1])
