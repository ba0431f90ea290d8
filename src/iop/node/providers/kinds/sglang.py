"""SGLang's OpenAI-compatible server. Its load is in its Prometheus metrics if it was started with ``--enable-metrics``;
without them it cannot tell. It is well if its ``/health`` says that the engine makes tokens, and if it lists the
target: an adapter that was unloaded is not there any more."""

from __future__ import annotations

import re

from iop.node.providers.kind import Adapter, Engine, sums
from iop.node.providers.questions import alive, models

__all__ = ["ADAPTER"]

_SERIES = re.compile(rb"^sglang:num_(running|queue)_reqs(?:\{[^\n]*\})? ([0-9.]{1,20}(?:e\+?[0-9]{1,2})?)\r?$", re.M)

ADAPTER = Adapter(
    "sglang",
    questions=(alive(b"/health"), models()),
    engine=Engine(b"/metrics", sums(_SERIES, b"running", b"queue")),
)
