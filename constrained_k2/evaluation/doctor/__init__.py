"""Checks a live OpenAI-compatible server of a Kimi model, and reports faults with their remedies."""
