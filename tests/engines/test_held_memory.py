"""The caches count what they hold, and what they drop is free at once."""

import gc
import json
import subprocess
import sys
from pathlib import Path
from weakref import ref

import pytest

from constrained_k2 import Compiler, Vocabulary
from constrained_k2.engines.llguidance.lexer_cost import spent_fuel
from constrained_k2.vocabulary.bitmask import allocate_bitmask

ROOT = Path(__file__).parents[2]
PATTERN = {"type": "object", "properties": {"a": {"type": "string", "pattern": ".*q.{12}$"}}, "required": ["a"]}
SLACK = 3.0  # megabytes: what the allocator keeps of one kind, and the shared objects that it is the first to need


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_each_kind_of_leaf_takes_what_it_counts(real_tokenizer: Path) -> None:
    command = [sys.executable, "-m", "tests.engines.held_memory", str(real_tokenizer)]
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
