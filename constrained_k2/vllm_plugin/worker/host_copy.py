"""Copies tensors from the device to the host without blocking either."""

import torch


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
