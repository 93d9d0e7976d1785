"""Fast-path admission: accepts a schema of common keywords, and compiles only its patterns.

Tools of different requests share their patterns more often than their whole schemas.
"""

from math import ceil
from typing import Final

from constrained_k2.compiler.shared import GrammarOptions, SharedGrammars
from constrained_k2.engines.protocol import ArgumentEncoding
from constrained_k2.errors import SchemaTooCostly, UnsupportedSchema
from constrained_k2.schema.fast_path import MAX_PARTS, fast_path_shape

SECONDS_PER_PART: Final = 50e-6
"""Estimated time to compile a fast-path schema, for each of its parts: half of what MaskBench's schemas of 100 parts
and more take, so that only those that are surely slow are compiled before the request is scheduled."""

_PATTERN_PARTS = 20  # a string with a pattern counts as this many parts, or more


class FastPathAdmission:
    """Decides for one request which schemas the fast path admits, and counts their parts.

    Attributes:
        spent: Seconds of compiling strings with patterns, by the engine's clock.
    """

    def __init__(self, shared: SharedGrammars, encoding: ArgumentEncoding) -> None:
        self.spent = 0.0
        self._shared = shared
        self._options = GrammarOptions(undeclared_keys="forbid", encoding=encoding)

    def parts(self, schema: str) -> int | None:
        """The number of parts of a schema (JSON text) that the fast path admits; None if it must be compiled."""
        shape = fast_path_shape(schema)
        if shape is None:
            return None
        parts = shape.parts
        for string in shape.patterned:
            more = self._string_parts(string)
            if more is None:
                return None
            parts += more
        return parts if parts <= MAX_PARTS else None

    def _string_parts(self, string: str) -> int | None:
        """The number of parts that a string with a pattern counts as; None if it is not fully enforced."""
        schema = f'{{"type":"object","properties":{{"s":{string}}},"required":["s"]}}'
        limit, known = self._shared.request_seconds, self._shared.compile_time(schema, "llguidance", self._options)
        if known is None and limit is not None and self.spent > limit:
            return None
        waited = 0.0

        def note(seconds: float | None) -> None:
            nonlocal waited
            waited = seconds or 0.0

        try:
            grammar = self._shared.grammar(schema, "", "llguidance", note, self._options)
        except (UnsupportedSchema, SchemaTooCostly):
            self.spent += waited
            return None
        seconds = self._shared.compile_time(schema, "llguidance", self._options) or waited
        self.spent += seconds if waited else 0.0
        if grammar.coverage.inexact:
            return None
        return max(_PATTERN_PARTS, ceil(seconds / SECONDS_PER_PART))
