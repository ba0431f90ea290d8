"""llama.cpp's server. It closes 5 to 36 % of kept connections right after a streamed answer and none after 50 ms, so
the rest after a stream is not optional here (TUN-5). Its load is its list of slots, unless it was started without.

It goes on with a request whose client has left before the first token, or did not ask for a stream; and it looks for
clients that have left between other work, so that a server that is asked for its slots all the time does not find out
(TUN-5d).
"""

from __future__ import annotations

import msgspec

from iop.node.providers.kind import Adapter, Capacity, Engine, Figures
from iop.node.providers.questions import Listing, Question, Said, alive

__all__ = ["ADAPTER"]


class _Slot(msgspec.Struct):
    """What is read of a slot: some versions put the prompt beside it, which is skipped and never becomes an object."""

    is_processing: bool = False
    state: int = 0  # of versions before is_processing: 1 while it works


_DECODER = msgspec.json.Decoder(list[_Slot])


MOST_SLOTS = 1024


class _Props(msgspec.Struct):
    total_slots: int


_PROPS = msgspec.json.Decoder(_Props)


def read(slots: bytes) -> Figures | None:
    """The slots at work."""
    try:
        return Figures(sum(slot.is_processing or slot.state == 1 for slot in _DECODER.decode(slots)))
    except (msgspec.DecodeError, RecursionError):
        return None


def _capacity(props: bytes) -> int | None:
    """How many slots the server has."""
    try:
        slots = _PROPS.decode(props).total_slots
    except (msgspec.DecodeError, RecursionError):
        return None
    return min(slots, MOST_SLOTS) if slots > 0 else None


def _slots(status: int, body: bytes | None, target: str, listing: Listing) -> Said:
    """Whether the loop that makes tokens works: this loop answers ``/slots``, and another thread answers ``/health``.

    Any status but 5xx is good. 501 is good too: the server was started without the list. The target is not looked for,
    because the server takes any model's name.
    """
    return Said.FAILING if status >= 500 and status != 501 else Said.WELL


ADAPTER = Adapter(
    "llama_cpp",
    questions=(alive(b"/health"), Question(b"/slots", _slots)),
    engine=Engine(b"/slots", read, rest_s=2.0),
    works_on=True,
    capacity=Capacity(b"/props", _capacity),
    any_name=True,
)
