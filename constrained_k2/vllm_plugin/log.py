"""Where this package says things on a vLLM server.

Below vLLM's own logger: its servers raise the root's level, and warnings of other loggers are not shown.
"""

import logging

logger = logging.getLogger("vllm.constrained_k2")
