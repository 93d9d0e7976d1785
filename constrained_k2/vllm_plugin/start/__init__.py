"""Runs first in every vLLM process: the entry point, the table of patches, their application."""
