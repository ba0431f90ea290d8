"""The plain values mirror the wire contract: same names, same numbers, same shapes (WIRE-2)."""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from typing import Any

import pytest
from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor

from iop import errors
from iop.wire import messages as m
from iop.wire.pb import runtime_pb2 as pb

pytestmark = pytest.mark.req("WIRE-2")

ENUMS = [value for value in vars(m).values() if isinstance(value, type) and issubclass(value, enum.IntEnum)]
ENUMS.remove(enum.IntEnum)
CLASSES = [value for value in vars(m).values() if isinstance(value, type) and dataclasses.is_dataclass(value)]
PROTO = pb.DESCRIPTOR

# Fields of the contract that this version neither sends nor reads.
NOT_YET = {"NodeConfigPayload": {"workspaces"}}


def prefix(descriptor: EnumDescriptor) -> str:
    """GOODBYE_REASON_ of GoodbyeReason."""
    return str(descriptor.values_by_number[0].name).removesuffix("UNSPECIFIED")


@pytest.mark.parametrize("cls", ENUMS, ids=lambda cls: cls.__name__)
def test_enums_equal_those_of_the_contract(cls: type[enum.IntEnum]) -> None:
    descriptor = PROTO.enum_types_by_name[cls.__name__]
    contract = {value.name.removeprefix(prefix(descriptor)): value.number for value in descriptor.values}
    assert {member.name: member.value for member in cls} == contract


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_fields_equal_those_of_the_contract(cls: type[Any]) -> None:
    descriptor = PROTO.message_types_by_name[cls.__name__]
    contract = {field.name: field for field in descriptor.fields}
    hints = typing.get_type_hints(cls)
    names = {field.name for field in dataclasses.fields(cls)}
    assert names == contract.keys() - NOT_YET.get(cls.__name__, set())
    for name in names:
        assert shape(hints[name]) == contract_shape(contract[name]), name


def shape(hint: Any) -> tuple[str, bool]:
    """Kind of a plain field, and whether it may be absent or is a list."""
    several = False
    if isinstance(hint, types.UnionType):
        (hint,) = (part for part in typing.get_args(hint) if part is not types.NoneType)
        several = True
    if typing.get_origin(hint) is list:
        (hint,) = typing.get_args(hint)
        several = True
    return hint.__name__, several


def contract_shape(field: FieldDescriptor) -> tuple[str, bool]:
    message, label = field.message_type, field.is_repeated
    if message is not None:
        # A message that must be there is no option of the plain value; those in a oneof or with a default are.
        always = {"lease", "capabilities"} | (
            {"config"} if field.containing_type.name.startswith("ConfigRefresh") else set()
        )
        return message.name, label or field.name not in always
    if field.enum_type is not None:
        return field.enum_type.name, label
    kinds = {"bytes": FieldDescriptor.TYPE_BYTES, "str": FieldDescriptor.TYPE_STRING, "bool": FieldDescriptor.TYPE_BOOL}
    kind = next((name for name, number in kinds.items() if number == field.type), "int")
    return kind, label or field.has_presence


def test_what_clients_and_providers_write_is_bytes() -> None:
    """One odd byte in a string field would make the whole frame undecodable."""
    theirs = {
        "ProviderTunnelRequest": {"method", "path", "query", "header_block", "body", "session_id"},
        "ProviderTunnelBody": {"body"},
        "ProviderTunnelFrame": {"body", "header_block"},
        "RunRequest": {"input", "options", "session_id"},
        "RunEvent": {"text", "tool_call_id", "tool_name", "finish_reason", "session_id"},
        "ExecutionFailure": {"message"},
        "NodeCommandRequest": {"argument", "body"},
        "NodeCommandResponse": {"result", "message"},
        "Metadata": {"value"},
    }
    for name, fields in theirs.items():
        for field in PROTO.message_types_by_name[name].fields:
            if field.name in fields:
                assert field.type == FieldDescriptor.TYPE_BYTES, f"{name}.{field.name}"


def test_hot_numbers_are_small() -> None:
    """A tag of one byte: numbers up to 15."""
    payloads = {field.name: field.number for field in PROTO.message_types_by_name["Envelope"].fields}
    hot = ("provider_tunnel_frame", "provider_tunnel_body", "run_event", "stream_credit", "heartbeat", "heartbeat_ack")
    assert [payloads[name] for name in hot] == [1, 2, 3, 4, 5, 6]


def test_error_codes_are_those_of_the_error_tree() -> None:
    codes = {member.name.lower() for member in m.ErrorCode if member is not m.ErrorCode.UNSPECIFIED}
    assert codes == set(errors.WIRE_CODES)


@pytest.mark.req("SEC-4")
def test_a_token_never_prints() -> None:
    assert "s3cret" not in repr(m.RegisterRequest("s3cret", "1", 1))
