"""Requests to the small model through each of vLLM's front ends, with this package and without, judged on token ids."""
