"""Reads the schemas to measure from the data folder; ``scripts/data.json`` names their sources."""

import json
import lzma
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DRAFTS = {
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
    "draft7": "http://json-schema.org/draft-07/schema#",
}
SUITE = "schemas/json-schema-test-suite"  # like the next three, a path in the data folder
TOOLS = "schemas/mcp-tools/livemcp_dev.jsonl"
WALLE = "schemas/kvv-walle/cases.jsonl"
MASKBENCH = "schemas/maskbench.jsonl.xz"


@dataclass(frozen=True, slots=True)
class Instance:
    """A value and whether the schema accepts it."""

    text: str  # the value as compact JSON
    valid: bool  # the suite's verdict
    description: str = ""  # the suite's description


@dataclass(frozen=True, slots=True)
class Case:
    """A schema with instances."""

    name: str  # unique in its corpus
    schema: str  # JSON text
    instances: tuple[Instance, ...] = ()  # empty for tools
    file: str = ""  # the suite's file without its extension (`optional/format/date`), or the corpus
    draft: str = "draft2020-12"  # A key of `DRAFTS`
    judged: str = ""  # the schema for the validator, if it cannot resolve the references of `schema`; else empty


def suite(root: Path) -> Iterator[Case]:
    """Read the JSON-Schema-Test-Suite without its optional parts, except formats, which are asserted.

    Instances with lone surrogates, which no tokenizer can write, are left out.

    Args:
        root: The folder of the drafts.

    Raises:
        FileNotFoundError: A draft is missing.
    """
    for draft, uri in DRAFTS.items():
        if not (root / draft).is_dir():
            raise FileNotFoundError(str(root / draft))
        for path in sorted((root / draft).rglob("*.json")):
            if "optional" in path.parts and "format" not in path.parts:
                continue
            file = path.relative_to(root / draft).with_suffix("").as_posix()
            for number, group in enumerate(json.loads(path.read_text())):
                schema = group["schema"]
                if isinstance(schema, dict):
                    schema = {"$schema": uri, **schema}
                instances = tuple(
                    Instance(text, test["valid"], test["description"])
                    for test in group["tests"]
                    if _can_be_written(text := json.dumps(test["data"], ensure_ascii=False, separators=(",", ":")))
                )
                name = f"{draft}/{file}#{number} {group['description']}"
                yield Case(name, json.dumps(schema), instances, file, draft)


