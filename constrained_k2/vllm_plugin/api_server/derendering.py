"""Parses answers that another process has generated: vLLM's ``/derender`` endpoints.

They receive the client's request without the changes that rendering made to it, and token ids without their text.
"""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from vllm.v1.engine.detokenizer import IncrementalDetokenizer

from constrained_k2.formats.base import WireFormat
from constrained_k2.vllm_plugin.api_server.functions import functions_of, set_default_choice
from constrained_k2.vllm_plugin.api_server.request_hook import ignore_stops, show_special_tokens
from constrained_k2.vllm_plugin.api_server.request_state import RequestState
from constrained_k2.vllm_plugin.api_server.stop_strings import TextTokens, stop_in_text
from constrained_k2.vllm_plugin.flags import XARGS_KEY
from constrained_k2.vllm_plugin.settings import OFF, ON
from constrained_k2.vllm_plugin.vocabularies import vocabulary_of


def follow_rendering(request: Any) -> RequestState:
    """Make the changes to a chat request, in place, that its rendering made and that the parser depends on."""
    state = RequestState.of(request)
    state.is_derendered = True
    state.hides_special_tokens = request.skip_special_tokens
    set_default_choice(request)
    if not request.tools:
        return state
    extra = dict(request.vllm_xargs or {})
    if functions_of(request):
        show_special_tokens(request)
    if extra.get(XARGS_KEY) == OFF:
        del extra[XARGS_KEY]
    else:
        extra.setdefault(XARGS_KEY, ON)
        if request.tool_choice not in ("auto", "none"):  # required, or one function
            ignore_stops(request)
    request.vllm_xargs = extra
    return state


class EngineText:
    """The text of one completion as a single server returns it: cut at a stop string, without the stop token.

    vLLM's derendering decodes all tokens, the stop token included.
    """

    def __init__(self, tokenizer: Any, request: Any, markers: WireFormat, prompt: Sequence[int]) -> None:
        # A chat request has the sampling parameters that a detokenizer reads, under the same names.
        asked = SimpleNamespace(request_id="", sampling_params=request, prompt_token_ids=[*prompt], prompt_embeds=None)
        detokenizer: Any = IncrementalDetokenizer
        self._detokenizer = detokenizer.from_new_request(tokenizer, asked)
        if request.stop and XARGS_KEY in (request.vllm_xargs or {}):
            stop_in_text(self._detokenizer, TextTokens(vocabulary_of(tokenizer), prompt))
        self._stops = {*(request.stop_token_ids or ()), *(() if request.ignore_eos else markers.stop_ids)}

    def take(self, token_ids: Sequence[int], *, finished: bool) -> str:
        """The text that the next tokens add."""
        stopped = finished and bool(token_ids) and token_ids[-1] in self._stops
        self._detokenizer.update(list(token_ids), stopped)
        text: str = self._detokenizer.get_next_output_text(finished, delta=True)
        return text
