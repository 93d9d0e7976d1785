"""Shared by the engine core and the workers: matchers of requests, and which rows a step looks at or declines."""
