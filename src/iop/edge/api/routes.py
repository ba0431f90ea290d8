"""Which path is which endpoint (API-1, API-2). One that providers serve is one line in :data:`ROUTES`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from iop.wire.messages import EventDialect

__all__ = ["MODELS_PREFIX", "ROUTES", "Endpoint", "Shape"]


class Shape(Enum):
    """Whose error objects and headers an endpoint speaks."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One endpoint that is tunnelled raw to providers that have it.

    ``name`` is the ``api`` label of logs and metrics; ``provider_path`` is relative to the provider's base URL, which
    ends where ``/v1`` does; ``dialect`` tells the node how to read its event streams (TUN-10).
    """

    name: str
    path: bytes
    provider_path: bytes
    dialect: EventDialect
    shape: Shape


ROUTES: dict[bytes, Endpoint] = {
    e.path: e
    for e in (
        Endpoint("chat", b"/v1/chat/completions", b"/chat/completions", EventDialect.CHAT, Shape.OPENAI),
        Endpoint("completions", b"/v1/completions", b"/completions", EventDialect.CHAT, Shape.OPENAI),
        Endpoint("responses", b"/v1/responses", b"/responses", EventDialect.RESPONSES, Shape.OPENAI),
        Endpoint("embeddings", b"/v1/embeddings", b"/embeddings", EventDialect.UNSPECIFIED, Shape.OPENAI),
        Endpoint("messages", b"/v1/messages", b"/messages", EventDialect.MESSAGES, Shape.ANTHROPIC),
        Endpoint(
            "count_tokens",
            b"/v1/messages/count_tokens",
            b"/messages/count_tokens",
            EventDialect.UNSPECIFIED,
            Shape.ANTHROPIC,
        ),
    )
}

MODELS_PREFIX = b"/v1/models"
