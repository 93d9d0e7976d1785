"""Drops calls in Kimi K2's format if the request has no tools, or forbids calls."""

from collections.abc import Iterable

from constrained_k2.formats.base import WireFormat


class UncalledFilter:
    """Drops the tokens of calls, from the first call's marker to the end of its section or turn; for Kimi K2's format.

    A call outside a section ends with its own marker. Markers outside calls are kept.
    """

    def __init__(self, markers: WireFormat) -> None:
        self._markers = markers
        self._in_section = self._in_call = False

    def keep(self, token_ids: Iterable[int]) -> list[int]:
        """The next tokens, without the tokens of calls."""
        return [token_id for token_id in token_ids if self._is_kept(token_id)]

    def _is_kept(self, token_id: int) -> bool:
        markers, was_in_call = self._markers, self._in_call
        if token_id == markers.call_begin:
            self._in_call = True
        elif token_id == markers.section_begin:
            self._in_section = True
        elif token_id == markers.section_end:
            self._in_section = self._in_call = False
        elif token_id == markers.call_end:
            self._in_call = was_in_call and self._in_section
        elif token_id == markers.think_end or token_id in markers.stop_ids:
            self._in_section = self._in_call = was_in_call = False
        return not (was_in_call or self._in_call)
