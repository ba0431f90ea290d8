"""Where model servers usually listen, for whoever looks for some on its own machine."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["PLACES", "Place"]


class Place(NamedTuple):
    """A product on its usual port. ``kind`` is the adapter that speaks to it, ``slug`` its name in ids, ``capacity``
    how many requests at a time suit it as it comes."""

    name: str
    slug: str
    port: int
    kind: str
    capacity: int


PLACES = (
    Place("Ollama", "ollama", 11434, "ollama", 4),
    Place("vLLM", "vllm", 8000, "vllm", 32),
    Place("llama.cpp", "llama-cpp", 8080, "llama_cpp", 1),
    Place("LM Studio", "lm-studio", 1234, "openai_compat", 4),
)
