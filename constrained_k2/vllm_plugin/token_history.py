"""What vLLM's V2 model runner has sampled so far. It keeps that on the device only; here it comes to the host."""

import numpy as np
import numpy.typing as npt
import torch
from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext, LogitsProcRequestState

from constrained_k2.vllm_plugin.host_copy import HostCopy


class TokenHistory:
    """The newest committed tokens of all request slots, fetched once a step in one small copy.

    Args:
        req_states: The model runner's.
        window: How many tokens one step can commit for a request.
        pin: Whether host memory can be pinned.
    """

    def __init__(self, req_states: LogitsProcRequestState, window: int, *, pin: bool) -> None:
        slots, device = req_states.max_num_reqs, req_states.device
        self._states = req_states
        self._window = window
        self._pin = pin
        self._copy = HostCopy(device)
        self._from_end = torch.arange(window, 0, -1, device=device)  # int64 [window]
        self._positions = torch.zeros((slots, window), dtype=torch.int64, device=device)
        self._on_device = torch.zeros(slots * (window + 1), dtype=torch.int32, device=device)
        self._tokens = self._on_device[: slots * window].view(slots, window)
        self._on_host = torch.zeros_like(self._on_device, device="cpu", pin_memory=pin)
        view = self._on_host.numpy()
        self._newest: npt.NDArray[np.int32] = view[: slots * window].reshape(slots, window)
        self._lengths: npt.NDArray[np.int32] = view[slots * window :]

    def fetch(self, *also: tuple[int, int, int]) -> list[torch.Tensor]:
        """Begin to fetch, behind what the current stream has been given so far.

        Args:
            also: Stretches to fetch too: slot, first position, position behind the last.

        Returns:
            int32 ``[n]`` on the host for each of ``also``, filled when :meth:`wait` returns.
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

    def wait(self) -> None:
        """Wait until what :meth:`fetch` fetches is here."""
        self._copy.wait()

    def since(self, slot: int, position: int) -> list[int]:
        """The tokens of a slot from a position on, as of the last fetch.

        Args:
            slot: The request's slot.
            position: Counted from the start of the prompt.
        """
        length = int(self._lengths[slot])
        missing = length - position
        if missing <= self._window:
            newest: list[int] = self._newest[slot, self._window - missing :].tolist() if missing > 0 else []
            return newest
        # More than one step has passed without this request's being looked at: never seen, but right all the same.
        older: list[int] = self._states.all_token_ids.gpu[slot, position:length].tolist()
        return older


class DraftRows:
    """The layout of a step with draft tokens, of which the host knows only how many rows there are in all.

    Args:
        rows: How many rows one step may have.
        device: Where they lie.
        pin: Whether host memory can be pinned.
    """

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
        """Wait for it.

        Returns:
            int32 ``[3, rows]``: each row's request slot, its offset among the rows of its request, and the token fed
            there: a draft token where the offset is not 0.
        """
        self._copy.wait()
        layout: npt.NDArray[np.int32] = self._on_host.numpy()[: 3 * rows].reshape(3, rows)
        return layout
