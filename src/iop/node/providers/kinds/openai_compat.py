"""Any server that speaks the OpenAI API over HTTP: the base of the other kinds."""

from __future__ import annotations

from iop.node.providers.kind import Adapter

__all__ = ["ADAPTER"]

ADAPTER = Adapter("openai_compat")
