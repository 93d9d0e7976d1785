"""Random walks, step cost and vLLM's own tag for Kimi K3's format."""
