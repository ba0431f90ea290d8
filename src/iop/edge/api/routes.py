"""Which path is which endpoint, and by which methods (API-1, API-2, API-6b). One that providers serve is one line in
:data:`ROUTES` or a word in :data:`OTHERS`, one that the edge answers itself is one in :data:`PAGES`; all are described
by ``/openapi.json``. Nothing else is there: model servers mix inference with administration under one prefix."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType

from iop.wire.messages import EventDialect

__all__ = [
    "MODELS",
    "MODEL_PREFIX",
    "OLLAMA_PREFIX",
    "OTHERS",
    "PAGES",
    "RATES",
    "READ",
    "ROUTES",
    "STORY",
    "WRITE",
    "Endpoint",
    "Page",
    "Shape",
    "endpoints",
    "let_through",
    "not_there",
    "page_of",
    "shaped",
    "spellings",
]


class Shape(Enum):
    """Whose error objects and headers an endpoint speaks."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    OLLAMA = "ollama"


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


# ---- whatever else a provider has ------------------------------------------------------------------------------------

_OTHER = (
    b"audio/speech audio/transcriptions audio/translations images/generations images/edits images/variations rerank "
    b"score classify pooling moderations tokenize detokenize".split()
)


@functools.lru_cache(maxsize=64)
def _other(path: bytes, computes: bool) -> Endpoint:
    return Endpoint("other", path, path[3:], EventDialect.UNSPECIFIED, Shape.OPENAI, computes=computes)


@functools.lru_cache(maxsize=256)
def _shaped(path: bytes, computes: bool, shape: Shape) -> Endpoint:
    return replace(_other(path, computes), shape=shape)


def shaped(endpoint: Endpoint, shape: Shape) -> Endpoint:
    """Return the endpoint, which is one of these, with the error objects of ``shape``."""
    return endpoint if endpoint.shape is shape else _shaped(endpoint.path, endpoint.computes, shape)


#: Endpoints that compute an answer and leave nothing behind, as far as their APIs say.
OTHERS: dict[bytes, Endpoint] = {path: _other(path, True) for path in (b"/v1/" + name for name in _OTHER)}


def let_through(more_paths: Iterable[str]) -> list[Endpoint]:
    """The endpoints at these paths, which the owner lets through, without those that are known anyway."""
    paths = [path.encode() for path in more_paths]
    return [_other(path, False) for path in paths if path not in ROUTES and path not in OTHERS]


@functools.lru_cache(maxsize=8)
def endpoints(more_paths: tuple[str, ...] = ()) -> Mapping[bytes, Endpoint]:
    """Every path that goes to a provider, in every spelling that is served (API-6b): the known ones, and those that the
    owner lets through, exactly as they are written there."""
    found = {endpoint.path: endpoint for endpoint in let_through(more_paths)}
    for path, endpoint in (OTHERS | ROUTES).items():
        found |= dict.fromkeys((path, *spellings(path)), endpoint)
    return MappingProxyType(found)


def spellings(path: bytes) -> tuple[bytes, bytes, bytes]:
    """The other spellings of a known path below ``/v1`` that are served as it: base URLs have a slash too many, or no
    ``/v1``. Whoever filters paths in front of an edge has to filter all four."""
    return b"/" + path, path + b"/", path[3:]


_MODELS_SPELLED = frozenset(spellings(MODELS.path))


def page_of(path: bytes) -> Page | None:
    """The page at a path; any path below ``/v1/models/`` is a model's."""
    page = PAGES.get(path)
    if page is None and path in _MODELS_SPELLED:
        return MODELS
    return _MODEL if page is None and path.startswith(MODEL_PREFIX) else page


OLLAMA_PREFIX = b"/api/"


def not_there(path: bytes) -> str:
    """What somebody who asked for this path should set (API-6b)."""
    if path.startswith(OLLAMA_PREFIX):
        return "this edge does not serve Ollama's own API; use its OpenAI-compatible one: base URL http://HOST:PORT/v1"
    if path.startswith((b"/v1/v1/", b"/v1//v1/", b"//v1/v1/")):
        return "the path has /v1 twice: leave it out of the client's base URL"
    return (
        "there is no such path here. The base URL of OpenAI clients is http://HOST:PORT/v1, that of Anthropic clients "
        "http://HOST:PORT; other endpoints of a provider are let through by http.more_paths in the edge's configuration"
    )
