"""Everything that the tolerant level accepts beyond the format: one name each, recorded on the calls that needed it."""

from collections.abc import Mapping

BARE_ID = "bare_id"
BLANKS = "blanks"
IN_REASONING = "in_reasoning"
NO_SECTION = "no_section"
SPELLED_MARKERS = "spelled_markers"
CONTROL_CHARACTERS = "control_characters"
MISSING_BRACES = "missing_braces"
NO_ARGUMENTS = "no_arguments"
PYTHON_LITERALS = "python_literals"
SINGLE_QUOTES = "single_quotes"
TRAILING_COMMA = "trailing_comma"

LENIENCIES: Mapping[str, str] = {
    BARE_ID: "the id is NAME:INDEX, without 'functions.'",
    BLANKS: "blanks or newlines stand around the id, or between markers",
    IN_REASONING: "the call opens inside the reasoning, which it ends",
    NO_SECTION: "the call stands outside a tool-calls section: its marker is missing",
    SPELLED_MARKERS: "a marker is spelled out of ordinary tokens. Where the tools are known, only of a declared one; "
    "inside a JSON string it is text as ever",
    CONTROL_CHARACTERS: "raw newlines, tabs and the like inside a string of the arguments were escaped",
    MISSING_BRACES: "braces or brackets missing at the end of the arguments were added",
    NO_ARGUMENTS: "no arguments at all were read as {}",
    PYTHON_LITERALS: "True, False and None in the arguments were written as JSON has them",
    SINGLE_QUOTES: "strings in single quotes, without quotes or backslashes inside, were put in double ones",
    TRAILING_COMMA: "a comma before a closing brace or bracket of the arguments was dropped",
}
"""Name -> what was accepted. The repairs of arguments are made together, to a whole call only, and only where they turn
what is no JSON into a JSON object; arguments that are JSON are never touched."""
