"""Which path is which endpoint, and by which methods (API-1, API-2). One that providers serve is one line in
:data:`ROUTES`, one that the edge answers itself is one in :data:`PAGES`; both are described by ``/openapi.json``."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from enum import Enum

from iop.wire.messages import EventDialect

__all__ = [
    "MODELS",
    "MODEL_PREFIX",
    "PAGES",
    "RATES",
    "READ",
    "ROUTES",
    "STORY",
    "WRITE",
    "Endpoint",
    "Page",
    "Shape",
    "page_of",
    "raw",
]


class Shape(Enum):
    """Whose error objects and headers an endpoint speaks."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One endpoint that is tunnelled raw to providers that have it.

    ``name`` is the ``api`` label of logs and metrics; ``provider_path`` is relative to the provider's base URL, which
    ends where ``/v1`` does; ``dialect`` tells the node how to read its event streams (TUN-10). ``computes`` is false
    where a request may do more than compute its answer, so that it is never sent twice (API-8).
    """

    name: str
    path: bytes
    provider_path: bytes
    dialect: EventDialect
    shape: Shape
    summary: str = ""
    computes: bool = True


ROUTES: dict[bytes, Endpoint] = {
    e.path: e
    for e in (
        Endpoint("chat", b"/v1/chat/completions", b"/chat/completions", EventDialect.CHAT, Shape.OPENAI, "OpenAI chat"),
        Endpoint(
            "completions", b"/v1/completions", b"/completions", EventDialect.CHAT, Shape.OPENAI, "OpenAI completions"
        ),
        Endpoint(
            "responses", b"/v1/responses", b"/responses", EventDialect.RESPONSES, Shape.OPENAI, "OpenAI responses"
        ),
        Endpoint(
            "embeddings",
            b"/v1/embeddings",
            b"/embeddings",
            EventDialect.UNSPECIFIED,
            Shape.OPENAI,
            "OpenAI embeddings",
        ),
        Endpoint(
            "messages", b"/v1/messages", b"/messages", EventDialect.MESSAGES, Shape.ANTHROPIC, "Anthropic messages"
        ),
        Endpoint(
            "count_tokens",
            b"/v1/messages/count_tokens",
            b"/messages/count_tokens",
            EventDialect.UNSPECIFIED,
            Shape.ANTHROPIC,
            "Anthropic token count",
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Page:
    """What the edge answers itself, to GET and HEAD. ``keyless``: whoever reaches the listener may ask."""

    path: bytes
    summary: str
    keyless: bool = False


PAGES: dict[bytes, Page] = {
    p.path: p
    for p in (
        Page(b"/", "That there is an edge", keyless=True),
        Page(b"/healthz", "Alive", keyless=True),
        Page(b"/health", "Alive", keyless=True),
        Page(b"/readyz", "Ready for requests; 503 while draining", keyless=True),
        Page(b"/openapi.json", "This document"),
        Page(b"/v1/models", "The models, aliases included"),
    )
}
MODELS, MODEL_PREFIX = PAGES[b"/v1/models"], b"/v1/models/"
_MODEL = Page(b"/v1/models/{id}", "One model; its id may contain slashes")

#: Fields of answers that are the edge's own: what happened to a request, and what is left of its key's rates.
STORY = ("x-request-id", "x-iop-provider", "x-iop-attempts", "x-iop-queue-ms", "x-iop-provider-request-id")
RATES = tuple(f"x-ratelimit-{what}-{of}" for of in ("requests", "tokens") for what in ("limit", "remaining", "reset"))

#: Values of Allow.
READ, WRITE = "GET, HEAD, OPTIONS", "POST, OPTIONS"


def page_of(path: bytes) -> Page | None:
    """The page at a path; any path below ``/v1/models/`` is a model's."""
    page = PAGES.get(path)
    return _MODEL if page is None and path.startswith(MODEL_PREFIX) else page


# ---- whatever else a provider has ------------------------------------------------------------------------------------

MAX_PATH_BYTES = 256

#: Plain segments and nothing else: no escapes, no dots in front, no empty ones.
_RAW_PATH = re.compile(rb"/v1((?:/[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}){1,8})")

#: Words of paths that model servers have for those who run them, not for those who use them: adapters, weights and
#: caches (vLLM, SGLang, llama.cpp), models that are loaded, fetched and removed (TabbyAPI, text-generation-webui, LM
#: Studio, Lemonade, Xinference), processes and their settings (LocalAI, Cortex). Inference APIs have none of them.
ADMINISTRATION = frozenset(
    b"abort adapter adapters admin apply auth backend backends cache cluster clusters collective config configs "
    b"configure configuration debug delete download dumper engine engines evict flush freeze gc hardware init install "
    b"internal key keys kill load logging lora loras memory model models monitor offload password pause permission "
    b"permissions plugin plugins profile profiler props pull push quit register registrations release reload remove "
    b"reset restart resume rpc sampling scale session set settings shutdown sleep slot slots start stop swap template "
    b"templates terminate trace uninstall unload update upgrade user users wake weight weights worker workers".split()
)
_WORD = re.compile(rb"[A-Z]?[a-z]+|[A-Z]+")

#: Endpoints that compute an answer and leave nothing behind, as far as their APIs say.
_COMPUTING = frozenset(
    b"/audio/transcriptions /audio/translations /audio/speech /images/generations /images/edits /images/variations "
    b"/moderations /rerank /score /classify /pooling /tokenize /detokenize".split()
)


@functools.lru_cache(maxsize=256)
def raw(path: bytes, shape: Shape) -> Endpoint | None:
    """The endpoint of any other POST below ``/v1`` (API-1); None for a path that is no plain one, or that would
    administer a model server."""
    match = _RAW_PATH.fullmatch(path) if len(path) <= MAX_PATH_BYTES else None
    if match is None or not ADMINISTRATION.isdisjoint(word.lower() for word in _WORD.findall(match[1])):
        return None
    relative: bytes = match[1]
    return Endpoint("other", path, relative, EventDialect.UNSPECIFIED, shape, computes=relative in _COMPUTING)
