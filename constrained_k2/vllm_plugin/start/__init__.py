"""The first code that each vLLM process runs: the entry point, the table of patches, and their application."""
