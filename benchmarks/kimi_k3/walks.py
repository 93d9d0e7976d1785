"""Random walks over tools: our parser must read valid calls from them, and their keys may come in any order."""

import json
import random
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Self

import jsonschema

from benchmarks.host.instances import instance_of
from benchmarks.kimi_k3.walker import Names, Row, Walker
from constrained_k2 import Compiler, ToolCallMatcher, ToolCallSpec, Vocabulary
from constrained_k2.compiler.compiled import CompiledToolCalls
from constrained_k2.parsing.parser import parse_completion
from constrained_k2.prompts.xtml import render_turn
from constrained_k2.prompts.xtml.arguments import split_arguments
from constrained_k2.request.spec import ToolCall
from constrained_k2.vocabulary.bitmask import allocate_bitmask

Say = Callable[[str], None]
UNDECLARED = ("allow", "forbid")
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]*")  # its scheme and its characters


@dataclass(slots=True)
class Figures:
    """Counts of a run.

    Attributes:
        walks: Turns that were written to their stop.
        cut: Turns that were still open at the limit.
        tokens: Their tokens.
        calls: Calls that the parser found.
        arguments: Their arguments.
        relaxed: Calls of tools with a keyword that has no exact grammar: jsonschema does not judge them.
        repeated: Calls that repeat an undeclared key: where a pattern leaves no other.
        shuffled: Calls whose keys were written again in another order.
        faults: What was wrong, one line each.
    """

    walks: int = 0
    cut: int = 0
    tokens: int = 0
    calls: int = 0
    arguments: int = 0
    relaxed: int = 0
    repeated: int = 0
    shuffled: int = 0
    faults: list[str] = field(default_factory=list)


class OurTurn:
    """A turn under our masks."""

    def __init__(self, matcher: ToolCallMatcher) -> None:
        self._matcher = matcher

    def fill(self, bitmask: Row) -> None:
        """See :class:`benchmarks.kimi_k3.walker.Turn`."""
        self._matcher.fill_bitmask(bitmask, 0)

    def accept(self, token_id: int) -> bool:
        """See :class:`benchmarks.kimi_k3.walker.Turn`."""
        return self._matcher.accept_tokens((token_id,))

    def rollback(self, count: int) -> None:
        """See :class:`benchmarks.kimi_k3.walker.Turn`."""
        self._matcher.rollback(count)


def run(tools: list[dict[str, Any]], vocabulary: Vocabulary, count: int, say: Say, *, shuffles: int = 1) -> Figures:
    """Write ``count`` turns that must call one of the tools, each in turn, and judge them.

    Undeclared keys are allowed in every other round over the tools.
    """
    walker, compiler, found = Walker(vocabulary), Compiler(vocabulary), Figures()
    names = [Names.of(_schema(tool), vocabulary) for tool in tools]
    for number in range(count):
        at, seed = number % len(tools), number // len(tools)
        tool = tools[at]
        compiled = compile_tool(compiler, tool, UNDECLARED[seed % 2])
        where = f"{tool['function']['name']}, seed {seed}"
        try:
            ids = walker.walk(OurTurn(compiled.matcher()), names[at], seed)
        except AssertionError as error:
            found.faults.append(f"{where}: {error}")
            continue
        found.tokens += len(ids)
        if ids[-1] != vocabulary.format.turn_end:
            found.cut += 1
            continue
        found.walks += 1
        found.faults += (f"{where}: {fault}" for fault in _judge(ids, tool, compiled, vocabulary, found))
        chance = random.Random(number)  # noqa: S311 - repeatable
        for call in parse_completion(ids, vocabulary).tool_calls:
            for _ in range(shuffles):
                found.faults += (f"{where}: {fault}" for fault in _shuffled(call, compiled, chance, found))
        if (number + 1) % 1000 == 0:
            say(f"{number + 1} walks, {len(found.faults)} faults")
    return found


def compile_tool(compiler: Compiler, tool: dict[str, Any], undeclared_keys: str) -> CompiledToolCalls:
    """Compile a request that must call this tool."""
    spec = ToolCallSpec.from_openai({"tools": [tool], "tool_choice": "required"})
    return compiler.compile(replace(spec, undeclared_keys=undeclared_keys), check=False)  # type: ignore[arg-type]


def _schema(tool: dict[str, Any]) -> dict[str, Any]:
    return tool["function"].get("parameters") or {"type": "object"}


