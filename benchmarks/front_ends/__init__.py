"""The demo's requests through each of vLLM's front ends, with this package and without, judged on raw token ids."""
