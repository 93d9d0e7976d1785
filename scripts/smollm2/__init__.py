"""SmolLM2-135M-Instruct in Kimi K2's wire format: its checkpoint, what it learns from, and its training."""
