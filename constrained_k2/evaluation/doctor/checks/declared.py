"""Do tools reach the model in the form it was trained on?"""

from constrained_k2.evaluation.doctor.bodies import TRICKY, tool, user
from constrained_k2.evaluation.doctor.finding import Finding, ok, shown
from constrained_k2.evaluation.doctor.prompts import Prompt, declaration, has_old_headline, undue_keys
from constrained_k2.evaluation.doctor.remedies import NEWER_TEMPLATE, repairing
from constrained_k2.evaluation.doctor.target import Target


async def declared_tools(target: Target) -> Finding:
    """Whether keys for the server alone, such as ``strict``, stay out of the prompt."""
    tools = [tool("book_table", "Book a table.", TRICKY, strict=True)]
    finding = judge_declaration(await target.prompt({"messages": [user("Hello.")], "tools": tools}))
    if finding.verdict == "warning":
        return Finding("warning", finding.seen, f"{repairing(target)}; or leave such keys out in the client")
    return finding


def judge_declaration(prompt: Prompt) -> Finding:
    """The finding on one prompt of a request with tools."""
    declared = declaration(prompt)
    if declared is None:
        return Finding("fault", "the prompt declares no tools, though the request brings one", NEWER_TEMPLATE)
    if has_old_headline(declared):
        return Finding("fault", "tools are declared under a headline, '# Tools': an old chat template", NEWER_TEMPLATE)
    if keys := undue_keys(declared):
        names = ", ".join(shown(key, 40) for key in keys[:8])
        return Finding("warning", f"keys that Kimi was not trained on are declared to it: {names}")
    return ok("tools are declared by type, name, description and parameters alone")
