"""Random arguments of public tools under the masks of Kimi K3, on the real vocabulary."""

import json
import random

import pytest

from constrained_k2 import Compiler
from tests.kit.compilers import validator_of
from tests.kit.data import mcp_servers
from tests.kit.grammars import takes_masked
from tests.kit.xtml import decode, encode, pieces
from tests.laws.feeding import Bench


@pytest.mark.slow
def test_random_arguments_are_valid_and_allowed_in_any_order(k3_real_compiler: Compiler) -> None:
    bench, shuffled = Bench(k3_real_compiler), 0
    vocabulary = bench.vocabulary
    for number, tool in enumerate(tool for server in mcp_servers() for tool in server):
        schema = tool["function"].get("parameters") or {"type": "object"}
        grammar = bench.engine.compile(json.dumps(schema | {"type": "object"}), "forbid", "xtml")
        matcher = grammar.matcher("schema")
        ids = bench.walk(matcher, random.Random(number), 20_000)
        assert matcher.is_complete(), vocabulary.decode(ids[-100:])
        arguments = decode(vocabulary, ids)
        if grammar.coverage.is_sound:
            validator_of(schema).validate(arguments)
        assert arguments.keys() >= set(schema.get("required", ())), arguments
        order = random.Random(number).sample(list(arguments), len(arguments))
        again = encode(vocabulary, pieces({key: arguments[key] for key in order}))
        assert takes_masked(grammar.matcher("schema"), vocabulary, again), arguments
        shuffled += len(order) > 1
    assert shuffled > 100
