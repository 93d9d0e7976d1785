"""The engine core: the structured-output route, and matchers for both routes."""
