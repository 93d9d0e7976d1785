"""The caches count what they hold, and what they drop is free at once.

``python -m tests.engines.test_held_memory TOKENIZER`` writes one JSON object: kind of schema -> megabytes that the process has
grown by, and megabytes that the caches count. Nothing is dropped in between, so that no kind reuses what another one has freed.
"""

import gc
import json
import logging
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from weakref import ref

import pytest

from constrained_k2 import KIMI_K2, Compiler, ConstrainedK2Error, Vocabulary, allocate_bitmask
from constrained_k2.compiler.shared import DEFAULT_OPTIONS, GrammarOptions
from constrained_k2.engines.llguidance.lexer_cost import spent_fuel
from constrained_k2.formats.kimi_k3 import KIMI_K3
from constrained_k2.vocabulary.bitmask import allowed_ids
from tests.engines.test_step_cost import HOSTILE, around, text, word

ROOT = Path(__file__).parents[2]
GRAMMARS = 8  # of each kind
TOKENS = 40  # of a call with each
GROWN = 12e6  # bytes after which a kind has shown enough
HOSTILE_KINDS = (
    "10 exclusive patterns", "8 forbidden patterns", "60 alternative patterns", "200 members", "keys with patterns",
)  # fmt: skip
KINDS: dict[str, Callable[[random.Random], Any]] = {kind: HOSTILE[kind] for kind in HOSTILE_KINDS} | {
    "free strings": lambda _: text(),
    "lengths": lambda r: text(minLength=r.randrange(9), maxLength=r.randrange(100, 5000)),
    "patterns": lambda r: text(around(r)),
    "counted patterns": lambda r: text(f".*{word(r, 1)}.{{{r.randrange(9, 20)}}}$"),
    "alternative counts": lambda r: {"anyOf": [text(f".*{word(r, 1)}.{{14}}$") for _ in range(4)]},
    "patterns beside lengths": lambda r: text(word(r, 4), maxLength=r.randrange(100, 5000)),
    "formats": lambda r: text(format=r.choice(("uri", "email", "date-time")), maxLength=r.randrange(50, 500)),
    "lists": lambda r: {"enum": [word(r, 12) for _ in range(300)]},
    "ranges of integers": lambda r: {"type": "integer", "minimum": r.randrange(10**6), "maximum": 10**9},
    "ranges of numbers": lambda r: {"type": "number", "minimum": r.random(), "maximum": 1e6},
    "large multiples": lambda r: {"type": "integer", "multipleOf": r.randrange(5000, 9999)},
    "alternative multiples": lambda r: {
        "anyOf": [{"type": "integer", "multipleOf": r.randrange(9, 9999)} for _ in range(4)]
    },
}
PATTERN = {"type": "object", "properties": {"a": {"type": "string", "pattern": ".*q.{12}$"}}, "required": ["a"]}
SLACK = 3.0  # megabytes: what the allocator keeps of one kind, and the shared objects that it is the first to need


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def counted_by(compiler: Compiler) -> int:
    return compiler.cached_bytes + compiler.engine("llguidance").cached_bytes


def write_some(compiler: Compiler, schema: Any, options: GrammarOptions, random_: random.Random) -> None:
    """Compile a schema and begin a call, with the value's text as long as it goes on."""
    grammar = compiler.grammar(json.dumps(schema), "", options=options)
    matcher, row = grammar.matcher(""), allocate_bitmask(1, compiler.vocabulary.size)[0]
    seen = compiler.vocabulary.encode('{"a":')
    for count in range(TOKENS):
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
            for number in range(GRAMMARS + 2):
                if number == 2:  # the first ones make what all grammars share
                    gc.collect()
                    held, counted = resident(), counted_by(compiler)
                schema = {"type": "object", "properties": {"a": make(random_)}, "required": ["a"]}
                try:
                    write_some(compiler, schema, options, random_)
                except ConstrainedK2Error as error:
                    sys.stderr.write(f"{kind}{where}: {error}\n")
                if number > 3 and resident() - held > GROWN:
                    break
            gc.collect()
            found[kind + where] = (resident() - held) / 1e6, (counted_by(compiler) - counted) / 1e6
    json.dump(found, sys.stdout)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_each_kind_of_leaf_takes_what_it_counts(real_tokenizer: Path) -> None:
    command = [sys.executable, "-m", "tests.engines.test_held_memory", str(real_tokenizer)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True)
    measured: dict[str, tuple[float, float]] = json.loads(done.stdout)
    assert len(measured) > 40 and sum(counted for _, counted in measured.values()) > 200
    over = {kind: pair for kind, pair in measured.items() if pair[0] > 2 * pair[1] + SLACK}
    assert not over
    held, counted = map(sum, zip(*measured.values(), strict=True))
    assert held < 2 * counted


def test_a_lexer_is_counted_again_as_it_grows(real_vocabulary: Vocabulary) -> None:
    compiler = Compiler(real_vocabulary, mask_cache_bytes=0)
    grammar = compiler.grammar(json.dumps(PATTERN), "")
    before, row = compiler.cached_bytes, allocate_bitmask(1, real_vocabulary.size)[0]
    matcher = grammar.matcher("")
    assert all(map(matcher.accept, real_vocabulary.encode('{"a":"')))
    for token_id in real_vocabulary.encode("quite a few questions quickly asked, in quest of many quirky states" * 3):
        matcher.fill(row)
        assert matcher.accept(token_id)
    assert compiler.cached_bytes > before + 150_000
    compiler.forget()
    assert compiler.cached_bytes == 0
    for _ in range(40):
        matcher.fill(row)
        assert matcher.accept(int(real_vocabulary.encode(" more")[0]))
    assert compiler.cached_bytes == 0


@pytest.mark.slow
def test_what_no_cache_holds_is_free(real_vocabulary: Vocabulary) -> None:
    compiler = Compiler(real_vocabulary)
    grammar = compiler.grammar(json.dumps(PATTERN), "")
    matcher = grammar.matcher("", may_relax=True)
    assert all(map(matcher.accept, real_vocabulary.encode('{"a":"q')))
    reference = ref(grammar)
    gc.disable()
    try:
        compiler.forget()
        del grammar, matcher
        assert reference() is None
    finally:
        gc.enable()


def test_the_fuel_of_a_lexer_is_read_without_a_change(real_vocabulary: Vocabulary) -> None:
    grammar = Compiler(real_vocabulary, mask_cache_bytes=0).grammar(json.dumps(PATTERN), "")
    matcher = grammar.copy()  # type: ignore[attr-defined]
    fuel = spent_fuel(matcher)
    assert fuel > 1000 and spent_fuel(matcher) == fuel
    assert not matcher.is_error() and matcher.try_consume_tokens(real_vocabulary.encode('{"a":"qq')) > 0
    matcher.compute_bitmask()
    assert spent_fuel(matcher) > fuel


if __name__ == "__main__":
    main(sys.argv[1])
