"""``constrained-k2 doctor`` on servers of Kimi K3: every check finds its fault, and none in a server that is right."""

import pytest

from constrained_k2.evaluation.doctor.examination import CHECKS
from tests.evaluation.fake_tags import TagFake
from tests.evaluation.test_doctor import check_finding, examined

OWN = [check.name for check in CHECKS if check.tags is not False]


def test_a_server_that_is_right() -> None:
    with TagFake() as fake:
        found = examined(fake)
    assert list(found) == OWN
    assert {name: finding for name, finding in found.items() if finding.verdict != "ok"} == {}
    assert "Kimi K3" in found["model"].seen


# The fault of the fake, the check that must find it, the verdict, and words of what is seen; "+" joins several faults.
FAULTS = [
    ("no /tokenize", "model", "cannot tell", "/tokenize"),
    ("old version", "version", "warning", "tested with 0.32"),
    ("no parser", "flags", "fault", "but not the parser"),
    ("no auto", "auto_tool_choice", "fault", "--enable-auto-tool-choice"),
    ("no generation prompt", "generation_prompt", "fault", "goes on as another role"),
    ("renames calls", "history", "fault", "'call tool=\"list_tables\" index=\"1\"' becomes 'call tool=\"tables\""),
    ("trims arguments", "history", "fault", "' <|close|>argument"),
    ("leaves arguments out", "history", "fault", "'<|open|>' becomes '<|close|>' after '<|open|>call tool"),
    ("one name of reasoning", "history", "fault", "'Two and two.' becomes '<|close|>' after '<|open|>think<|sep|>'"),
    ("results as sent", "history", "fault", "'2 tables' becomes 'booked' after '<|open|>message role=\"tool\""),
    ("does not pair", "results_paired", "fault", "an unknown id beside a known one"),
    ("injects", "special_tokens", "fault", "12 of 12 in user text"),
    ("no ids", "generation_prompt", "ok", "the prompt ends with"),
    ("runs on", "end_token", "fault", "answers go on after <|end_of_msg|>"),
    ("no ids", "end_token", "cannot tell", "return_token_ids"),
    ("strict taken", "strict_refused", "fault", "cannot be enforced"),
    ("opt-out refused", "opt_out", "fault", "is refused"),
    ("obeys the model", "required", "fault", "no call, but 'Blue scatters.'"),
    ("names another", "named", "fault", "not the named function"),
    ("free under auto", "auto", "fault", "are not part of a tag"),
    ("no ids", "auto", "cannot tell", "return_token_ids"),
    ("calls under none", "none", "fault", "hold calls"),
    ("leaks markers", "none", "fault", "hold markers"),
    ("many calls", "single", "fault", "more calls than the request allows: 3 of at most 1"),
    ("invalid arguments", "arguments", "fault", "400 is greater than the maximum"),
    ("special tokens in strings", "special_in_arguments", "fault", "[BOS] 20 times"),
    ("last part of names", "dotted_names", "fault", "is returned with the name 'send'"),
    ("repeats ids", "call_ids", "fault", "results cannot be paired"),
    ("reformats", "exact_arguments", "fault", "the model wrote"),
    ("loses calls", "exact_arguments", "fault", "the model wrote 3 calls, returned are 1"),
    ("spells tags", "exact_arguments", "fault", "text that spells tags in ordinary tokens is returned as a call"),
    ("hands over pieces", "cut_calls", "fault", "returned with the arguments"),
    ("streams other text", "stream_agrees", "fault", "content differs"),
    ("reasoning is content", "thinking", "fault", "the content holds the reasoning"),
    ("always reasons", "thinking", "fault", "thinking false, and the answer reasons"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("faults", "check", "verdict", "seen"), FAULTS, ids=[f"{f[0]}-{f[1]}" for f in FAULTS])
def test_every_fault_is_found(faults: str, check: str, verdict: str, seen: str) -> None:
    with TagFake(*faults.split("+")) as fake:
        check_finding(fake, check, verdict, seen)


def test_every_check_has_a_fault_that_it_finds() -> None:
    assert {check for _, check, verdict, _ in FAULTS if verdict != "cannot tell"} >= set(OWN) - {"model", "front_end"}


def test_remedies_name_the_flags_of_the_format() -> None:
    with TagFake("not installed", "reasoning is content", "free under auto") as fake:
        found = examined(fake, "flags", "thinking", "auto")
    flags = "--tool-call-parser kimi_constrained --reasoning-parser kimi_k3"
    assert flags in found["flags"].remedy and flags in found["auto"].remedy
    assert found["thinking"].remedy == "Start vLLM with --reasoning-parser kimi_k3"
    with TagFake("not installed", "rust", "special tokens in strings") as fake:
        remedy = examined(fake, "flags")["flags"].remedy
    assert "unset VLLM_USE_RUST_FRONTEND" in remedy and flags in remedy


@pytest.mark.slow
def test_garbage_is_a_finding() -> None:
    with TagFake("garbage chats") as fake:
        for _ in range(20):
            found = examined(fake)
            assert list(found) == OWN
            assert found["required"].verdict == "fault"
