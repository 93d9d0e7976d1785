"""``constrained-k2 doctor``: every check finds its fault, and finds none in a server that is right."""

import asyncio
import shlex

import pytest

from constrained_k2.evaluation.client import Client
from constrained_k2.evaluation.doctor.examination import CHECKS, examine
from constrained_k2.evaluation.doctor.findings import Finding
from constrained_k2.evaluation.doctor.target import open_target
from constrained_k2.evaluation.server import ADOPTED_FLAGS, VllmServer
from tests.cli.conftest import Run
from tests.evaluation.fake_server import Fake
from tests.evaluation.fake_tags import TagFake

NAMES: dict[type[Fake], list[str]] = {
    Fake: [check.name for check in CHECKS if not check.tags],
    TagFake: [check.name for check in CHECKS if check.tags is not False],
}
"""A server of Kimi K2 or Kimi K3 -> the checks of its format."""


def examined(server: Fake | VllmServer, *checks: str) -> dict[str, Finding]:
    """The findings of a server by check: of all checks, or of these alone."""

    async def everything() -> dict[str, Finding]:
        async with Client(server.url) as client:
            target = await open_target(client, None)
            return {result.check: result.finding async for result in examine(target, only=checks)}

    return asyncio.run(everything())


@pytest.mark.parametrize("kind", NAMES)
def test_a_server_that_is_right(kind: type[Fake]) -> None:
    with kind() as fake:
        found = examined(fake)
    assert list(found) == NAMES[kind]
    assert {name: finding for name, finding in found.items() if finding.verdict != "ok"} == {}
    assert ("Kimi K3" in found["model"].seen) is (kind is TagFake)


