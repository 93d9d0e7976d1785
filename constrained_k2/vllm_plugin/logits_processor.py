"""The logits processor for vLLM's V1 model runner."""

import logging
from typing import Any

import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

from constrained_k2.bitmask import TokenSet, words_per_row
from constrained_k2.compiler import Compiler
from constrained_k2.kernels import apply_token_bitmask, apply_token_set
from constrained_k2.matcher import ToolCallMatcher
from constrained_k2.phases import Phase
from constrained_k2.vllm_plugin.admission import check_params, settings_in, spec_in
from constrained_k2.vocabulary import Vocabulary

logger = logging.getLogger(__name__)


class _Request:
    """One row of the batch.

    Attributes:
        matcher: The turn's state; None once the request has failed: then only a stop is allowed, and what was written
            so far is parsed as cut off.
    """

    def __init__(self, matcher: ToolCallMatcher | None, output_ids: list[int]) -> None:
        self.matcher = matcher
        self._output_ids = output_ids  # vLLM's own list, growing as it samples
        self._seen = 0

    def catch_up(self) -> None:
        """Take the tokens that vLLM has sampled, or taken back, since the last time."""
        matcher, ids = self.matcher, self._output_ids
        if matcher is None:
            return
        try:
            if len(ids) < self._seen:
                matcher.rollback(max(0, matcher.num_tokens - len(ids)))
                self._seen = len(ids)
            while self._seen < len(ids) and ids[self._seen] >= 0:  # -1 stands for a token not known yet
                if not matcher.is_terminated() and not matcher.accept_tokens((ids[self._seen],)):
                    self.fail(f"token {ids[self._seen]} at {self._seen} is not in the grammar ({matcher.phase.name})")
                    return
                self._seen += 1
        except Exception as error:  # noqa: BLE001 - an error that leaves a logits processor ends the whole engine
            self.fail(repr(error))

    def fail(self, reason: str) -> None:
        """End this request, and no other one."""
        self.matcher = None
        logger.warning("constrained_k2: a request is ended early: %s", reason)


class KimiK2LogitsProcessor(LogitsProcessor):
    """Masks the rows of requests that carry a tool-call spec in ``SamplingParams.extra_args["constrained_k2"]``.

    Rows of other requests are neither read nor written. Rows outside a call are masked by constants that are resident
    on the device; only rows inside a call have a mask computed and copied.

    Raises:
        FormatMismatch: The served model's tokenizer is not Kimi K2's.
    """

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Refuse, before the engine sees it, a request that cannot be constrained; vLLM answers with HTTP 400.

        Raises:
            ValueError: With the message for the client.
        """
        check_params(sampling_params)

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:  # noqa: FBT001 - vLLM's
        model = vllm_config.model_config
        vocabulary = Vocabulary.from_pretrained(
            model.tokenizer,
            size=model.get_vocab_size(),
            revision=model.tokenizer_revision,
            trust=model.trust_remote_code,
        )
        settings = settings_in(vllm_config)
        self._compiler = Compiler(vocabulary, settings.engines[0], policy=settings.policy)
        self._think_begin = vocabulary.format.think_begin
        self._device = device
        self._requests: dict[int, _Request] = {}
        self._stop = TokenSet((vocabulary.format.turn_end,), vocabulary.size)
        shape = (vllm_config.scheduler_config.max_num_seqs, words_per_row(vocabulary.size))
        self._bitmask = torch.zeros(shape, dtype=torch.int32, pin_memory=is_pin_memory)  # [rows, words]
        self._resident: dict[TokenSet, torch.Tensor] = {}

    def is_argmax_invariant(self) -> bool:
        """A mask changes which token is likeliest."""
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Follow requests as they enter, leave and move in the batch."""
        process_dict_updates(self._requests, batch_update, self._new_request)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Mask the constrained rows in place.

        Args:
            logits: float32 ``[batch, width]`` on the model's device.
        """
        inside: list[int] = []  # rows whose mask is computed; row inside[i] is masked by bitmask row i
        for row, request in self._requests.items():
            request.catch_up()
            tokens = self._token_set(request, len(inside))
            if tokens is None:
                inside.append(row)
            else:
                apply_token_set(logits[row], tokens, self._ids_on_device(tokens))
        if inside:
            bitmask = self._bitmask[: len(inside)].to(self._device, non_blocking=True)
            apply_token_bitmask(logits, bitmask, inside)
        return logits

    def _token_set(self, request: _Request, bitmask_row: int) -> TokenSet | None:
        """The request's constant set; or None, and its mask is in that row of the bitmask."""
        matcher = request.matcher
        if matcher is not None:
            try:
                if matcher.phase not in (Phase.HEADER, Phase.ARGUMENTS):
                    return matcher.token_set()
                matcher.fill_bitmask(self._bitmask, bitmask_row)
            except Exception as error:  # noqa: BLE001 - as above
                request.fail(repr(error))
            else:
                return None
        return self._stop

    def _ids_on_device(self, tokens: TokenSet) -> torch.Tensor:
        """A constant set's ids, int64 ``[n]``, copied to the device once. There are a few sets a kind of request."""
        ids = self._resident.get(tokens)
        if ids is None:
            ids = self._resident[tokens] = torch.from_numpy(tokens.ids).to(self._device)
        return ids

    def _new_request(
        self, params: SamplingParams, prompt_ids: list[int] | None, output_ids: list[int]
    ) -> _Request | None:
        try:
            spec = spec_in(params.extra_args)
            if spec is None:
                return None
            in_reasoning = prompt_ids is not None and prompt_ids[-1:] == [self._think_begin]
            matcher = self._compiler.compile(spec, check=False).matcher(in_reasoning=in_reasoning)
        except Exception as error:  # noqa: BLE001 - as above
            request = _Request(None, output_ids)
            request.fail(repr(error))
            return request
        return _Request(matcher, output_ids)
