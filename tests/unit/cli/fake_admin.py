"""An admin listener that answers everything with the same bytes, and writes down what it was asked."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler
from typing import Any, ClassVar

STATUS: dict[str, Any] = {
    "edge": {
        "id": "edge-1",
        "version": "0.1.0",
        "uptime_s": 3725.4,
        "revision": 3,
        "config": {"needs_restart": ["http.listen"], "faults": ["edge.yaml:3: capacity: \x1b[2J"]},
        "keys": {"count": 2, "faults": ["keys.json:1: not \x1b[2J JSON"]},
    },
    "leases_in_use": 2,
    "waiting": 1,
    "nodes": [
        {
            "id": "gpu-1",
            "connected": True,
            "revision": 3,
            "applied_revision": 2,
            "providers": [
                {
                    "id": "p1",
                    "kind": "vllm",
                    "status": "available",
                    "health": "available",
                    "capacity": 8,
                    "in_use": 2,
                    "lingering": 1,
                },
                {
                    "id": "p2",
                    "kind": "vllm",
                    "status": "unavailable",
                    "health": "down",
                    "lowered": {"since": 58.5, "source": "observation", "reason": "ref\x1b"},
                    "lowered_targets": {"t\x1b1": {"since": 60.0, "source": "observation", "reason": "not_listed"}},
                    "resting": {"t2": 7.5},
                    "note": "not listed: t\x1b3",
                },
            ],
        },
        {
            "id": "gpu-2",
            "connected": False,
            "revision": 3,
            "applied_revision": None,
            "config_refused": {"revision": 3, "code": "bad", "ref": "p\x1b2"},
            "providers": [],
        },
    ],
    "principals": [
        {"principal": "alice", "in_flight": 2, "requests_last_minute": 31, "tokens_last_minute": None},
        *({"principal": f"p{i}", "in_flight": 0, "requests_last_minute": 1} for i in range(20)),
    ],
    "models": [{"id": "m\x1b[2J", "waiting": 1, "oldest_wait_ms": 120.6, "candidates": [{}, {}]}],
}


class Admin(BaseHTTPRequestHandler):
    body = b""
    code = 200
    asked: ClassVar[list[tuple[str, str]]]

    def do_GET(self) -> None:
        self.asked.append((self.command, self.path))
        self.send_response(self.code)
        self.send_header("content-length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        pass