# The fault of the fake, the check that must find it, the verdict, and words of what is seen; "+" joins several faults.
BOTH = [
    ("no /tokenize", "model", "cannot tell", "/tokenize"),
    ("no parser", "flags", "fault", "but not the parser"),
    ("no auto", "auto_tool_choice", "fault", "--enable-auto-tool-choice"),
    ("no ids", "end_token", "cannot tell", "return_token_ids"),
    ("strict taken", "strict_refused", "fault", "cannot be enforced"),
    ("opt-out refused", "opt_out", "fault", "is refused"),
    ("names another", "named", "fault", "not the named function"),
    ("obeys the model", "required", "fault", "no call, but 'I would rather not.'"),
    ("calls under none", "none", "fault", "hold calls"),
    ("no ids", "auto", "cannot tell", "return_token_ids"),
    ("leaks markers", "none", "fault", "hold markers"),
    ("many calls", "single", "fault", "more calls than the request allows: 3 of at most 1"),
    ("invalid arguments", "arguments", "fault", "400 is greater than the maximum"),
    ("reformats", "exact_arguments", "fault", "the model wrote"),
    ("loses calls", "exact_arguments", "fault", "the model wrote 3 calls, returned are 1"),
    ("hands over pieces", "cut_calls", "fault", "returned with the arguments"),
    ("streams other text", "stream_agrees", "fault", "content differs"),
    ("reasoning is content", "thinking", "fault", "the content holds the reasoning"),
    ("always reasons", "thinking", "fault", "thinking false, and the answer reasons"),
]
KIMI_K2 = [
    ("old version", "version", "fault", "0.11.0"),
    ("new version", "version", "warning", "1.7.2"),
    ("no /version", "version", "cannot tell", "not served"),
    ("markers are text", "model", "cannot tell", "by /tokenize the vocabulary has no single special token for <|tool"),
    ("markers are text", "model", "cannot tell", "nor for <|open|>, <|close|>, <|sep|>, <|end_of_msg|>"),
    ("markers are text", "ids_kept", "cannot tell", "nor for <|open|>"),
    ("no /tokenize", "generation_prompt", "cannot tell", "/tokenize"),
    ("no /tokenize+no ids", "special_tokens", "cannot tell", "/tokenize"),
    ("no /detokenize", "content", "cannot tell", "/detokenize is not served"),
    ("not installed", "flags", "fault", "not on"),
    ("no route", "flags", "fault", "but no route"),
    ("no parser+no route", "flags", "fault", "neither its parser nor a route"),
    ("rust", "front_end", "ok", "Rust front end 0.32.0"),
    ("rust+no n+no /v1/messages", "front_end", "warning", "does not serve n > 1, POST /v1/messages"),
    ("rust", "flags", "ok", "Rust front end"),
    ("rust+special tokens in strings", "flags", "fault", "constrained_k2 is off"),
    ("rust+no ids", "flags", "cannot tell", "does not return what shows the masks"),
    ("no generation prompt", "generation_prompt", "fault", "goes on as the user"),
    ("no generation prompt+no ids", "generation_prompt", "fault", "goes on as the user"),
    ("prints lists", "content", "fault", "printed as a Python list"),
    ("prints None", "content", "fault", "content null becomes 'None'"),
    ("indents results", "tool_results", "fault", "indented"),
    ("hides ids", "ids_kept", "fault", "call_0, call_1 for the calls"),
    ("foreign ids", "ids_repaired", "fault", "call_8Qz1"),
    ("system injects", "special_tokens", "fault", "19 of 19 in system text"),
    ("user injects", "special_tokens", "fault", "19 of 19 in user text"),
    ("tool injects", "special_tokens", "fault", "19 of 19 in tool text"),
    ("description injects", "special_tokens", "fault", "19 of 19 in tool description text"),
    ("arguments injects", "special_tokens", "fault", "19 of 19 in arguments text"),
    ("escaped arguments injects", "special_tokens", "fault", "19 of 19 in escaped arguments text"),
    ("user injects+no ids", "special_tokens", "fault", "19 of 19 in user text"),
    ("declares strict", "declared_tools", "warning", "strict"),
    ("declares under a headline", "declared_tools", "fault", "# Tools"),
    ("declares nothing", "declared_tools", "fault", "declares no tools"),
    ("runs on", "end_token", "fault", "answers go on after <|im_end|>"),
    ("strict refused by another", "strict_refused", "warning", "No compatible backend"),
    ("not installed", "opt_out", "cannot tell", "not on"),
    ("obeys the model", "arguments", "fault", "4 of 8 answers are wrong"),
    ("obeys the model+one at a time", "required", "fault", "8 of 8"),
    ("undeclared names", "required", "fault", "a call of an undeclared function: 'cancel_table'"),
    ("free under auto", "auto", "fault", "8 of 8 tokens"),
    ("special tokens in strings", "special_in_arguments", "fault", "<|im_middle|> 9 times"),
    ("last part of names", "dotted_names", "fault", "'functions.mail.draft.send:0' is returned with the name 'send'"),
    ("obeys the model", "dotted_names", "cannot tell", "no call came"),
    ("no n", "required", "ok", "8 answers"),
    ("restarts indexes", "call_ids", "fault", "'functions.book_table:0', not 'functions.book_table:1'"),
    ("repeats ids", "call_ids", "fault", "'functions.list_tables:1', not 'functions.list_tables:2'"),
    ("renames ids", "exact_arguments", "fault", "returned is 'call_0'"),
    ("no ids", "exact_arguments", "cannot tell", "return_token_ids"),
    ("obeys the model+not installed", "cut_calls", "ok", ""),
    ("hands over pieces+claims to have ended", "cut_calls", "fault", "finish_reason is 'tool_calls'"),
    ("claims to have ended", "cut_calls", "fault", "the stream ends with finish_reason 'tool_calls'"),
    ("streams other calls", "stream_agrees", "fault", "the calls differ"),
    ("streams other calls+no ids", "stream_agrees", "fault", "the calls differ"),
    ("streams another finish", "stream_agrees", "fault", "finish_reason is 'tool_calls' whole and 'stop' streamed"),
    ("no done", "stream_agrees", "fault", "ends without"),
    ("always reasons+no switch", "thinking", "warning", "no such switch"),
    ("no switch", "thinking", "ok", "template ignores it"),
    ("many digits", "required", "fault", "arguments that are not a JSON object"),
    ("markers in names", "required", "fault", "an undeclared function"),
    ("no logit_bias", "required", "ok", "4 answers"),
    ("server error", "required", "fault", "answers 500"),
    ("not json", "required", "fault", "returned a body that is not JSON"),
]  # fmt: skip
KIMI_K3 = [
    ("old version", "version", "warning", "tested with 0.32"),
    ("no generation prompt", "generation_prompt", "fault", "goes on as another role"),
    ("renames calls", "history", "fault", '\'call tool="list_tables" index="1"\' becomes \'call tool="tables"'),
    ("trims arguments", "history", "fault", "' <|close|>argument"),
    ("leaves arguments out", "history", "fault", "'<|open|>' becomes '<|close|>' after '<|open|>call tool"),
    ("one name of reasoning", "history", "fault", "'Two and two.' becomes '<|close|>' after '<|open|>think<|sep|>'"),
    ("results as sent", "history", "fault", "'2 tables' becomes 'booked' after '<|open|>message role=\"tool\""),
    ("does not pair", "results_paired", "fault", "an unknown id beside a known one"),
    ("injects", "special_tokens", "fault", "12 of 12 in user text"),
    ("no ids", "generation_prompt", "ok", "the prompt ends with"),
    ("runs on", "end_token", "fault", "answers go on after <|end_of_msg|>"),
    ("free under auto", "auto", "fault", "are not part of a tag"),
    ("special tokens in strings", "special_in_arguments", "fault", "[BOS] 20 times"),
    ("last part of names", "dotted_names", "fault", "is returned with the name 'send'"),
    ("repeats ids", "call_ids", "fault", "results cannot be paired"),
    ("spells tags", "exact_arguments", "fault", "text that spells tags in ordinary tokens is returned as a call"),
]
FAULTS = [(Fake, *row) for row in BOTH + KIMI_K2] + [(TagFake, *row) for row in BOTH + KIMI_K3]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "faults", "check", "verdict", "seen"), FAULTS, ids=[f"{f[0].__name__}-{f[1]}-{f[2]}" for f in FAULTS]
)
def test_every_fault_is_found(kind: type[Fake], faults: str, check: str, verdict: str, seen: str) -> None:
    with kind(*faults.split("+")) as fake:
        finding = examined(fake, check)[check]
    assert finding.verdict == verdict, finding
    assert seen in finding.seen, finding
    assert verdict == "ok" or finding.remedy or check == "opt_out"
    assert "\x1b" not in finding.seen


