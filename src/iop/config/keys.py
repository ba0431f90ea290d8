"""What a file says of a client's key (API-11): the same for an entry of ``http.api_keys`` and one of the keys file."""

from __future__ import annotations

import contextlib
import re
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import Field, PlainSerializer, PlainValidator
from pydantic_core import PydanticCustomError

from iop.config.fields import Count, Ident, Int, ModelName, Section, Sha256

__all__ = ["ID_CHARS", "Instant", "KeyRecord", "KeyRules", "KeysDocument", "instant"]

ID_CHARS = 12
MAX_KEYS = 10_000
MAX_PATTERNS = 256
MAX_WEIGHT = 1000

_RFC_3339 = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}([Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?([Zz]|[+-][0-9]{2}:[0-9]{2}))?"
)


def instant(text: str) -> datetime:
    """An instant of RFC 3339, or a day, which stands for its beginning in UTC. Raises ValueError with advice."""
    if _RFC_3339.fullmatch(text):
        with contextlib.suppress(ValueError, OverflowError):
            at = datetime.fromisoformat(text.upper())
            return (at if at.tzinfo else at.replace(tzinfo=UTC)).astimezone(UTC).replace(microsecond=0)
    raise ValueError("write an instant such as 2030-01-31T12:00:00Z, or a day such as 2030-01-31")


def _instant(value: Any) -> datetime:
    try:
        return value if isinstance(value, datetime) else instant(str(value))
    except ValueError as error:
        raise PydanticCustomError("config", "{message}", {"message": str(error)}) from None


#: In UTC, to the second.
Instant = Annotated[
    datetime,
    PlainValidator(_instant),
    PlainSerializer(lambda at: at.strftime("%Y-%m-%dT%H:%M:%SZ"), return_type=str),
]


class KeyRules(Section):
    """Whose key it is, what it may be used for, how much and how long. What is absent is not limited. In the names of
    models and aliases ``*`` stands for any text."""

    principal: Ident
    models: Annotated[tuple[ModelName, ...], Field(min_length=1, max_length=MAX_PATTERNS)] | None = None
    max_concurrent_requests: Count | None = None
    requests_per_minute: Count | None = None
    tokens_per_minute: Count | None = None
    weight: Annotated[Int, Field(ge=1, le=MAX_WEIGHT)] = 1
    expires_at: Instant | None = None
    enabled: bool = True


class KeyRecord(KeyRules):
    """One key of the keys file. There is only its SHA-256, unsalted and fast on purpose: a key that ``iop-edge key``
    makes is 256 random bits, which nobody can try out, and a plain hash can be looked up."""

    key_sha256: Sha256
    created_at: Instant | None = None
    revoked_at: Instant | None = None

    @property
    def id(self) -> str:
        """By what the commands call it: the beginning of its hash."""
        return self.key_sha256[:ID_CHARS]

    def state(self, now: datetime) -> str:
        """``active``, or why it is not good: ``revoked``, ``disabled``, ``expired``."""
        if self.revoked_at is not None:
            return "revoked"
        if not self.enabled:
            return "disabled"
        return "expired" if self.expires_at is not None and self.expires_at <= now else "active"


class KeysDocument(Section):
    """The keys file."""

    keys: Annotated[tuple[KeyRecord, ...], Field(max_length=MAX_KEYS)] = ()
