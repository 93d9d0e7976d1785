"""Copies sampled tokens to the host: vLLM's V2 model runner keeps them on the device only."""

import numpy as np
import numpy.typing as npt
import torch
from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext, LogitsProcRequestState


class TokenHistory:
    """The newest tokens of all slots, up to ``window`` a step and request, fetched once a step in one small copy."""

    def __init__(self, req_states: LogitsProcRequestState, window: int, *, pin: bool) -> None:
        slots, device = req_states.max_num_reqs, req_states.device
        self._states = req_states
        self._window = window
        self._pin = pin
        self._copy = HostCopy(device)
        self.wait = self._copy.wait  # until what fetch() fetches is on the host
        self._from_end = torch.arange(window, 0, -1, device=device)  # int64 [window]
        self._positions = torch.zeros((slots, window), dtype=torch.int64, device=device)
        self._on_device = torch.zeros(slots * (window + 1), dtype=torch.int32, device=device)
        self._tokens = self._on_device[: slots * window].view(slots, window)
        self._on_host = torch.zeros_like(self._on_device, device="cpu", pin_memory=pin)
        view = self._on_host.numpy()
        self._newest: npt.NDArray[np.int32] = view[: slots * window].reshape(slots, window)
        self._lengths: npt.NDArray[np.int32] = view[slots * window :]

    def fetch(self, *also: tuple[int, int, int]) -> list[torch.Tensor]:
        """Begin to fetch, after the work queued on the current stream so far.

        Returns int32 ``[n]`` on the host, filled when :meth:`wait` returns, for each stretch of ``also``: slot, first
        position, position after the last.
        """
        self._copy.before_overwriting()
        tokens, lengths = self._states.all_token_ids.gpu, self._states.total_len.gpu
        torch.sub(lengths.unsqueeze(1), self._from_end, out=self._positions)
        self._positions.clamp_(min=0)  # short histories, and slots that were never used
        torch.gather(tokens, 1, self._positions, out=self._tokens)
        self._on_device[self._tokens.numel() :].copy_(lengths)
        stretches = [torch.empty(end - start, dtype=torch.int32, pin_memory=self._pin) for _, start, end in also]
        sources = [tokens[slot, start:end] for slot, start, end in also]
        self._copy.start((self._on_device, self._on_host), *zip(sources, stretches, strict=True))
        return stretches

    def since(self, slot: int, position: int) -> list[int]:
        """The tokens of a slot, as of the last fetch, from a position on that counts from the start of the prompt."""
        length = int(self._lengths[slot])
        missing = length - position
        if missing <= self._window:
            newest: list[int] = self._newest[slot, self._window - missing :].tolist() if missing > 0 else []
            return newest
        # More than one step has passed without a look at this request. Never observed; correct all the same.
        older: list[int] = self._states.all_token_ids.gpu[slot, position:length].tolist()
        return older


class DraftRows:
    """The layout of a step with draft tokens: the host knows only the number of its rows."""

    def __init__(self, rows: int, device: torch.device, *, pin: bool) -> None:
        self._copy = HostCopy(device)
        self._on_device = torch.zeros(3 * rows, dtype=torch.int32, device=device)
        self._on_host = torch.zeros(3 * rows, dtype=torch.int32, pin_memory=pin)

    def start(self, ctx: LogitsContext) -> None:
        """Begin to fetch the layout. It is there when the step's forward pass is done."""
        rows = len(ctx.input_ids)
        self._copy.before_overwriting()
        for number, column in enumerate((ctx.expanded_idx_mapping, ctx.expanded_local_pos, ctx.input_ids)):
            self._on_device[number * rows : (number + 1) * rows].copy_(column)
        self._copy.start((self._on_device[: 3 * rows], self._on_host[: 3 * rows]))

    def wait(self, rows: int) -> npt.NDArray[np.int32]:
        """Wait for it: int32 ``[3, rows]``, each row's slot, offset among its request's rows, and token fed there."""
        self._copy.wait()
        layout: npt.NDArray[np.int32] = self._on_host.numpy()[: 3 * rows].reshape(3, rows)
        return layout


class HostCopy:
    """Copies tensors to the host; only :meth:`wait` waits, and only for what was before the copy in its stream.

    The model's stream may be given its next forward pass right after :meth:`start`: the copy does not wait for it.
    On a CPU everything has happened when :meth:`start` returns.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._done = torch.cuda.Event() if self._stream is not None else None

    def before_overwriting(self) -> None:
        """Make the current stream, not the host, wait until the last copy has read its source."""
        if self._done is not None:
            torch.cuda.current_stream().wait_event(self._done)

    def start(self, *copies: tuple[torch.Tensor, torch.Tensor]) -> None:
        """Begin copying each source, as the current stream will leave it, to the host: pinned memory does not block."""
        if self._stream is None or self._done is None:
            for source, location in copies:
                location.copy_(source)
            return
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for source, location in copies:
                location.copy_(source, non_blocking=True)
            self._done.record()

    def wait(self) -> None:
        """Wait until the destinations hold what was copied."""
        if self._done is not None:
            self._done.synchronize()
