"""The logits processors, which run where logits are."""