def _can_be_written(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def tools(path: Path) -> Iterator[Case]:
    """Read the tools of public MCP servers, one server per line."""
    seen: dict[str, int] = {}
    for line in path.read_text().splitlines():
        for tool in json.loads(line)["tools"]:
            name = tool["function"]["name"]
            seen[name] = seen.get(name, 0) + 1
            schema = tool["function"].get("parameters") or {"type": "object"}
            yield Case(f"{name}#{seen[name]}", json.dumps(schema), file="mcp-tools")


def walle(path: Path) -> Iterator[Case]:
    """Read K2 Vendor Verifier's schemas, each as the property ``value`` of a tool, as it sends them."""
    for number, line in enumerate(path.read_text().splitlines()):
        entry: dict[str, Any] = json.loads(line)
        schema = {"type": "object", "properties": {"value": entry["schema"]}, "required": ["value"]}
        yield Case(
            f"{entry['suite']}#{number}",
            json.dumps(schema),
            file="kvv-walle",
            judged="" if "$id" in entry["schema"] else json.dumps(_moved_under_value(schema, entry["schema"])),
        )


def maskbench(path: Path) -> Iterator[Case]:
    """Read MaskBench: schemas found in the wild, most of them with valid and invalid instances."""
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            instances = tuple(
                Instance(json.dumps(test["data"], ensure_ascii=False, separators=(",", ":")), test["valid"])
                for test in row["tests"]
            )
            yield Case(row["id"], json.dumps(row["schema"]), instances, file="maskbench")


def hostile() -> Iterator[Case]:
    """Yield schemas that each crash at least one engine, or cost it seconds or gigabytes."""
    wide = {f"property_{number}": {"type": "string"} for number in range(2_000)}
    doubling = {"$defs": {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(30)}}
    doubling["$defs"]["d30"] = {"allOf": [{"type": "string"}]}
    products = [{"anyOf": [{"properties": {f"k{n}{m}": {"const": m}}} for m in range(6)]} for n in range(20)]
    schemas: dict[str, Any] = {
        "enum of 5,000": {"enum": [f"value number {number}" for number in range(5_000)]},
        "enum of 100,000": {"enum": list(range(100_000))},
        "a pattern that exhausts lexers": {"type": "string", "pattern": ".*a.{20}"},
        "200 such patterns": {"properties": {f"p{n}": {"pattern": f".*a.{{{n % 30 + 5}}}"} for n in range(200)}},
        "x-guidance": {"x-guidance": {"whitespace_pattern": ".*", "item_separator": "x"}, "type": "object"},
        "maxLength 10^7": {"type": "string", "maxLength": 10**7},
        "minLength 10^12": {"type": "string", "minLength": 10**12},
        "maxItems 10^9": {"type": "array", "maxItems": 10**9, "minItems": 10**6},
        "2,000 properties": {"type": "object", "properties": wide},
        "2,000 properties, all required": {"type": "object", "properties": wide, "required": list(wide)},
        "depth 500": "DEEP",
        "catastrophic backtracking": {"type": "string", "pattern": "^(a+)+$"},
        "nested counts": {"type": "string", "pattern": "^((a{1,100}){1,100}){1,100}$"},
        "a reference doubled 30 times": {"$ref": "#/$defs/d0", **doubling},
        "alternatives multiplied 6^20": {"type": "object", "allOf": products},
        "40 branches of oneOf": {"oneOf": [{"required": [f"k{n}"]} for n in range(40)]},
        "not in not in not": {"not": {"not": {"not": {"anyOf": [{"required": [f"k{n}"]} for n in range(60)]}}}},
        "a reference to itself": {"$ref": "#/properties/value"},
        "mutual references": {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
        "300 patternProperties": {"patternProperties": {f"^k{n}.*x{n}": {} for n in range(300)}},
        "8 patternProperties that overlap": {"patternProperties": {f"{letter}.*{letter}": {} for letter in "abcdefgh"}},
        "multipleOf 10^8 + 7": {"type": "integer", "multipleOf": 10**8 + 7},
        "uniqueItems of 5,000": {"items": {"enum": list(range(5_000))}, "uniqueItems": True, "type": "array"},
        "5 MB of descriptions": {"type": "string", "description": "x" * 5_000_000},
        "5 MB of properties": {"properties": {f"property_{n}": {"type": "string"} for n in range(100_000)}},
        "a key of 2 MB": {"properties": {"k" * 2_000_000: {}}},
        "dependencies in a ring": {"dependentRequired": {f"k{n}": [f"k{(n + 1) % 200}"] for n in range(200)}},
        "unevaluated under 12 branches": {
            "anyOf": [{"properties": {f"k{n}": {}}} for n in range(12)], "unevaluatedProperties": False,
        },
    }  # fmt: skip
    for name, schema in schemas.items():
        whole = json.dumps({"type": "object", "properties": {"value": schema}, "required": ["value"]})
        if schema == "DEEP":  # too deep for Python's encoder
            deep = '{"type": "object", "required": ["a"], "properties": {"a": ' * 500 + "{}" + "}}" * 500
            whole = whole.replace('"DEEP"', deep)
        yield Case(name, whole, file="hostile")


def _moved_under_value(schema: Any, root: Any) -> Any:
    """A schema whose references into ``root`` (``#/...``) resolve after ``root`` became the property ``value``."""
    if isinstance(schema, list):
        return [_moved_under_value(item, root) for item in schema]
    if not isinstance(schema, dict):
        return schema
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/") and reference.split("/")[1] in root:
        schema = schema | {"$ref": f"#/properties/value{reference[1:]}"}
    return {key: _moved_under_value(item, root) for key, item in schema.items()}
