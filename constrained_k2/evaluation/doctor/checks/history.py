"""Do the ids of earlier calls reach the model as ``functions.NAME:INDEX``?"""

from constrained_k2.evaluation.doctor.bodies import TOOLS, history
from constrained_k2.evaluation.doctor.finding import Finding, ok, shown
from constrained_k2.evaluation.doctor.prompts import Prompt, call_ids, result_ids
from constrained_k2.evaluation.doctor.remedies import NEWER_TEMPLATE, repairing
from constrained_k2.evaluation.doctor.target import Target

_RIGHT = ["functions.list_tables:0", "functions.list_tables:1"]
_FOREIGN = (
    ("call_8Qz1", "chatcmpl-tool-0a1b"),
    ("list_tables:0", "functions_list_tables_1"),
    ("functions.list_tables:0", "functions.list_tables:0"),
)


async def ids_kept(target: Target) -> Finding:
    """Whether ids that are right come through."""
    ids = await _rendered(target, (_RIGHT[0], _RIGHT[1]))
    if ids == (_RIGHT, _RIGHT):
        return ok("ids that are right reach the prompt as they are")
    return Finding("fault", f"ids that are right become {_shown(ids)}", NEWER_TEMPLATE)


async def ids_repaired(target: Target) -> Finding:
    """Whether ids of other origins are made right. Where not, the model cannot see which function was called."""
    for sent in _FOREIGN:
        ids = await _rendered(target, sent)
        if ids != (_RIGHT, _RIGHT):
            return Finding(
                "fault",
                f"the ids {', '.join(sent)} reach the model as {_shown(ids)}: they hide the function's name, and teach "
                "the model a wrong form",
                f"{repairing(target)}; or have the client send back the ids that it was given, "
                f"{' and '.join(_RIGHT)} here",
            )
    return ok("ids of other origins become functions.NAME:INDEX, for calls and results alike")


async def _rendered(target: Target, ids: tuple[str, str]) -> tuple[list[str], list[str]]:
    first, second = (history(call_id) for call_id in ids)
    messages = [*first[:-1], *second]
    return ids_in(await target.prompt({"messages": messages, "tools": TOOLS}))


def ids_in(prompt: Prompt) -> tuple[list[str], list[str]]:
    """The ids of the calls and of the results of a prompt."""
    return [call_id.strip() for call_id in call_ids(prompt)], result_ids(prompt)


def _shown(ids: tuple[list[str], list[str]]) -> str:
    calls, results = (", ".join(shown(call_id, 60) for call_id in part[:4]) or "nothing" for part in ids)
    return calls if calls == results else f"{calls} for the calls and {results} for the results"
