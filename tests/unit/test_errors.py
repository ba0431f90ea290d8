"""The error tree and its codes (API-5)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from iop import errors
from iop.wire.pb import runtime_pb2

SOURCES = Path(errors.__file__).parent


def tree(cls: type[errors.IopError] = errors.IopError) -> Iterator[type[errors.IopError]]:
    yield cls
    for sub in cls.__subclasses__():
        yield from tree(sub)


def public() -> list[type[errors.IopError]]:
    return [cls for cls in tree() if cls.__module__ == "iop.errors"]


def test_a_code_is_given_to_one_class_and_inherited_by_its_kinds() -> None:
    codes = [cls.code for cls in public() if "code" in vars(cls)]
    assert len(codes) == len(set(codes))


def test_every_class_is_exported() -> None:
    assert {cls.__name__ for cls in public()} <= set(errors.__all__)
    assert sorted(errors.__all__) == sorted(set(errors.__all__))


@pytest.mark.req("API-5")
@pytest.mark.parametrize(
    ("cls", "status", "retry_after"),
    [
        (errors.ModelNotFound, 404, False),
        (errors.MethodNotAllowed, 405, False),
        (errors.InvalidRequest, 400, False),
        (errors.InvalidArgument, 400, False),
        (errors.Unauthorized, 401, False),
        (errors.PayloadTooLarge, 413, False),
        (errors.QueueFull, 429, True),
        (errors.Unavailable, 503, True),
        (errors.QueueTimeout, 503, True),
        (errors.ProviderUnreachable, 502, False),
        (errors.ProviderConnectionLost, 502, False),
        (errors.NodeDisconnected, 502, False),
        (errors.CredentialRejected, 502, False),
        (errors.ResponseStalled, 504, False),
        (errors.DeadlineExceeded, 504, False),
        (errors.ClientGone, 499, False),
        (errors.ClientIdle, 499, False),
    ],
)
def test_status_codes(cls: type[errors.IopError], status: int, retry_after: bool) -> None:
    assert cls.status == status
    assert (cls.retry_after_s is not None) == retry_after


def test_the_codes_on_the_wire_are_those_of_the_proto() -> None:
    names = {name.removeprefix("ERROR_CODE_").lower() for name in dict(runtime_pb2.ErrorCode.items())}
    names.discard("unspecified")
    assert set(errors.WIRE_CODES) == names


@pytest.mark.parametrize("cls", [errors.WIRE_CODES[code] for code in sorted(errors.WIRE_CODES)])
def test_a_wire_code_becomes_its_error(cls: type[errors.IopError]) -> None:
    error = errors.from_code(cls.code, "told by the node")
    assert type(error) is cls
    assert error.message == "told by the node"


def test_an_unknown_wire_code_is_a_fault_of_ours() -> None:
    assert type(errors.from_code("from_the_future")) is errors.InternalError


def test_every_message_says_something() -> None:
    for cls in public():
        assert cls.text == cls.text.strip()
        assert cls.text
        assert "http://" not in cls.text


def test_errors_with_shapes_of_their_own() -> None:
    assert errors.InvalidRequest("no model", param="model").param == "model"
    broken = errors.ProtocolError("bad_length", "0")
    assert (broken.reason, broken.message) == ("bad_length", "bad_length: 0")
    moved = errors.InvalidTransition("link", "ready", "register", ("accepted", "ready"))
    assert "link: no transition for 'register' in state 'ready' (before: accepted > ready)" in moved.message
    assert errors.ConfigError(["a", "b"]).message == "a\nb"


@pytest.mark.req("API-6")
def test_what_the_kernels_find_is_told_in_words() -> None:
    """Their reasons are names; a client is told a sentence."""
    sources = [path.read_text(encoding="utf-8") for path in SOURCES.rglob("*.py*") if path.suffix in {".py", ".pyx"}]
    found = re.findall(r'(?:_fail|HeadError|BodyError)\("([a-z_-]+)"', "".join(sources))
    assert len(found) > 20
    for reason in found:
        for error in (errors.HeadError(reason), errors.BodyError(reason)):
            assert error.reason == reason
            assert error.message.startswith("malformed HTTP")
            assert len(error.message.split()) > 6, error.message
