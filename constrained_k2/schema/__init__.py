"""JSON Schema before any engine sees it."""
