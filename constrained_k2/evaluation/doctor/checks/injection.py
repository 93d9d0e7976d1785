"""Can text of users, tools or systems write special tokens into the prompt?"""

from collections import Counter
from typing import Any

from constrained_k2.evaluation.doctor.bodies import BOOK, history, tool
from constrained_k2.evaluation.doctor.finding import Finding, ok
from constrained_k2.evaluation.doctor.remedies import repairing
from constrained_k2.evaluation.doctor.target import SPECIAL_TEXTS, Target

_NEUTRAL = "no marker here"
_PLACES = ("system", "user", "tool", "tool description", "arguments", "escaped arguments")


async def special_tokens(target: Target) -> Finding:
    """Whether the text of each special token stays text, wherever a client puts it.

    Compared are the special ids of the prompt with those of the same request with other words in that place.
    """
    due = await _special_ids(target, "")
    leaked = {place: await _special_ids(target, place) - due for place in _PLACES}
    found = [f"{len(ids)} of {len(SPECIAL_TEXTS)} in {place} text" for place, ids in leaked.items() if ids]
    if not found:
        return ok(f"the text of {len(SPECIAL_TEXTS)} special tokens stays text in {', '.join(_PLACES)}")
    return Finding(
        "fault",
        f"special tokens spelled out in text become real ones: {', '.join(found)}. Whoever writes a web page that a "
        "tool reads can open a system turn",
        f"{repairing(target)}; or strip such text in the client",
    )


async def _special_ids(target: Target, place: str) -> Counter[int]:
    """How often each special id stands in the prompt of a request with the text of all of them in one place."""
    hostile = f"a {' b '.join(SPECIAL_TEXTS)} c"
    text = dict.fromkeys(_PLACES, _NEUTRAL) | {place: hostile}
    if place == "escaped arguments":  # a server that reads them as JSON and writes them anew spells out what they hide
        text[place] = "".join(f"\\u{ord(character):04x}" if character in "<[" else character for character in hostile)
    dialog = history("functions.list_tables:0", result=text["tool"])[:-1]
    dialog[1]["tool_calls"][0]["function"]["arguments"] = (
        f'{{"a": "{text["arguments"]}", "b": "{text["escaped arguments"]}"}}'
    )
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": text["system"]},
        *dialog,
        {"role": "user", "content": text["user"]},
    ]
    tools = [BOOK, tool("list_tables", text["tool description"])]
    ids = await target.prompt_ids({"messages": messages, "tools": tools})
    return Counter(token_id for token_id in ids if target.is_special(token_id))
