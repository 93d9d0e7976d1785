"""Forbids the tokens that would write a key of an object a second time, in the masks of LLGuidance."""
