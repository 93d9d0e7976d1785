"""The source whose drafts have been better is the one whose drafts are run."""

from constrained_k2.vllm_plugin.engine_core.draft_scores import DraftScores


class Turn:
    pass


def test_the_better_source_is_found_and_found_again() -> None:
    scores, turn, written = DraftScores(), Turn(), [1]
    for right, wrong in (([5, 6], [5, 7]), ([5, 7], [5, 6])):  # the grammar is right, and then the model
        for _ in range(100):
            scores.compare(turn, written, model=wrong if right == [5, 6] else right, grammar=[5, 6])
            written += [*right, 9]
        assert scores.prefers_grammar is (right == [5, 6])
        assert list(scores.better([8], [9])) == ([9] if right == [5, 6] else [8])


def test_the_longer_drafts_win_where_neither_is_better() -> None:
    scores = DraftScores()
    assert scores.better([1], [2, 3]) == [2, 3]
    assert scores.better([1, 2], [3]) == [1, 2]
    assert scores.better([1], [2]) == [1]
    assert not scores.prefers_grammar


def test_drafts_that_go_on_further_are_not_compared() -> None:
    scores, turn = DraftScores(), Turn()
    scores.compare(turn, [1], [5, 6], [5])
    scores.compare(turn, [1, 5, 6], [], [7])
    scores.compare(turn, [1, 5, 6, 7], [8], [9])
    assert not scores.prefers_grammar
    scores.compare(turn, [1, 5, 6, 7, 9], [], [])
    assert scores.prefers_grammar
    assert scores.better([2, 3, 4], [2, 3]) == [2, 3, 4]
    assert scores.better([2, 4, 4], [2, 3]) == [2, 3]


def test_turns_are_forgotten_with_their_requests() -> None:
    scores = DraftScores()
    for _ in range(10):
        scores.compare(Turn(), [1], [5], [6])
    assert len(scores._latest) == 0
