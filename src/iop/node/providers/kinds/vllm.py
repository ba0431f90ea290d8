"""vLLM's OpenAI-compatible server. Its load is in its Prometheus metrics, one series per engine core. It is well if its
``/health`` says that the engine lives, and if it lists the target: a LoRA that was unloaded is not there any more."""

from __future__ import annotations

import re

from iop.node.providers.kind import Adapter, Engine, Figures
from iop.node.providers.questions import alive, models

__all__ = ["ADAPTER"]

_SERIES = re.compile(
    rb"^vllm:num_requests_(running|waiting)(?:\{[^\n]*\})? ([0-9.]{1,20}(?:e\+?[0-9]{1,2})?)\r?$", re.M
)


def read(metrics: bytes) -> Figures | None:
    """The sums over all cores of the server."""
    found: dict[bytes, int] = {}
    for name, value in _SERIES.findall(metrics):
        try:
            found[name] = found.get(name, 0) + int(float(value))
        except ValueError:
            return None
    return Figures(found[b"running"], found.get(b"waiting")) if b"running" in found else None


ADAPTER = Adapter(
    "vllm",
    questions=(alive(b"/health"), models()),
    engine=Engine(b"/metrics", read),
)
