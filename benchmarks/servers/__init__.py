"""Decode steps a second and time to first token on whole vLLM servers."""
