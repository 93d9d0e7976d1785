"""Tests, within limits, what a schema or subschema allows after keywords are removed."""

import json
import time
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

from constrained_k2.compiler.compiler import Compiler
from constrained_k2.compiler.shared import GrammarOptions
from constrained_k2.engines.protocol import ArgumentMatcher
from constrained_k2.errors import ConstrainedK2Error, SchemaTooCostly
from constrained_k2.explain.nodes import Level
from constrained_k2.formats.base import WireFormat
from constrained_k2.schema.budget import objects_in
from constrained_k2.schema.document import SchemaDocument, unescape
from constrained_k2.schema.undeclared_keys import UndeclaredKeys
from constrained_k2.vocabulary.vocabulary import Vocabulary

Removed = frozenset[tuple[str, str]]
"""Keywords that are removed: pointer of their subschema, keyword."""

NOTHING: Removed = frozenset()
END = -1
"""Replaces a byte or a marker's id to ask for the end of the value."""

_CACHE_BYTES = 32 << 20
_WHOLE = "whole"  # the definition with the whole schema, if a part of it is the root
_MOVED = f"#/$defs/{_WHOLE}"
_BASES = frozenset({"$id", "id", "$anchor", "$dynamicAnchor", "$dynamicRef", "$recursiveRef"})
_DATA = frozenset({"enum", "const", "default", "examples"})


@cache
def _compiler(wire_format: WireFormat, compile_seconds: float) -> Compiler:
    vocabulary = Vocabulary.of_bytes(wire_format)
    return Compiler(vocabulary, cache_bytes=_CACHE_BYTES, compile_seconds=compile_seconds, mask_cache_bytes=0)


@dataclass(frozen=True, slots=True)
class ExplainLimits:
    """Limits on the explanation of a turn. Beyond them, overridden tokens are shown with their path but no keywords."""

    seconds: float = 1.0  # CPU time, including the time of compiling schemas
    overrides: int = 4096  # that are explained, in the order of the turn
    compile_seconds: float = 0.25  # CPU time of compiling one schema; elapsed time may be four times as long
    trials: int = 64  # schemas, each with some keywords removed, that are tried for one override
    text_bytes: int = 1 << 20  # of arguments, or of an answer, in which keywords are searched


DEFAULT_LIMITS = ExplainLimits()


class Exhausted(Exception):
    """The limits are reached; never leaves this package."""


class Budget:
    """The remaining time and trials."""

    def __init__(self, limits: ExplainLimits) -> None:
        self.compile_seconds = limits.compile_seconds
        self._deadline = time.thread_time() + limits.seconds
        self._most = limits.trials
        self._trials = 0

    def begin_override(self) -> None:
        """Give the next override its trials."""
        self._trials = self._most

    def add_seconds(self, seconds: float) -> None:
        """Count the CPU time that another thread spent."""
        self._deadline -= seconds

    @property
    def is_spent(self) -> bool:
        """True if the time is spent."""
        return time.thread_time() > self._deadline

    def check(self) -> None:
        """Raise if the time is spent."""
        if self.is_spent:
            raise Exhausted

    def count_trial(self) -> None:
        """Count a trial; raise if there is none left, or no time."""
        self.check()
        if not self._trials:
            raise Exhausted
        self._trials -= 1


class Subject:
    """The schema of a call's arguments, or of an answer, with the options that its grammar is compiled with."""

    def __init__(self, schema: str, options: GrammarOptions, wire_format: WireFormat, budget: Budget) -> None:
        self.schema = schema
        self.options = options
        self.document = SchemaDocument(json.loads(schema))
        self._compiler = _compiler(wire_format, budget.compile_seconds)
        self.budget = budget

    @property
    def policy(self) -> UndeclaredKeys:
        """The treatment of keys that the schema does not declare."""
        return self.options.undeclared_keys or "forbid"

    def allows(
        self,
        symbols: Iterable[int],
        symbol: int,
        removed: Removed = NOTHING,
        part: Level | None = None,
        policy: UndeclaredKeys | None = None,
    ) -> bool | None:
        """True if a byte, a marker's id or :data:`END` may follow a text; None if the text itself is not allowed.

        The subschemas of ``part`` replace the whole schema, and all apply; the text is JSON then. ``policy`` is the
        treatment of undeclared keys; None for the request's.
        """
        self.budget.count_trial()
        matcher = self._matcher(removed, part, policy or self.policy)
        if matcher is None:
            return None
        try:
            for number, each in enumerate(symbols):
                if not number & 0xFF:
                    self.budget.check()
                if not matcher.accept(each):
                    return None
            return matcher.is_complete() if symbol == END else matcher.accept(symbol)
        except ConstrainedK2Error:  # the engine hit a limit
            return None

    def _matcher(self, removed: Removed, part: Level | None, policy: UndeclaredKeys) -> ArgumentMatcher | None:
        options = replace(self.options, undeclared_keys=policy)
        if part is None:
            text = self.schema if not removed else json.dumps(_without(self.document.root, removed))
        else:
            options = replace(options, root="any", encoding="json")
            text = self._part(part, removed)
        is_known = self._compiler.compile_time(text, "llguidance", options) is not None
        try:
            return self._compiler.grammar(text, "", "llguidance", options=options).matcher("")
        except ConstrainedK2Error as error:  # without some keywords a schema may be over a budget
            if isinstance(error, SchemaTooCostly) and error.budget == "compile_ms":  # it depends on the machine's load
                raise Exhausted from error
            return None
        finally:
            if not is_known:  # compiling takes CPU time of another thread, at most the limit
                seconds = self._compiler.compile_time(text, "llguidance", options)
                self.budget.add_seconds(self.budget.compile_seconds if seconds is None else seconds)

    def _part(self, part: Level, removed: Removed) -> str:
        moved = _without(self._moved, frozenset((_MOVED + pointer[1:], keyword) for pointer, keyword in removed))
        declared = self.document.root.get("$schema")
        root: dict[str, Any] = {} if declared is None else {"$schema": declared}
        root["allOf"] = [{"$ref": _MOVED + node.pointer[1:]} for node in part if node.is_sure]
        return json.dumps(root | moved)

    @cached_property
    def has_parts(self) -> bool:
        """True if each part can be a schema of its own: all references are pointers into the schema."""
        for _, each in objects_in(self.document.root):
            reference = each.get("$ref", "#/")
            has_base = any(isinstance(each.get(name), str) for name in _BASES)  # rather than a property of this name
            if has_base or (isinstance(reference, str) and not reference.startswith("#/")):
                return False
        return True

    @cached_property
    def _moved(self) -> dict[str, Any]:
        moved = json.loads(self.schema)
        for pointer, each in objects_in(moved):
            if isinstance(each.get("$ref"), str) and _DATA.isdisjoint(pointer.split("/")):
                each["$ref"] = _MOVED + each["$ref"][1:]
        return {"$defs": {_WHOLE: moved}}


def _without(root: Any, removed: Removed) -> Any:
    """A schema without some keywords; only the changed parts are copied."""
    root = copy(root)
    for pointer, keyword in sorted(removed, key=lambda place: -len(place[0])):  # inner keywords before outer ones
        value = root
        for part in map(unescape, pointer.split("/")[1:]):
            child: str | int = int(part) if isinstance(value, list) else part
            value[child] = copy(value[child])
            value = value[child]
        value.pop(keyword, None)
    return root
