"""What an operator may do to a running edge: drain and undrain a node or a provider, look at requests, cancel one
(SUP-5, EXEC-7, OBS-4). ``iop-edge drain``, ``undrain``, ``requests`` and ``cancel`` ask for it at the admin listener.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from iop.edge.requests import trace
from iop.edge.requests.trace import Outline, Record
from iop.errors import InvalidRequest, NotThere, RequestCancelled
from iop.wire.limits import MAX_NAME_CHARS
from iop.wire.messages import CancelReason

if TYPE_CHECKING:
    from iop.edge.nodes.commands import Done
    from iop.edge.requests.dispatcher import Dispatcher, TicketOwner
    from iop.pool.lease import Ticket

__all__ = ["Operator"]

LISTED = 1000  # requests in one answer, the oldest
#: Standings of candidates that end by themselves.
WAITED_FOR = frozenset({"full", "long_full", "pending", "resting"})


class _Named(msgspec.Struct, forbid_unknown_fields=True):
    name: str


class Operator:
    """``act`` does what was asked with a JSON body, ``requests`` lists what is going on. Every answer is plain data."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher

    def act(self, action: str, body: bytes) -> dict[str, Any]:
        """``drain``, ``undrain`` (the name of a node or provider) or ``cancel`` (a request's id). Raises InvalidRequest
        or NotThere, and changes nothing then."""
        try:
            name = msgspec.json.decode(body, type=_Named).name
        except msgspec.MsgspecError as exc:
            raise InvalidRequest(f'send {{"name": "..."}}: {exc}') from None
        return self._cancel(name) if action == "cancel" else self._set_drained(name, action == "drain")

    def _set_drained(self, name: str, drained: bool) -> dict[str, Any]:
        d = self._dispatcher
        kind, node_id, provider_id = self._find(name)
        d.perform(d.pool.set_drained(node_id, provider_id, drained, d.now))
        rows = {row["id"]: row for node in d.pool.snapshot(d.now)["nodes"] if node["id"] == node_id
                for row in node["providers"]}  # fmt: skip
        chosen = list(rows) if provider_id is None else [provider_id]
        return {
            "kind": kind,
            "name": name.removeprefix(f"{kind}:"),
            "in_use": sum(rows[i]["in_use"] + rows[i]["lingering"] for i in chosen),
            "providers": [{"id": i, "status": rows[i]["status"], "in_use": rows[i]["in_use"]} for i in chosen],
        }

    def _find(self, name: str) -> tuple[str, str, str | None]:
        """Whose name this is. ``node:X`` and ``provider:X`` say which, where both are called X."""
        kind, _, rest = name.partition(":")
        asked, name = (kind, rest) if kind in ("node", "provider") and rest else ("", name)
        nodes = self._dispatcher.pool.snapshot(self._dispatcher.now)["nodes"]
        found: list[tuple[str, str, str | None]] = []
        if asked != "provider":
            found += [("node", node["id"], None) for node in nodes if node["id"] == name]
        if asked != "node":
            found += [("provider", n["id"], name) for n in nodes for p in n["providers"] if p["id"] == name]
        if not found:
            raise NotThere(f"there is no {asked or 'node or provider'} {name[:64]!r}; `iop-edge status` lists them")
        if len(found) > 1:
            raise InvalidRequest(f"{name!r} is a node and a provider: write node:{name} or provider:{name}")
        return found[0]

    def _cancel(self, request_id: str) -> dict[str, Any]:
        for request in self._dispatcher.live:
            if request.request_id == request_id:
                state = request.outline().state
                request.stop(RequestCancelled("an operator cancelled this request"), CancelReason.OPERATOR)
                return {"request_id": request_id, "state": state}
        raise NotThere(f"no request {request_id[:64]!r} is going on; `iop-edge requests` lists those that are")

    def trace(self, request_id: str) -> dict[str, Any]:
        """What was decided about one request, going on or ended, by its id; where the edge has given no such id, by the
        one that a client gave, which the page then says (``found_by``): no client's id hides another request (OBS-7).
        Raises NotThere."""
        d = self._dispatcher
        live = next((request for request in d.live if request.request_id == request_id), None)
        found: TicketOwner | Record | None = live or d.trace.find(request_id)
        by_client = found is None and bool(request_id)
        if by_client:
            of_client = (request for request in d.live if request.client_request_id == request_id)
            found = next(of_client, None) or d.trace.find_of_client(request_id)
        if found is None:
            raise NotThere(
                f"no request {request_id[:64]!r} is going on or among the last {len(d.trace)}; one that was refused "
                "before it asked for a slot leaves no trace"
            )
        page = trace.page(found) if isinstance(found, Record) else self._live(found)
        return page | {"found_by": "client_request_id"} if by_client else page

    def _live(self, request: TicketOwner) -> dict[str, Any]:
        d, ticket = self._dispatcher, request.ticket
        page = trace.live(request, d.runtime.loop.time())
        if ticket is not None and ticket.waiting:
            page |= {"position": d.pool.positions([ticket])[ticket], "waits_for": self._waits_for(ticket)}
        return page

    def ollama(self, provider_id: str, path: str, model: str, done: Done) -> None:
        """Ask an Ollama server what it has, runs or knows of a model: what its node lets pass (EXEC-8). Raises
        InvalidRequest, or what :meth:`iop.edge.nodes.server.NodeServer.ask_ollama` raises."""
        shows = path == "/api/show"
        if shows is not bool(model) or len(model) > MAX_NAME_CHARS:
            raise InvalidRequest("/api/show needs a ?model=, and no other path takes one", param="model")
        body = msgspec.json.encode({"model": model}) if shows else b""
        self._dispatcher.nodes.ask_ollama(provider_id, path.encode(), body, done)

    def requests(self) -> dict[str, Any]:
        """What is going on, oldest first: at most ``LISTED`` of ``total``. Nothing of what is asked or answered."""
        now = self._dispatcher.runtime.loop.time()
        live = [(request.outline(), request) for request in self._dispatcher.live]
        live.sort(key=lambda both: (both[0].accepted_at, both[0].id))
        rows = [(_row(outline, now), request.ticket) for outline, request in live[:LISTED]]
        places = self._dispatcher.pool.positions([ticket for _, ticket in rows if ticket is not None])
        for row, ticket in rows:
            if ticket in places:
                row |= {"position": places[ticket], "waits_for": self._waits_for(ticket)}
        return {"total": len(live), "requests": [row for row, _ in rows]}

    def _waits_for(self, ticket: Ticket) -> str:
        """Why a request waits: how the first of its candidates stands that may ever serve it."""
        found, _ = self._dispatcher.pool.explain(ticket, trace.MAX_CANDIDATES)
        return next((standing for _, _, _, standing, _, _ in found if standing in WAITED_FOR), "turn")


def _row(outline: Outline, now: float) -> dict[str, Any]:
    row: dict[str, Any] = outline._asdict()
    row["age_s"] = round(now - row.pop("accepted_at"), 1)
    return row
