"""What a node knows about each kind of provider, one file each (EXEC-4). Adding one is one file and a line here.

An adapter says how its engine differs from a plain OpenAI-compatible server: which paths it has, how it wants its
connections treated, where its health and its load are asked. The tunnel does the rest, alike for all.
"""

from __future__ import annotations

from iop.node.providers.kind import Adapter
from iop.node.providers.kinds import echo, llama_cpp, ollama, openai_compat, vllm

__all__ = ["ADAPTERS"]

ADAPTERS: dict[str, Adapter] = {
    a.kind: a for a in (openai_compat.ADAPTER, vllm.ADAPTER, llama_cpp.ADAPTER, ollama.ADAPTER, echo.ADAPTER)
}
