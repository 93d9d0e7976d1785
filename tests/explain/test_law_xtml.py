"""The same law in Kimi K3's arguments: bytes and markers."""

import json
import random

import pytest

from constrained_k2 import ConstrainedK2Error, ToolCallSpec
from constrained_k2.compiler.shared import GrammarOptions
from constrained_k2.explain.keywords import OTHER_CAUSES, UNKNOWN_KEY
from constrained_k2.explain.limits import ExplainLimits
from constrained_k2.explain.overrides import find_places
from constrained_k2.formats.kimi_k3 import KIMI_K3
from tests.explain.test_law import BYTES, composed, holders_of, policy_without, without
from tests.explain.test_places_xtml import CALL
from tests.explain.turns import byte_compiler, ids_of, tool
from tests.kit.xtml import encode, pieces

COMPILER = byte_compiler(KIMI_K3)
VOCABULARY = COMPILER.vocabulary
CLOSE = VOCABULARY.format.call_end


def allows(schema: object, symbols: list[int], symbol: int, policy: str) -> bool:
    try:
        options = GrammarOptions(undeclared_keys="allow" if policy == "allow" else "forbid", encoding="xtml")
        matcher = COMPILER.grammar(json.dumps(schema), "", options=options).matcher("")
        is_text = all(map(matcher.accept, symbols))
        ends = symbol == CLOSE and (not symbols or symbols[-1] == VOCABULARY.format.argument_begin)
        return is_text and (matcher.accept(symbol) or (ends and matcher.is_complete()))
    except ConstrainedK2Error:
        return False


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_random_compositions(seed: int) -> None:
    rng, tried = random.Random(seed), 0
    for _ in range(400):
        schema, instance = composed(rng)
        text = encode(VOCABULARY, pieces(instance, (",", ":")))
        cut, symbol = rng.randrange(2, len(text)), rng.choice([*BYTES, CLOSE, CLOSE, CLOSE])
        symbols = text[:cut]
        try:
            compiled = COMPILER.compile(ToolCallSpec.from_openai({"tools": [tool(schema)]}))
        except ConstrainedK2Error:
            continue
        if not allows(schema, symbols[:-1], symbols[-1], "forbid") or allows(schema, symbols, symbol, "forbid"):
            continue
        ids = [*ids_of(CALL, VOCABULARY), *symbols]
        limits = ExplainLimits(seconds=60.0, trials=256)
        (place,) = find_places(compiled, VOCABULARY, [*ids, 0], {len(ids): symbol}, limits=limits).values()
        keywords, what = place.keywords, (schema, symbols, symbol, place)
        assert keywords, what
        if keywords == (UNKNOWN_KEY,):
            assert allows(schema, symbols, symbol, "allow"), what
        elif keywords[0] in OTHER_CAUSES:
            assert not allows({"type": "object"}, symbols, symbol, "allow") or keywords == ("repeated key",), what
        else:
            some = [None, *((pointer,) for pointer in holders_of(schema, keywords))]
            policy = policy_without(keywords)
            assert any(allows(without(schema, keywords, only), symbols, symbol, policy) for only in some), what
            tried += 1
            if tried == 4:
                return
    raise AssertionError(f"{tried} symbols are forbidden by keywords")
