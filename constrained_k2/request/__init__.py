"""Reads requests: tools, ``tool_choice``, thinking, and how strictly schemas are enforced."""
