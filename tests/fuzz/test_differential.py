"""Whatever passes the edge is read alike by the parsers that model servers use (API-8c)."""

from __future__ import annotations

import pytest

from tests.fuzz.differential import run
from tests.support import parsers


@pytest.mark.req("API-8c")
@pytest.mark.parametrize(("what", "cases"), [("json", 15_000), ("forms", 5_000)])
def test_no_parser_reads_another_model_than_the_one_that_was_checked(what: str, cases: int) -> None:
    tally = run(what, cases, seed=1)
    assert tally["taken"] > cases // 10
    for name in parsers.JSON if what == "json" else parsers.FORMS:
        assert tally[name] > tally["taken"] // 2


def test_the_parsers_read_what_the_ones_that_they_stand_for_read() -> None:
    folded = '{"model": "allowed", "MODEL": "secret", "\u017ftream": true, "tools": [{"Type": "mcp"}]}'.encode()
    assert parsers.go_json(folded) == {"model": "secret", "stream": True, "tools": {"mcp"}}
    assert parsers.go_json(b'{"model": "a", "MODEL": null}') == {"model": "a", "tools": set()}
    assert parsers.go_json(b'{"model": "a", "store": "yes"}') is None
    assert parsers.python_json(folded) == {"model": "allowed", "tools": set()}
    assert parsers.python_json('{"model": "a"}'.encode("utf-16")) == {"model": "a", "tools": set()}
    assert parsers.c_json(b'{"Model\\u0000x": "secret", "model": "allowed"}') == {"model": "secret", "tools": set()}
    inner = 'Content-Disposition: form-data; name="model"'
    cr = (
        f"--B\r\n{inner}\r\n\r\na\r\n--B\r\n{inner.replace('model', 'x')}\r\n\r\ny\r--B\r{inner}\r\rsecret\r\n--B--\r\n"
    )
    kind = "multipart/form-data; boundary=B"
    assert sorted(parsers.werkzeug_form(kind, cr.encode()) or ()) == [
        ("model", b"a"),
        ("model", b"secret"),
        ("x", b"y"),
    ]
    assert parsers.go_form(kind, cr.encode()) == [("model", b"a"), ("x", f"y\r--B\r{inner}\r\rsecret".encode())]
    bare = f"--B\n{inner}\n\na\n--B \t\n{inner}\n\nsecret\n--B--\n".encode()
    assert (
        parsers.go_form(kind, bare)
        == parsers.go_form(kind, b"preamble\r\n" + bare.replace(b"\n", b"\r\n"))
        == [("model", b"a"), ("model", b"secret")]
    )
    slash = f"--B\r\n{inner.replace('model', '/model')}\r\n\r\nsecret\r\n--B--\r\n".encode()
    assert parsers.aiohttp_form(kind, slash) == [("model", b"secret")]
    utf16 = f"--B\r\n{inner}\r\n\r\nab\r\n--B--\r\n".encode()
    assert parsers.starlette_form(f"{kind}; charset=utf-16", utf16) == [("model", b"ab".decode("utf-16").encode())]