def test_every_remedy_behind_the_rust_front_end_is_one_that_it_knows() -> None:
    """Its flags where a mask is missing; vLLM's Python where an answer or a prompt is wrong; our parser is refused."""
    others = ("last part of names", "hands over pieces", "foreign ids", "streams other text")
    with Fake("rust", "no parser", "special tokens in strings", *others) as fake:
        found = examined(fake)
    faults = {name: finding.remedy for name, finding in found.items() if finding.verdict == "fault"}
    for name in ("flags", "special_in_arguments"):
        assert shlex.join(ADOPTED_FLAGS) in faults.pop(name), name
    assert faults.keys() >= {"dotted_names", "cut_calls", "ids_repaired", "stream_agrees"}
    for name, remedy in faults.items():
        assert "unset VLLM_USE_RUST_FRONTEND" in remedy, name


def test_remedies_name_the_flags_of_the_format() -> None:
    with TagFake("not installed", "reasoning is content", "free under auto") as fake:
        found = examined(fake, "flags", "thinking", "auto")
    flags = "--tool-call-parser kimi_constrained --reasoning-parser kimi_k3"
    assert flags in found["flags"].remedy and flags in found["auto"].remedy
    assert found["thinking"].remedy == "Start vLLM with --reasoning-parser kimi_k3"
    with TagFake("not installed", "rust", "special tokens in strings") as fake:
        remedy = examined(fake, "flags")["flags"].remedy
    assert "unset VLLM_USE_RUST_FRONTEND" in remedy and flags in remedy


