"""A pretrained model and its EAGLE-3 head on real servers: sampled answers to public questions, several tokens a step."""

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import jsonschema
import pytest

from benchmarks.drafts.__main__ import arms
from constrained_k2 import Vocabulary
from constrained_k2.evaluation.ab.serving import ALL_CORES, CPU_FLAGS
from constrained_k2.evaluation.sample import Sample
from constrained_k2.evaluation.server import BACKEND_FLAGS, VllmServer
from scripts.smollm2.base import GGUF
from scripts.smollm2.checkpoint import write_checkpoint, write_shipped_head
from scripts.smollm2.questions import WHEEL, drawn_tests, questions
from tests.kit.answers import Seen
from tests.kit.data import fetched
from tests.vllm_plugin.asking import chat, expected

pytestmark = [pytest.mark.server, pytest.mark.only_all, pytest.mark.timeout(1800)]  # 98 MB of weights, some minutes

COUNT = 300


@pytest.fixture(scope="module", params=["EAGLE-3", "grammar and EAGLE-3"])
def server(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[VllmServer]:
    fetched(GGUF)
    directory = tmp_path_factory.mktemp("eagle")
    model = write_checkpoint(directory / "model")
    flags = (*BACKEND_FLAGS, *CPU_FLAGS, *arms(8, write_shipped_head(model))[request.param])
    with VllmServer(model, flags, log=directory / "server.log", environment=ALL_CORES) as running:
        yield running


def test_sampled_calls_are_valid_and_streams_parse_as_single_tokens_do(server: VllmServer) -> None:
    fetched(WHEEL)
    vocabulary = Vocabulary.from_pretrained(server.model)
    samples = drawn_tests(questions().tests, COUNT)

    def ask(given: tuple[int, Sample]) -> Seen:
        number, sample = given
        choice = "required" if sample.expected and number % 4 < 2 else "auto"
        body = {"messages": sample.body["messages"], "tools": sample.body["tools"], "tool_choice": choice, "seed": number,
                "temperature": 1.0, "max_tokens": 300, "return_token_ids": True}  # fmt: skip
        return chat(server, stream=number % 2 == 1, **body)

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(ask, enumerate(samples)))
    calls = 0
    pairs = Counter[tuple[int, int]]()  # tokens side by side in one event of a stream
    for number, (sample, seen) in enumerate(zip(samples, found, strict=True)):
        is_cut, stream = seen.reason == "length", number % 2 == 1
        reason, reasoning, content, made = expected(
            seen.ids, vocabulary, length=is_cut, stream=stream, tools=[*sample.tools]
        )
        content = content.partition("<|tool_call")[0]  # the server does not show the header of a declined call
        assert seen.shown == (reason, reasoning, content, made)
        for _, name, arguments in seen.calls[: -1 if is_cut and stream else None]:
            jsonschema.validate(json.loads(arguments), sample.tools[name] or {})
            calls += 1
        for delta in seen.deltas if stream else ():
            pairs.update(itertools.pairwise(delta))
    assert calls > COUNT / 2
    # An answer's first token comes from the prefill, without drafts: so section_begin mostly comes alone.
    assert pairs[vocabulary.format.call_end, vocabulary.format.section_end]
