"""What peers send costs time in proportion to its length: no expression, scanner or decoder is quadratic (API-8c).

Each is timed, in CPU time, on an input of some size and on one of sixteen times that size, of a kind that would make
it slow. The two may differ by a factor of 64: a quadratic one takes 256 times as long. A ratio of two times on the
same machine needs no clock of a known speed.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from iop._fast.body import FRAMING_CHUNKED, BodyDecoder, HeadFinder
from iop._fast.form import FormScanner
from iop._fast.scan import FieldScanner, RequestScanner
from iop._fast.sse import EventSplitter
from iop.edge.api.body import form_of, require_plain_query
from iop.errors import IopError
from iop.net.http.head import parse_request
from iop.patterns import Patterns, fits

SOURCES = Path(__file__).parents[2] / "src/iop"
TIMES = 16
BOUND = 64.0
SHORTEST_S = 0.0005  # below it a clock tells little


def seconds(run: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(3):
        began = time.thread_time()
        run()
        best = min(best, time.thread_time() - began)
    return best


def require_linear(make: Callable[[int], Callable[[], object]], size: int = 256, most: int = 1 << 20) -> None:
    """Fail if sixteen times the input takes 64 times as long.

    ``make(n)`` prepares an input of about n bytes, and returns the run on it: what it allocates is not timed. The size
    grows until a run takes long enough to time.
    """
    while seconds(make(size)) < SHORTEST_S and size * TIMES * 4 <= most:
        size *= 4
    for _ in range(4):  # again, for a machine that had something else to do
        large = seconds(make(size * TIMES))
        if large < SHORTEST_S or (ratio := large / seconds(make(size))) < BOUND:
            return
    pytest.fail(f"{TIMES} times the input takes {ratio:.0f} times as long")


# ---- regular expressions --------------------------------------------------------------------------------------------

#: By module and name: texts whose middle is repeated. Whatever is not here fails the test below: write down for a new
#: expression what could make it slow.
PUMPED: dict[str, list[tuple[bytes, bytes, bytes]]] = {
    "tls.certificate._PEM": [
        (b"", b"-----BEGIN CERTIFICATE-----\n", b""),
        (b"-----BEGIN CERTIFICATE-----", b"A \n", b"!"),
    ],
    "tls.certificate._IDENTITY": [(b"spiffe://", b"a", b""), (b"spiffe://a/iop/node/a", b".", b"/")],
    "tls.join_token._FORM": [(b"iop-join.", b"A", b"."), (b"iop-join.", b"A.", b"")],
    "edge.api.cors._NAMES": [(b"a", b" ", b"x"), (b"a", b" ,\ta", b" ;"), (b"", b"a", b";"), (b"a,", b" ", b",")],
    "edge.api.body._BOUNDARY_TEXT": [(b"", b"a ", b"")],
    "edge.api.body._PARAMETER": [(b"", b" ", b"x"), (b";", b"a", b""), (b';a="', b"b", b""), (b";a=", b"b", b"")],
    "edge.keys.limits._RATES": [
        (b"", b"x-ratelimit-a\r", b""),
        (b"", b"x-ratelimit-a\n", b""),
        (b"x-ratelimit-", b"a", b""),
    ],
    "net.http.client._HOST": [(b"", b"a.", b"!")],
    "net.http.client._PATH": [(b"", b"/", b"!"), (b"/", b"a", b"\n"), (b"", b"/a", b"?")],
    "net.http.head._HOST": [(b"", b"%41", b"%"), (b"[", b":", b""), (b"[::%", b"a", b""), (b"a", b".", b":")],
    "net.http.local._ORIGIN": [(b"a", b"+", b":"), (b"a://", b"a", b"!"), (b"a://[", b":", b"")],
    "node.providers.kinds.sglang._SERIES": [
        (b"sglang:num_running_reqs{", b"}", b""),
        (b"", b"sglang:num_running_reqs{\n", b""),
        (b"sglang:num_queue_reqs{", b"} ", b""),
    ],
    "node.providers.kinds.vllm._SERIES": [
        (b"vllm:num_requests_running{", b"}", b""),
        (b"", b"vllm:num_requests_running{\n", b""),
        (b"vllm:num_requests_running{", b"} ", b""),
    ],
    "node.providers.provider._PATH": [(b"/", b"a", b" ")],
}
#: Read by the owner of a program alone, who may be slow to himself.
OWN = ("cli.", "config.")


def compiled() -> dict[str, re.Pattern[bytes] | re.Pattern[str]]:
    """Every expression of a module that somebody else's text may reach."""
    found = {}
    for path in sorted(SOURCES.rglob("*.py")):
        name = ".".join(path.relative_to(SOURCES).with_suffix("").parts)
        if name.startswith(OWN) or "re." not in path.read_text():
            continue
        module = importlib.import_module(f"iop.{name}")
        found |= {f"{name}.{key}": value for key, value in vars(module).items() if isinstance(value, re.Pattern)}
    return found


