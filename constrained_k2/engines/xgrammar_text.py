"""What xgrammar makes of a structural tag, without a vocabulary: whether it takes it, and its EBNF."""

import json
from typing import Any

import xgrammar

from constrained_k2.errors import UnsupportedSchema
from constrained_k2.schema.deep_stack import on_deep_stack


def check_schema(schema: Any, seconds: float) -> None:
    """Refuse a schema that xgrammar does not take.

    Raises:
        UnsupportedSchema: It does not.
        TimeoutError: It takes longer to say so.
    """
    try:
        on_deep_stack(lambda: xgrammar.Grammar.from_json_schema(json.dumps(schema)), seconds)
    except RuntimeError as error:
        raise UnsupportedSchema(
            f"no grammar can be built for this schema: {str(error).strip()[:300]}",
            "",
            "Remove or rewrite what is named, or leave the tool out",
            engine="xgrammar",
        ) from error


def ebnf(structural_tag: str, seconds: float) -> str:
    """The EBNF of a structural tag.

    Raises:
        TimeoutError: It takes too long.
    """
    return on_deep_stack(lambda: str(xgrammar.Grammar.from_structural_tag(structural_tag)), seconds)
