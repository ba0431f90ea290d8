"""vLLM's OpenAI-compatible server. Its load is in its Prometheus metrics, one series per engine core. It is well if its
``/health`` says that the engine lives, and if it lists the target: a LoRA that was unloaded is not there any more."""

from __future__ import annotations

import re

from iop.node.providers.kind import Adapter, Engine, sums
from iop.node.providers.questions import alive, models

__all__ = ["ADAPTER"]

_SERIES = re.compile(
    rb"^vllm:num_requests_(running|waiting)(?:\{[^\n]*\})? ([0-9.]{1,20}(?:e\+?[0-9]{1,2})?)\r?$", re.M
)

ADAPTER = Adapter(
    "vllm",
    questions=(alive(b"/health"), models()),
    engine=Engine(b"/metrics", sums(_SERIES, b"running", b"waiting")),
)
