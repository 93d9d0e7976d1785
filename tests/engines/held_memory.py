"""Measures what cached grammars hold, in a process of its own: ``python -m tests.engines.held_memory TOKENIZER``.

Writes one JSON object: kind of schema -> megabytes that the process has grown by, and megabytes that the caches count.
Nothing is dropped in between, so that no kind reuses what another one has freed.
"""

import gc
import json
import logging
import random
import string
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from constrained_k2 import KIMI_K2, Compiler, ConstrainedK2Error, Vocabulary, allocate_bitmask
from constrained_k2.compiler.shared import DEFAULT_OPTIONS, GrammarOptions
from constrained_k2.formats.kimi_k3 import KIMI_K3
from constrained_k2.vocabulary.bitmask import allowed_ids

_GRAMMARS = 8  # of each kind
_TOKENS = 40  # of a call with each
_GROWN = 12e6  # bytes after which a kind has shown enough


def _word(random_: random.Random, length: int = 4) -> str:
    return "".join(random_.choices(string.ascii_lowercase, k=length))


def _string(**keywords: Any) -> dict[str, Any]:
    return {"type": "string", **keywords}


def _around(random_: random.Random) -> str:
    return f"^{_word(random_)}.*{_word(random_)}$"


KINDS: dict[str, Callable[[random.Random], Any]] = {
    "free strings": lambda _: _string(),
    "lengths": lambda r: _string(minLength=r.randrange(9), maxLength=r.randrange(100, 5000)),
    "patterns": lambda r: _string(pattern=_around(r)),
    "counted patterns": lambda r: _string(pattern=f".*{_word(r, 1)}.{{{r.randrange(9, 20)}}}$"),
    "alternative patterns": lambda r: {"anyOf": [_string(pattern=_around(r)) for _ in range(20)]},
    "alternative counts": lambda r: {"anyOf": [_string(pattern=f".*{_word(r, 1)}.{{14}}$") for _ in range(4)]},
    "exclusive patterns": lambda r: {"oneOf": [_string(pattern=_around(r)) for _ in range(12)]},
    "negated patterns": lambda r: _string(**{"not": {"anyOf": [_string(pattern=_around(r)) for _ in range(6)]}}),
    "patterns beside lengths": lambda r: _string(pattern=_word(r), maxLength=r.randrange(100, 5000)),
    "formats": lambda r: _string(format=r.choice(("uri", "email", "date-time")), maxLength=r.randrange(50, 500)),
    "lists": lambda r: {"enum": [_word(r, 12) for _ in range(300)]},
    "ranges of integers": lambda r: {"type": "integer", "minimum": r.randrange(10**6), "maximum": 10**9},
    "ranges of numbers": lambda r: {"type": "number", "minimum": r.random(), "maximum": 1e6},
    "large multiples": lambda r: {"type": "integer", "multipleOf": r.randrange(5000, 9999)},
    "alternative multiples": lambda r: {
        "anyOf": [{"type": "integer", "multipleOf": r.randrange(9, 9999)} for _ in range(4)]
    },
    "members": lambda r: {"type": "object", "properties": {_word(r): _string() for _ in range(150)}},
    "keys with patterns": lambda r: {"type": "object", "patternProperties": {_around(r): {} for _ in range(6)}},
}


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def _counted(compiler: Compiler) -> int:
    return compiler.cached_bytes + compiler.engine("llguidance").cached_bytes


def _write_some(compiler: Compiler, schema: Any, options: GrammarOptions, random_: random.Random) -> None:
    """Compile a schema and begin a call, with the value's text as long as it goes on."""
    grammar = compiler.grammar(json.dumps(schema), "", options=options)
    matcher, row = grammar.matcher(""), allocate_bitmask(1, compiler.vocabulary.size)[0]
    seen = compiler.vocabulary.encode('{"a":')
    for count in range(_TOKENS):
        matcher.fill(row)
        allowed = [token for token in allowed_ids(row).tolist() if compiler.vocabulary.ordinary_bytes(token)]
        if count < len(seen) and options.encoding == "json":
            token = seen[count]
        else:
            choices = random_.choices(allowed, k=6) if allowed else []
            token = next((each for each in choices if b'"' not in compiler.vocabulary.ordinary_bytes(each)), -1)
        if token < 0 or not matcher.accept(token):
            break


def main(tokenizer: str) -> None:
    """Print the measurements for the real vocabulary, for one of bytes without masks, and for Kimi K3's encoding."""
    logging.disable(logging.WARNING)
    large: Any = {"cache_bytes": 1 << 32}
    compilers = {
        "": (Compiler(Vocabulary.from_pretrained(tokenizer), **large), DEFAULT_OPTIONS),
        " over bytes": (Compiler(Vocabulary.of_bytes(KIMI_K2), mask_cache_bytes=0, **large), DEFAULT_OPTIONS),
        " of Kimi K3": (Compiler(Vocabulary.of_bytes(KIMI_K3), **large), GrammarOptions(encoding="xtml")),
    }
    found: dict[str, tuple[float, float]] = {}
    for where, (compiler, options) in compilers.items():
        for kind, make in KINDS.items():
            random_ = random.Random(kind)
            held, counted = 0, 0
            for number in range(_GRAMMARS + 2):
                if number == 2:  # the first ones make what all grammars share
                    gc.collect()
                    held, counted = _resident(), _counted(compiler)
                schema = {"type": "object", "properties": {"a": make(random_)}, "required": ["a"]}
                try:
                    _write_some(compiler, schema, options, random_)
                except ConstrainedK2Error as error:
                    sys.stderr.write(f"{kind}{where}: {error}\n")
                if number > 3 and _resident() - held > _GROWN:
                    break
            gc.collect()
            found[kind + where] = (_resident() - held) / 1e6, (_counted(compiler) - counted) / 1e6
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
