"""Likely next texts at positions where the drafter's guess is only one of several."""

from constrained_k2.turn.drafts.guesses import beginning
from constrained_k2.turn.drafts.json_tracker import Expect, JsonTracker

_OPTIONS = 4  # options of a value

_AFTER_STRING = ('"', '",', '"}', '"]')
_BY_POSITION = {
    Expect.IN_STRING: _AFTER_STRING,
    Expect.IN_SCALAR: (",", "}", "]"),
    Expect.AFTER: (",", "}", "]"),
    Expect.FIRST_KEY: ('"', "}"),
    Expect.FIRST_ITEM: ("]",),
}


def alternatives(tracker: JsonTracker) -> list[str]:
    """Short texts that the next token is likely to begin with; empty if the position leaves too many."""
    if tracker.expect is Expect.VALUE:
        view = tracker.value
        blank = tracker.next_blanks(" ")
        if view.options:
            return [blank + option for option in view.options[:_OPTIONS]]
        if view.kind == "boolean":
            return [f"{blank}true", f"{blank}false"]
        return [blank + beginning(view)] if beginning(view) else []
    return list(_BY_POSITION.get(tracker.expect, ()))
