"""Code of several vLLM processes: settings, matchers of requests, examined rows, counts."""