def _judge(
    ids: list[int], tool: dict[str, Any], compiled: CompiledToolCalls, vocabulary: Vocabulary, found: Figures
) -> list[str]:
    """Return what is wrong with a turn."""
    schema, name = _schema(tool), tool["function"]["name"]
    read = parse_completion(ids, vocabulary, tools=compiled.spec.tools)
    faults = [f"{what} in a whole turn" for what in ("cut_calls", "malformed") if getattr(read, what)]
    if not read.tool_calls:
        faults.append("no call")
    found.calls += len(read.tool_calls)
    for position, call in enumerate(read.tool_calls, 1):
        if call.name != name or call.undeclared or call.recoveries:
            faults.append(f"call of {call.name}, {call.recoveries}")
        if call.index != position:
            faults.append(f"index {call.index} of call {position}")
        members = split_arguments(call.arguments, "arguments")
        arguments = json.loads(call.arguments)
        assert not isinstance(members, str)
        found.arguments += len(members)
        if twice := [key for key, count in Counter(member.key for member in members).items() if count > 1]:
            declared = set(twice) & schema.get("properties", {}).keys()
            found.repeated += not declared
            faults += (f"{key} is written twice" for key in declared)
        if lacking := set(schema.get("required", ())) - arguments.keys():
            faults.append(f"without {sorted(lacking)}")
        if not compiled.coverage(name).is_sound:
            found.relaxed += 1
        elif error := next(validator(schema).iter_errors(arguments), None):
            faults.append(f"{error.message[:200]} at {error.json_path}")
    return faults


def validator(schema: Any) -> Any:
    """Return jsonschema's validator for a schema, with formats and URIs; one public tool has draft 4."""
    for draft in (jsonschema.Draft202012Validator, jsonschema.Draft7Validator, jsonschema.Draft4Validator):
        try:
            draft.check_schema(schema)
        except jsonschema.SchemaError:
            continue
        formats = jsonschema.FormatChecker(())
        formats.checkers = draft.FORMAT_CHECKER.checkers | {"uri": (_is_uri, ())}
        return draft(schema, format_checker=formats)
    raise AssertionError(f"no schema: {schema}")


def _is_uri(value: object) -> bool:
    """Return True for other values than strings, and for strings that RFC 3986 may allow: jsonschema does not check."""
    return not isinstance(value, str) or _URI.fullmatch(value) is not None


def _shuffled(call: ToolCall, compiled: CompiledToolCalls, chance: random.Random, found: Figures) -> list[str]:
    """Write a call again with its keys in a random order; return what is wrong."""
    members = json.loads(call.arguments, parse_float=Number, parse_int=Number)
    if len(members) < 2:
        return []
    found.shuffled += 1
    order = chance.sample(list(members), len(members))
    text = ", ".join(f"{json.dumps(key, ensure_ascii=False)}: {dump(members[key])}" for key in order)
    ids = render_turn([replace(call, arguments=f"{{{text}}}")], compiled.vocabulary)
    return [] if writes(compiled, ids) else [f"cannot be written in the order {order}: {text[:300]}"]


class Number(float):
    """A number with its own text."""

    def __new__(cls, text: str) -> Self:
        """Keep the text."""
        self = super().__new__(cls, text)
        self.text = text
        return self

    text: str


def dump(value: Any) -> str:
    """Return a value as JSON, with the text of its numbers."""
    if isinstance(value, Number):
        return value.text
    if isinstance(value, dict):
        members = (f"{json.dumps(key, ensure_ascii=False)}: {dump(item)}" for key, item in value.items())
        return f"{{{', '.join(members)}}}"
    if isinstance(value, list):
        return "[" + ", ".join(map(dump, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def writes(compiled: CompiledToolCalls, ids: list[int]) -> bool:
    """Return True if a whole turn is allowed: each token is in its mask and accepted."""
    matcher = compiled.matcher()
    bitmask = allocate_bitmask(1, compiled.vocabulary.size)
    for token in ids:
        matcher.fill_bitmask(bitmask, 0)
        if not int(bitmask[0, token >> 5]) >> (token & 31) & 1 or not matcher.accept_tokens((token,)):
            return False
    return matcher.is_terminated()


def shuffles_of_instances(tools: list[dict[str, Any]], vocabulary: Vocabulary, count: int) -> tuple[int, list[str]]:
    """Write ordinary arguments of each tool in ``count`` random orders; return how many, and what is wrong."""
    compiler, faults, written = Compiler(vocabulary), list[str](), 0
    for number, tool in enumerate(tools):
        schema, name = _schema(tool), tool["function"]["name"]
        compiled = compile_tool(compiler, tool, "allow")
        for seed in range(count):
            instance = instance_of(schema, seed)
            if instance is None:
                continue
            chance = random.Random(number * count + seed)  # noqa: S311 - repeatable
            text = json.dumps({key: instance[key] for key in chance.sample(list(instance), len(instance))})
            written += 1
            if not writes(compiled, render_turn([ToolCall(name, 1, text)], vocabulary)):
                faults.append(f"{name} cannot be written as {text[:300]}")
    return written, faults


def table(found: Figures, written: int, faults: list[str], say: Say) -> bool:
    """Print the figures; return True if nothing is wrong.

    Args:
        found: The walks.
        written: The ordinary arguments that were written in random orders.
        faults: What is wrong with these.
        say: Prints a line.
    """
    say(
        f"{found.walks} walks of {found.tokens} tokens ({found.cut} more were cut off at the limit): {found.calls} "
        f"calls with {found.arguments} arguments. jsonschema does not judge {found.relaxed} calls; {found.repeated} "
        f"repeat an undeclared key. In another order: {found.shuffled} calls of walks, {written} of ordinary arguments."
    )
    for fault in (*found.faults, *faults):
        say(f"WRONG: {fault}")
    return not found.faults and not faults
