"""vLLM's OpenAI-compatible server. Its load is in its Prometheus metrics, one series per engine core."""

from __future__ import annotations

import re

from iop.node.adapters.openai_compat import Adapter, Engine, Figures

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


ADAPTER = Adapter("vllm", health_path="/health", engine=Engine(b"/metrics", read))
