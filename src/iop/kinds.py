"""The kinds of providers: one row each, read by configurations, by nodes and by whoever looks for servers (EXEC-4).

A new kind is a row here and a file of its name in :mod:`iop.node.providers.kinds`, which says how its engine differs.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["KINDS", "OTHER", "SERVERS", "Kind", "Server"]


class Server(NamedTuple):
    """A product, where it listens as it comes. ``slug`` is its name in ids, ``owner`` what it calls the owner of its
    models in ``/v1/models`` (empty: nothing of its own), ``capacity`` how many requests at a time suit it."""

    label: str
    slug: str
    port: int
    kind: str
    capacity: int
    owner: str = ""


class Kind(NamedTuple):
    """``name`` is the word in configuration files. ``built_in``: the node itself is that server, so there is no base
    URL, and none is found."""

    name: str
    servers: tuple[Server, ...] = ()
    built_in: bool = False


KINDS = (
    Kind("ollama", (Server("Ollama", "ollama", 11434, "ollama", 4),)),
    Kind("vllm", (Server("vLLM", "vllm", 8000, "vllm", 32, "vllm"),)),
    Kind("sglang", (Server("SGLang", "sglang", 30000, "sglang", 32, "sglang"),)),
    Kind("llama_cpp", (Server("llama.cpp", "llama-cpp", 8080, "llama_cpp", 1, "llamacpp"),)),
    Kind("openai_compat", (Server("LM Studio", "lm-studio", 1234, "openai_compat", 4),)),
    Kind("echo", built_in=True),
)

#: In the order in which they are looked for.
SERVERS = tuple(server for kind in KINDS for server in kind.servers)
#: What else speaks the OpenAI API on a port.
OTHER = Server("OpenAI-compatible server", "server", 0, "openai_compat", 4)
