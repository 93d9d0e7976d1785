"""The engine core: the structured-output route, and requests as they arrive on either."""
