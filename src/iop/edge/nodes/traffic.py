"""What has gone over the links with nodes, those that have ended included."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from iop._fast.mux import Mux

__all__ = ["Traffic"]

Sums = dict[tuple[str, ...], int]


class Traffic:
    """``live`` tells the multiplexers of the present links; one that ends is handed to :meth:`ended` once."""

    def __init__(self, live: Callable[[], Iterable[Mux]]) -> None:
        self._live = live
        self._late = self._frames_in = self._frames_out = self._bytes_in = self._bytes_out = 0

    def ended(self, mux: Mux) -> None:
        self._late += mux.late_frames
        self._frames_in += mux.frames_in
        self._frames_out += mux.frames_out
        self._bytes_in += mux.bytes_in
        self._bytes_out += mux.bytes_handed

    def bytes(self) -> Sums:
        muxes = list(self._live())
        return {
            ("in",): self._bytes_in + sum(mux.bytes_in for mux in muxes),
            ("out",): self._bytes_out + sum(mux.bytes_handed for mux in muxes),
        }

    def frames(self) -> Sums:
        muxes = list(self._live())
        return {
            ("in",): self._frames_in + sum(mux.frames_in for mux in muxes),
            ("out",): self._frames_out + sum(mux.frames_out for mux in muxes),
        }

    def late_frames(self) -> int:
        """For streams that had ended."""
        return self._late + sum(mux.late_frames for mux in self._live())
