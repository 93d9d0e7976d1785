"""The logger on a vLLM server: below vLLM's own, since its servers do not show other loggers' warnings."""

import logging

logger = logging.getLogger("vllm.constrained_k2")
