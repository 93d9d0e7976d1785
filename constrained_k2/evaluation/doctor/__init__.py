"""Checks of a live OpenAI-compatible server of a Kimi model: what was seen, and what to change."""
