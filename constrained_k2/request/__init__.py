"""Reads requests: tools, ``tool_choice``, thinking, response format, limits and strictness."""
