"""Does ``chat_template_kwargs.thinking`` do what it says?"""

from constrained_k2.evaluation.chat_answer import ChatAnswer
from constrained_k2.evaluation.doctor.bodies import user
from constrained_k2.evaluation.doctor.finding import Finding, ok, shown
from constrained_k2.evaluation.doctor.prompts import Prompt, opens_reasoning
from constrained_k2.evaluation.doctor.target import Target

_PARSER = "Start vLLM with --reasoning-parser kimi_k2"


async def thinking(target: Target) -> Finding:
    """One question with thinking on, and with thinking off."""
    prompts: dict[bool, Prompt] = {}
    answers: dict[bool, ChatAnswer] = {}
    for switch in (True, False):
        messages = {"messages": [user("What is 17 + 25?")], "chat_template_kwargs": {"thinking": switch}}
        prompts[switch] = await target.prompt(messages)
        (answers[switch], *_) = await target.chat(messages | {"max_tokens": 256, "temperature": 0.0})
        if problem := _problem(prompts[switch], answers[switch]):
            return Finding("fault", f"thinking {str(switch).lower()}: {problem}", _PARSER)
    if prompts[True] == prompts[False]:
        if answers[False].reasoning:
            seen = (
                "thinking false changes nothing: this checkpoint's template has no such switch, and the model reasons"
            )
            return Finding("warning", seen, "Use a checkpoint that can be switched (K2.5 and later), or K2-Instruct")
        return ok("the switch is taken; this checkpoint's template does not know it, and the model does not reason")
    if answers[False].reasoning:
        seen = f"thinking false, and the answer reasons: {shown(answers[False].reasoning, 60)!r}"
        return Finding("fault", seen, "Use the checkpoint's present chat template, and a vLLM of 0.32 or later")
    return ok("the switch changes the prompt, and reasoning comes apart from the content")


def _problem(prompt: Prompt, answer: ChatAnswer) -> str:
    """Whether reasoning came as content; empty if not."""
    opened = opens_reasoning(prompt)
    unended = answer.finish_reason == "length" and answer.content and not answer.reasoning
    if answer.content.lstrip().startswith("<think>") or (opened and ("</think>" in answer.content or unended)):
        return f"the content holds the reasoning: {shown(answer.content, 60)!r}"
    return ""
