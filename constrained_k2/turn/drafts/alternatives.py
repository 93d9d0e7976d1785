"""Lists the texts that may well come next, if the drafter's draft is only one of several."""

from constrained_k2.turn.cursors.json_cursor import JsonCursor, JsonPart
from constrained_k2.turn.drafts.guesses import beginning

_OPTIONS = 4  # options of a value

_AFTER_STRING = ('"', '",', '"}', '"]')
_BY_POSITION = {
    JsonPart.IN_STRING: _AFTER_STRING,
    JsonPart.IN_SCALAR: (",", "}", "]"),
    JsonPart.AFTER: (",", "}", "]"),
    JsonPart.FIRST_KEY: ('"', "}"),
    JsonPart.FIRST_ITEM: ("]",),
}


def alternatives(cursor: JsonCursor) -> list[str]:
    """Short texts that the next token is likely to begin with; empty if the position leaves too many."""
    if cursor.expect is JsonPart.VALUE:
        view = cursor.value
        blank = cursor.next_blanks(" ")
        if view.options:
            return [blank + option for option in view.options[:_OPTIONS]]
        if view.kind == "boolean":
            return [f"{blank}true", f"{blank}false"]
        return [blank + beginning(view)] if beginning(view) else []
    return list(_BY_POSITION.get(cursor.expect, ()))
