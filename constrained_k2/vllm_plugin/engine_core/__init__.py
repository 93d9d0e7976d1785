"""Code of vLLM's engine core: the structured-output route, and the intake of all requests."""
