"""Are calls handed over as the model wrote them?"""

from constrained_k2.evaluation.doctor.bodies import EAGER, chat
from constrained_k2.evaluation.doctor.connection import NotServed
from constrained_k2.evaluation.doctor.finding import Finding, ok, shown
from constrained_k2.evaluation.doctor.prompts import ARGUMENTS, CALL, CALL_END, between
from constrained_k2.evaluation.doctor.remedies import constraining
from constrained_k2.evaluation.doctor.target import Target

_SAMPLES = 4


async def exact_arguments(target: Target) -> Finding:
    """Ids and arguments, compared with the tokens that the server says the model wrote."""
    body = chat(EAGER, max_tokens=1024, temperature=1.0)
    compared = 0
    for seed in range(_SAMPLES):
        (answer, *_) = await target.chat(body | {"seed": seed})
        if answer.token_ids is None:
            raise NotServed("return_token_ids is not served, so that the model's own text is not seen")
        pieces = await target.pieces(answer.token_ids)
        ids, texts = between(pieces, CALL, ARGUMENTS), between(pieces, ARGUMENTS, CALL_END)
        if not texts and answer.calls:
            return Finding("cannot tell", "calls are not written in Kimi's format here", constraining(target))
        for (call_id, _, arguments), written_id, written in zip(answer.calls, ids, texts, strict=False):
            if arguments != written:
                seen = f"the model wrote {shown(written, 70)!r}, handed over is {shown(arguments, 70)!r}"
                return Finding("fault", seen, constraining(target))
            if call_id != written_id:
                seen = f"the model wrote the id {shown(written_id, 60)!r}, handed over is {shown(call_id, 60)!r}"
                return Finding("fault", seen, constraining(target))
            compared += 1
        if answer.finish_reason != "length" and len(answer.calls) != len(texts):
            seen = f"the model wrote {len(texts)} calls, handed over are {len(answer.calls)}"
            return Finding("fault", seen, constraining(target))
    if not compared:
        return Finding("cannot tell", f"no call came in {_SAMPLES} answers", constraining(target))
    return ok(f"{compared} calls are handed over as they were written, to the character")
