"""``/v1/models`` as OpenAI and as Anthropic answer it (API-1). The former tells all of them, the latter in pages."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import parse_qs, unquote_to_bytes

from iop.edge.api.routes import MODEL_PREFIX, Shape
from iop.errors import InvalidRequest

__all__ = ["ModelInfo", "model_id", "one_model", "some_models"]

MAX_PAGE = 1000  # also without a limit: a client that does not turn pages misses nothing until there are more

Json = dict[str, object]


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """One model group as clients see it."""

    group_id: str
    request_timeout_s: float


def model_id(path: bytes) -> str:
    """The id that a path names; its slashes may be escaped or not."""
    return unquote_to_bytes(path[len(MODEL_PREFIX) :]).decode("utf-8", "replace")


def one_model(name: str, shape: Shape, created: int) -> bytes:
    """The object of one model. ``created`` is a Unix time."""
    return json.dumps(_entry(name, shape, created)).encode()


def some_models(names: Sequence[str], shape: Shape, query: bytes, created: int) -> bytes:
    """The list. Raises InvalidRequest for Anthropic's ``limit``, ``after_id`` and ``before_id`` where they make no
    sense."""
    if shape is Shape.OPENAI:
        return json.dumps({"object": "list", "data": [_entry(name, shape, created) for name in names]}).encode()
    page, more = _page(names, query)
    body: Json = {
        "data": [_entry(name, shape, created) for name in page],
        "has_more": more,
        "first_id": page[0] if page else None,
        "last_id": page[-1] if page else None,
    }
    return json.dumps(body).encode()


def _entry(name: str, shape: Shape, created: int) -> Json:
    if shape is Shape.ANTHROPIC:
        # The epoch stands for a time that is not known, as Anthropic has it.
        return {"type": "model", "id": name, "display_name": name, "created_at": "1970-01-01T00:00:00Z"}
    return {"id": name, "object": "model", "created": created, "owned_by": "iop"}


def _page(names: Sequence[str], query: bytes) -> tuple[Sequence[str], bool]:
    """The names of a page, and whether there are more in the direction in which the client turns them."""
    try:
        given = parse_qs(query.decode("ascii"), keep_blank_values=True, errors="replace", max_num_fields=32)
    except ValueError:
        raise InvalidRequest("the query is malformed") from None
    limit = given.get("limit", [str(MAX_PAGE)])[-1]
    if not (limit.isascii() and limit.isdigit() and len(limit) <= 4 and 1 <= int(limit) <= MAX_PAGE):
        raise InvalidRequest(f"'limit' must be a number from 1 to {MAX_PAGE}", param="limit")
    size, after, before = int(limit), given.get("after_id"), given.get("before_id")
    if after is not None and before is not None:
        raise InvalidRequest("give 'after_id' or 'before_id', not both", param="before_id")
    if before is not None:
        end = _place(names, before[-1], "before_id")
        start = max(0, end - size)
        return names[start:end], start > 0
    start = _place(names, after[-1], "after_id") + 1 if after is not None else 0
    return names[start : start + size], start + size < len(names)


def _place(names: Sequence[str], name: str, param: str) -> int:
    try:
        return names.index(name)
    except ValueError:
        raise InvalidRequest(f"{param!r} is no model of this list", param=param) from None
