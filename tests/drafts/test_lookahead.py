"""Drafts after guessed outcomes of a step: legal after each, bounded, and right often enough to be worth it."""

import pytest

from constrained_k2 import Compiler
from constrained_k2.turn.drafts.drafter import Drafter
from constrained_k2.turn.drafts.lookahead import Guess, look_ahead
from constrained_k2.turn.matcher import ToolCallMatcher
from constrained_k2.vocabulary.bitmask import allocate_bitmask
from tests.drafts.test_drafter import spec, turn
from tests.walks import walk

LIMIT, MOST = 6, 4


def assert_guesses_are_legal(matcher: ToolCallMatcher, in_flight: list[int], guesses: list[Guess]) -> None:
    assert len(guesses) <= MOST and len({guess[:2] for guess in guesses}) == len(guesses)
    for guess in guesses:
        assert 0 < len(guess.drafts) <= LIMIT and guess.forced <= len(guess.drafts)
        ahead = matcher.fork()
        assert ahead.accept_tokens([*in_flight[: guess.added - 1], guess.last])
        assert list(guess.drafts[: guess.forced]) == ahead.forced_tokens(LIMIT)[: guess.forced]
        assert ahead.accept_tokens(guess.drafts)


@pytest.mark.parametrize("seed", range(8))
def test_guesses_are_legal_and_leave_no_trace(compiler: Compiler, seed: int) -> None:
    request = spec()
    written = walk(compiler.compile(request).matcher(), compiler.vocabulary, seed)
    matcher = compiler.compile(request).matcher()
    drafter = Drafter(matcher)
    before, after = (allocate_bitmask(1, matcher.vocabulary.size) for _ in range(2))
    for number, token_id in enumerate(written):
        matcher.fill_bitmask(before)
        in_flight = drafter.draft(number % 4)
        guesses = look_ahead(drafter, in_flight, LIMIT, MOST)
        matcher.fill_bitmask(after)
        assert (before == after).all() and matcher.num_tokens == number
        assert_guesses_are_legal(matcher, in_flight, guesses)
        assert matcher.accept_tokens([token_id])
    assert look_ahead(drafter, [], LIMIT, MOST) == []


def test_text_has_no_guesses_and_nothing_is_guessed_after_illegal_tokens(compiler: Compiler) -> None:
    matcher = compiler.compile(spec(tool_choice="auto")).matcher()
    assert matcher.accept_tokens(compiler.vocabulary.encode("Let me look"))
    assert look_ahead(Drafter(matcher), [], LIMIT, MOST) == []
    call_end = compiler.vocabulary.format.call_end
    guesses = look_ahead(Drafter(compiler.compile(spec()).matcher()), [call_end], LIMIT, MOST)
    assert guesses and all(guess.added == 1 for guess in guesses), "the step can only refuse its draft token"


def steps_of(matcher: ToolCallMatcher, ids: list[int], most: int) -> int:
    """The steps of a turn, each scheduled while the one before it is in flight."""
    drafter, position, steps = Drafter(matcher), 0, 0
    in_flight: list[int] = []
    while position < len(ids):
        guesses = look_ahead(drafter, in_flight, LIMIT, most)
        left = ids[position:]
        right = next((at for at, draft in enumerate(in_flight) if left[at : at + 1] != [draft]), len(in_flight))
        taken = left[: right + 1]
        assert matcher.accept_tokens(taken)
        position, steps = position + len(taken), steps + 1
        drafts = [guess.drafts for guess in guesses if guess[:2] == (len(taken), taken[-1])]
        in_flight = list(drafts[0]) if drafts else []
    return steps


def test_a_turn_takes_fewer_steps_and_more_guesses_help(compiler: Compiler) -> None:
    ids = turn(compiler.vocabulary)
    steps = [steps_of(compiler.compile(spec()).matcher(), ids, most) for most in (0, 1, MOST)]
    assert steps[0] == len(ids)
    assert steps[1] <= 0.55 * len(ids)
    assert steps[2] < steps[1]
