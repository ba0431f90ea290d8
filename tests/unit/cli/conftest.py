from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import HTTPServer

import pytest

from tests.unit.cli.fake_admin import STATUS, Admin


@pytest.fixture
def admin() -> Iterator[tuple[type[Admin], str]]:
    handler = type("Handler", (Admin,), {"body": json.dumps(STATUS).encode(), "asked": []})
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield handler, f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()