def test_every_expression_is_looked_at() -> None:
    assert compiled().keys() == PUMPED.keys()
    for path in sorted(SOURCES.rglob("*.py")):
        name = ".".join(path.relative_to(SOURCES).with_suffix("").parts)
        if name.startswith(OWN):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in {
                "re.fullmatch",
                "re.match",
                "re.search",
                "re.sub",
            }:
                text = ast.literal_eval(node.args[0])
                assert re.fullmatch(
                    rb"(?:\[[^]]+\]\{[0-9,]+\}|Z)+", text if isinstance(text, bytes) else text.encode()
                ), f"{path}: {text!r} has parts without a bound; name it, and write down what could make it slow"


@pytest.mark.req("API-6", "API-8c")
@pytest.mark.parametrize("name", PUMPED)
def test_expressions_are_linear(name: str) -> None:
    pattern = compiled()[name]
    for front, pump, back in PUMPED[name]:

        def make(size: int, front: bytes = front, pump: bytes = pump, back: bytes = back) -> Callable[[], object]:
            data = front + pump * (size // len(pump)) + back
            text = data if isinstance(pattern.pattern, bytes) else data.decode()
            return lambda: (pattern.fullmatch(text), sum(1 for _ in pattern.finditer(text)))  # type: ignore[arg-type]

        if name in SEARCHED:
            require_linear(make)
        else:
            require_linear(
                lambda size, make=make, p=pattern, f=front, u=pump, b=back: _matched(p, f + u * (size // len(u)) + b)
            )


#: Looked for in a text; the others are matched from one place.
SEARCHED = (
    "tls.certificate._PEM",
    "edge.keys.limits._RATES",
    "node.providers.kinds.sglang._SERIES",
    "node.providers.kinds.vllm._SERIES",
)


def _matched(pattern: re.Pattern[bytes] | re.Pattern[str], data: bytes) -> Callable[[], object]:
    text = data if isinstance(pattern.pattern, bytes) else data.decode()
    return lambda: (pattern.fullmatch(text), pattern.match(text))  # type: ignore[arg-type]


@pytest.mark.req("CONF-1", "API-11")
@pytest.mark.parametrize("stars", [1, 4, 16])
def test_patterns_of_models_are_linear(stars: int) -> None:
    pattern = "*a" * stars + "*b"
    for text, end in (("a", ""), ("a", "b"), ("ab", "a"), ("c", "b")):

        def make(size: int, text: str = text, end: str = end) -> Callable[[], object]:
            name = text * (size // len(text)) + end
            return lambda: (fits(name, pattern), Patterns([pattern]).fit(name))

        require_linear(make)


@pytest.mark.req("CONF-1")
@pytest.mark.parametrize(
    ("pattern", "name", "fit"),
    [
        ("", "", True),
        ("", "a", False),
        ("*", "", True),
        ("a*", "a", True),
        ("a*a", "a", False),
        ("a*a", "aa", True),
        ("ab*ba", "aba", False),
        ("*b*", "abc", True),
        ("a*b*c", "a-b-b-c", True),
        ("a*bc*c", "abc", False),
        ("**", "x\ny", True),
        ("[a]*", "a", False),
        ("a.c", "abc", False),
    ],
)
def test_a_star_is_any_text(pattern: str, name: str, fit: bool) -> None:
    assert fits(name, pattern) is Patterns([pattern]).fit(name) is fit


def test_patterns_fit_as_the_expression_does() -> None:
    import itertools

    inner = [f"*{''.join(text)}*" for length in (1, 2, 3) for text in itertools.product("ab", repeat=length)]
    for several in itertools.combinations(inner, 2):
        for name in map("".join, itertools.product("ab", repeat=4)):
            assert Patterns(several).fit(name) is any(fits(name, pattern) for pattern in several)
    for length in range(5):
        patterns = list(map("".join, itertools.product("ab*", repeat=length)))
        for several in (patterns[::3], patterns[1::7], [p for p in patterns if not p.startswith("*")]):
            for name in map("".join, itertools.product("ab", repeat=4)):
                for text in (name, name[:2], ""):
                    assert Patterns(several).fit(text) is any(fits(text, pattern) for pattern in several)
        for pattern in patterns:
            expression = re.compile(".*".join(map(re.escape, pattern.split("*"))))
            for name in map("".join, itertools.product("ab", repeat=4)):
                for text in (name, name[:2], ""):
                    assert fits(text, pattern) is (expression.fullmatch(text) is not None)
                    assert Patterns([pattern]).fit(text) is fits(text, pattern)


# ---- scanners and decoders ------------------------------------------------------------------------------------------


def _fed(scanner: RequestScanner | FormScanner | FieldScanner, data: bytes, step: int) -> None:
    try:
        for at in range(0, len(data), step):
            scanner.feed(data[at : at + step])
    except IopError:
        pass


JSON_PUMPS = [
    b'"a":[],',
    b'"model\\u0000":1,',
    b'"M":"\\ud83d",',
    b'"tools":[{"type":"a"}],',
    b'"x":"' + b"A" * 2000 + b'",',
]


@pytest.mark.req("API-8c")
@pytest.mark.parametrize("step", [1, 1 << 20])
@pytest.mark.parametrize("pump", [*JSON_PUMPS, b"[", b" ", b"\\", b"\xc5"])
def test_json_is_scanned_in_linear_time(pump: bytes, step: int) -> None:
    for fresh in (RequestScanner, lambda: FieldScanner(b"usage")):

        def make(size: int, fresh: Callable[[], RequestScanner | FieldScanner] = fresh) -> Callable[[], object]:
            data = b"{" + pump * (size // len(pump))
            return lambda: _fed(fresh(), data, step)

        require_linear(make, most=1 << 18)


DISPOSITION = b'--B\r\nContent-Disposition: form-data; name="x"'
FORM_PUMPS = [
    (DISPOSITION + b"\r\nX:y", b" ", b"y"),
    (DISPOSITION, b"; x=y", b"\r\n\r\n"),
    (DISPOSITION, b" ", b"x\r\n\r\n"),
    (DISPOSITION + b'; filename="', b"\\", b"\r\n\r\n"),
    (DISPOSITION + b"\r\n\r\n", b"\r\n--", b""),
    (DISPOSITION + b"\r\n\r\n", b"\r", b""),
    (b"", DISPOSITION + b"\r\nA:b" + b" " * 3000 + b"b\r\n\r\n\r\n", b""),
    (b"", DISPOSITION + b"\r\nContent-Type:" + b";" * 3000 + b"b\r\n\r\n\r\n", b""),
    (b"", DISPOSITION + b"\r\n" + b"a:\r\n" * 14 + b"\r\n\r\n", b""),
]


@pytest.mark.req("API-8c")
@pytest.mark.parametrize("step", [1, 1 << 20])
@pytest.mark.parametrize("pumped", FORM_PUMPS, ids=range(len(FORM_PUMPS)))
def test_forms_are_scanned_in_linear_time(pumped: tuple[bytes, bytes, bytes], step: int) -> None:
    front, pump, back = pumped

    def make(size: int) -> Callable[[], object]:
        data = front + pump * (size // len(pump)) + back
        return lambda: _fed(FormScanner(b"B"), data, step)

    require_linear(make, size=4096, most=1 << 18)


@pytest.mark.req("API-8c")
def test_a_header_of_a_part_takes_time_by_its_length() -> None:
    """Its bytes are bounded, so that a quadratic time would not show above: none takes longer than a plain one."""

    def form(header: bytes) -> Callable[[], None]:
        part = DISPOSITION + b"\r\nX:" + header + b"\r\n\r\n\r\n"
        return lambda: _fed(FormScanner(b"B"), part * 100, 1 << 20)

    plain = seconds(form(b"y" * 4000))
    for header in (b"y" + b" " * 3998 + b"y", b" " * 3999 + b"y", b" y" * 2000, b"\t" * 4000, b":" * 4000):
        assert min(seconds(form(header)) for _ in range(3)) < 8 * plain, header[:4]


@pytest.mark.req("API-6")
@pytest.mark.parametrize(
    "pump",
    [b"a:b\r\n", b"a: \r\n", b"content-length:1\r\n", b"connection: a,b,c,d\r\n", b"x: " + b"y" * 1000 + b"\r\n"],
)
def test_heads_are_read_in_linear_time(pump: bytes) -> None:
    def make(size: int) -> Callable[[], object]:
        block = b"POST /v1/x HTTP/1.1\r\nHost: a\r\n" + pump * (size // len(pump)) + b"\r\n"

        def run() -> None:
            try:
                finder = HeadFinder(len(block))
                for at in range(len(block)):
                    finder.feed(block[at : at + 1], 0)
                parse_request(block)
            except IopError:
                pass

        return run

    require_linear(make, most=1 << 16)


@pytest.mark.req("API-6")
@pytest.mark.parametrize("pump", [b"1;" + b"a" * 100 + b"\r\nx\r\n", b"1\r\nx\r\n", b"0" * 16])
def test_chunks_are_decoded_in_linear_time(pump: bytes) -> None:
    def make(size: int) -> Callable[[], object]:
        data = pump * (size // len(pump))

        def run() -> None:
            decoder = BodyDecoder(FRAMING_CHUNKED, 0, 1 << 30)
            try:
                for at in range(0, len(data), 7):
                    decoder.feed(data[at : at + 7])
            except IopError:
                pass

        return run

    require_linear(make, most=1 << 18)


@pytest.mark.req("API-8c")
@pytest.mark.parametrize("pump", [b"a=b&", b"&", b"%6d", b"m+", b";"])
def test_queries_and_content_types_are_read_in_linear_time(pump: bytes) -> None:
    def query(size: int) -> Callable[[], object]:
        text = pump * (size // len(pump)) + b"="
        return lambda: require_plain_query(text)

    require_linear(query)

    def kind(size: int) -> Callable[[], object]:
        text = b"multipart/form-data" + (b"; " + pump.replace(b"\t", b"") + b"=a") * (size // (len(pump) + 4))
        head = parse_request(b"POST /v1/x HTTP/1.1\r\nHost: a\r\nContent-Type: " + text + b"\r\n\r\n")

        def run() -> None:
            with contextlib.suppress(IopError):
                form_of(head)

        return run

    require_linear(kind, most=1 << 16)


@pytest.mark.req("TUN-10")
@pytest.mark.parametrize(
    "pump", [b"data: {\n", b"data:\r", b":\n", b"event: a\n\n", b'data: {"choices":[{"delta":{"a":1}}]}\n\n']
)
def test_event_streams_are_split_in_linear_time(pump: bytes) -> None:
    def make(size: int) -> Callable[[], object]:
        data = pump * (size // len(pump))

        def run() -> None:
            splitter = EventSplitter(1)
            for at in range(0, len(data), 11):
                splitter.feed(data[at : at + 11])

        return run

    require_linear(make, most=1 << 18)
