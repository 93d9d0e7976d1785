"""Code of vLLM's API server: admission, repairs, parsing and metrics."""
