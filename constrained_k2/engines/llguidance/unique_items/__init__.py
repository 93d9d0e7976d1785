"""Forbids the tokens that would repeat an item of an array with ``uniqueItems``, in the masks of LLGuidance."""
