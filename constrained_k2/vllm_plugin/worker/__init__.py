"""Code of vLLM's workers: the logits processors, their masks, and patches of the model runners."""
