"""JSON Schema, before any engine: a schema becomes a union of shapes, from which grammars are written."""
