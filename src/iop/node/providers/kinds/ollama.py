"""Ollama, by the OpenAI-compatible part of its API (``/v1``). What of its own API makes no output can be asked with a
command; what generates goes through the pool like everything else (EXEC-8). It tells which models it has running, not
how many requests."""

from __future__ import annotations

import msgspec

from iop.node.providers.kind import Adapter, Engine, Figures
from iop.node.providers.questions import listed

__all__ = ["ADAPTER"]

#: Questions only: nothing here loads, changes or runs a model.
API = {b"/api/tags": b"GET", b"/api/ps": b"GET", b"/api/version": b"GET", b"/api/show": b"POST"}


class _Running(msgspec.Struct):
    models: list[msgspec.Raw]


_DECODER = msgspec.json.Decoder(_Running)


def read(running: bytes) -> Figures | None:
    """The models in memory."""
    try:
        return Figures(len(_DECODER.decode(running).models))
    except (msgspec.DecodeError, RecursionError):
        return None


def _tagged(name: str) -> str:
    """A name without a tag is that of its latest."""
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


ADAPTER = Adapter(
    "ollama",
    questions=(listed(b"/api/ps", whole=False, same=_tagged), listed(b"/api/tags", same=_tagged)),
    same=_tagged,
    engine=Engine(b"/api/ps", read, counts_requests=False),
    api=API,
)