def test_every_check_has_a_fault_that_it_finds() -> None:
    found = {(kind, check) for kind, _, check, verdict, _ in FAULTS if verdict == "fault"}
    # See test_another_model_than_the_server_has; the front end only warns, and so does the version for Kimi K3.
    due = {(kind, name) for kind, names in NAMES.items() for name in names if name not in {"model", "front_end"}}
    assert due - found == {(TagFake, "version")}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "fault"), [(Fake, "garbage"), (TagFake, "garbage chats")])
def test_garbage_is_a_finding(kind: type[Fake], fault: str) -> None:
    with kind(fault) as fake:
        for _ in range(20):
            found = examined(fake)
            assert list(found) == NAMES[kind]
            assert found["required"].verdict == "fault"


def test_ids_that_would_cost_a_request_each(monkeypatch: pytest.MonkeyPatch) -> None:
    with Fake() as fake:
        monkeypatch.setattr(fake, "prompt", lambda _: [97, 163_586] * 5_000)
        assert "10000 token ids" in examined(fake, "generation_prompt")["generation_prompt"].seen


def test_as_a_person_uses_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    with Fake() as fake:
        said = run("doctor", fake.url)
    assert said.code == 0
    assert f"{len(NAMES[Fake])} ok  0 warning  0 fault  0 cannot tell" in said.out
    with Fake("no generation prompt", "indents results") as fake:
        said = run("doctor", f"{fake.url}/v1/", "--quick")
    assert said.code == 1 and "2 fault" in said.out and "tool_choice required" not in said.out
    assert "generation prompt, tool results\n" in said.out and said.out.count("94a4053") == 1  # a remedy once


@pytest.mark.parametrize(
    ("fault", "options", "code", "finding"),
    [
        ("old version", [], 1, ("version", "fault", "Upgrade vLLM")),
        ("new version", [], 0, ("version", "warning", "Install vllm>=0.32,<0.34")),
        ("", ["--model", "kimi-k3"], 1, ("model", "fault", "Name one with --model")),
    ],
)
def test_as_a_script_uses_it(fault: str, options: list[str], code: int, finding: tuple[str, ...], run: Run) -> None:
    with Fake(fault) as fake:
        said = run("doctor", fake.url, "--json", "--quick", *options)
    assert said.code == code
    assert finding in [(each["check"], each["verdict"], each["remedy"]) for each in said.json["findings"]]
    assert said.json["counts"][finding[1]] >= 1


@pytest.mark.parametrize(
    ("key", "options", "code", "words"),
    [
        ("sesame", ["--api-key-env", "SOME_KEY"], 0, ""),
        ("sesame", [], 2, "401"),
        ("sesame", [], 2, "--api-key-env"),
        ("sesame", ["--api-key-env", "NO_SUCH_KEY"], 2, "NO_SUCH_KEY"),
        ("sesame\n", ["--api-key-env", "SOME_KEY"], 2, "a header cannot hold"),
        ("sésame", ["--api-key-env", "SOME_KEY"], 2, "a header cannot hold"),
    ],
)
def test_api_keys(
    key: str, options: list[str], code: int, words: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_KEY", key)
    with Fake(key="sesame") as fake:
        said = run("doctor", fake.url, "--quick", *options)
    assert said.code == code and words in said.err
    assert "same" not in said.out + said.err


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:9", "localhost:8000", "ftp://a", "http://", "http://[", "", "http://a:b"]
)
def test_addresses_without_a_server(url: str, run: Run) -> None:
    said = run("doctor", url)
    assert said.code == 2 and said.err.startswith("constrained-k2: ")


@pytest.mark.parametrize("fault", ["no models", "no /v1/models"])
def test_servers_of_something_else(fault: str, run: Run) -> None:
    with Fake(fault) as fake:
        said = run("doctor", fake.url)
    assert said.code == 2 and "OpenAI-compatible" in said.err
