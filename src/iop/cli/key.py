"""``iop-edge key``: makes, lists and revokes keys in the keys file, which a running edge follows by itself (API-11)."""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import secrets
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iop.cli.program import Exit, Usage

if TYPE_CHECKING:
    from iop.config.keys import KeyRecord

__all__ = ["add"]

PREFIX = "sk-iop-"
KEY_BYTES = 32
ID_CHARS_MIN = 4
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_HEAD = (
    "ID",
    "PRINCIPAL",
    "STATE",
    "MODELS",
    "AT A TIME",
    "REQUESTS/MIN",
    "TOKENS/MIN",
    "WEIGHT",
    "EXPIRES",
    "CREATED",
)


def add(commands: Any) -> None:
    """Add the command and what it can do."""
    key = commands.add_parser(
        "key",
        help="make, list and revoke keys of clients",
        description="Makes, lists and revokes keys in a keys file (http.keys_file of the edge's file). A running edge "
        "takes a change over within about a second.",
    )
    actions = key.add_subparsers(title="actions", metavar="ACTION", required=True)

    new = actions.add_parser(
        "new",
        help="make a key and print it, once",
        description="Makes a key and prints it, and nothing else, on standard output; the file keeps its hash alone. "
        "What is left out is not limited.",
    )
    _file(new)
    new.add_argument("--principal", metavar="NAME", required=True, help="whose key it is, as logs and queues name it")
    new.add_argument(
        "--models",
        metavar="PATTERN",
        nargs="+",
        action="extend",
        help="models it may use; * stands for any text; give it again for more",
    )
    new.add_argument("--max-concurrent", metavar="N", type=int, help="requests at a time")
    new.add_argument("--rpm", metavar="N", type=int, help="requests per minute")
    new.add_argument("--tpm", metavar="N", type=int, help="tokens per minute, as providers report them")
    new.add_argument("--weight", metavar="N", type=int, default=1, help="share in the queue's turns (default: 1)")
    new.add_argument("--expires", metavar="TIME", type=_expiry, help="a span (90d, 12h) or a date (2030-01-31)")
    new.add_argument("--json", action="store_true", help="print key and id as one JSON object")
    new.set_defaults(run=_new)

    show = actions.add_parser("list", help="show the keys", description="Shows the keys of the file, revoked ones too.")
    _file(show)
    show.add_argument("--json", action="store_true", help="print them as a JSON list")
    show.set_defaults(run=_list)

    revoke = actions.add_parser(
        "revoke",
        help="end the use of a key",
        description="Revokes a key: its next request gets 401; those under way go on. The entry stays in the list.",
    )
    _file(revoke)
    revoke.add_argument("id", metavar="ID", nargs="?", help=f"its id, or the beginning ({ID_CHARS_MIN} digits or more)")
    revoke.add_argument("--principal", metavar="NAME", help="all keys of this principal instead")
    revoke.set_defaults(run=_revoke)


def _file(parser: argparse.ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("-c", "--config", metavar="FILE", type=Path, help="the edge's file, which names the keys file")
    which.add_argument("--file", metavar="FILE", type=Path, help="the keys file itself")


def _path(arguments: argparse.Namespace) -> Path:
    if arguments.file is not None:
        return Path(arguments.file)
    from iop.config.load import keys_path

    path = keys_path(arguments.config)
    if path is None:
        raise Usage(
            f"{arguments.config} names no keys file; add `keys_file: keys.json` to its section `http:`, "
            "reload the edge, and run this again"
        )
    return path


def _expiry(text: str) -> datetime:
    from iop.config.keys import instant

    now = datetime.now(UTC).replace(microsecond=0)
    span = re.fullmatch(r"([0-9]{1,6})([mhdw])", text)
    try:
        at = now + timedelta(**{_UNITS[span[2]]: int(span[1])}) if span else instant(text)
    except OverflowError:
        raise argparse.ArgumentTypeError(f"{text} is beyond the calendar") from None
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{error}, or a span such as 90d or 12h") from None
    if at <= now:
        raise argparse.ArgumentTypeError(f"{text} is over already")
    return at


def _new(arguments: argparse.Namespace) -> int:
    from pydantic import ValidationError

    from iop.config.keys import KeyRecord
    from iop.config.keysfile import change_keys

    if any("," in pattern for pattern in arguments.models or ()):
        raise Usage("--models: one pattern each, without commas; repeat the option: --models 'qwen*' --models llama3")
    key = PREFIX + secrets.token_urlsafe(KEY_BYTES)
    try:
        record = KeyRecord(
            principal=arguments.principal,
            models=tuple(arguments.models) if arguments.models else None,
            max_concurrent_requests=arguments.max_concurrent,
            requests_per_minute=arguments.rpm,
            tokens_per_minute=arguments.tpm,
            weight=arguments.weight,
            expires_at=arguments.expires,
            key_sha256=hashlib.sha256(key.encode()).hexdigest(),
            created_at=datetime.now(UTC).replace(microsecond=0),
        )
    except ValidationError as error:
        options = {
            "max_concurrent_requests": "max-concurrent",
            "requests_per_minute": "rpm",
            "tokens_per_minute": "tpm",
        }
        first = error.errors(include_input=False, include_url=False)[0]
        name = str(first["loc"][0])
        raise Usage(f"--{options.get(name, name)}: {first['msg'].replace('Input should', 'should')}") from None
    change_keys(_path(arguments), lambda records: [*records, record], beside=arguments.config)
    if arguments.json:
        print(json.dumps({"key": key, **_row(record)}))
    else:
        print(key, flush=True)
        # Not on standard output, so that KEY=$(iop-edge key new ...) is the key.
        print(f"id {record.id}; the key is shown this once", file=sys.stderr)
    return Exit.OK


def _list(arguments: argparse.Namespace) -> int:
    from iop.cli.table import aligned
    from iop.config.keysfile import read_keys

    path = _path(arguments)
    reading = read_keys(path)
    if reading.text is not None and reading.text.data is None:
        print(f"{path} is not there; `iop-edge key new` makes it", file=sys.stderr)
    records = reading.records
    if arguments.json:
        print(json.dumps([_row(record) for record in records], indent=2))
        return Exit.OK
    now = datetime.now(UTC)
    for line in aligned(_HEAD, (_cells(record, now) for record in records)):
        print(line)
    return Exit.OK


def _row(record: KeyRecord) -> dict[str, Any]:
    shown = record.model_dump(mode="json", exclude={"key_sha256", "enabled"})
    return {"id": record.id, "state": record.state(datetime.now(UTC)), **shown}


def _cells(record: KeyRecord, now: datetime) -> tuple[str, ...]:
    state = record.state(now)
    if record.revoked_at is not None:
        state += f" {_day(record.revoked_at)}"
    counts = (record.max_concurrent_requests, record.requests_per_minute, record.tokens_per_minute)
    return (
        record.id,
        record.principal,
        state,
        " ".join(record.models) if record.models else "all",
        *("-" if count is None else str(count) for count in counts),
        str(record.weight),
        _day(record.expires_at),
        _day(record.created_at),
    )


def _day(at: datetime | None) -> str:
    return "-" if at is None else at.strftime("%Y-%m-%d %H:%M")


def _revoke(arguments: argparse.Namespace) -> int:
    from iop.config.keysfile import change_keys

    wanted, principal = arguments.id, arguments.principal
    if (wanted is None) is (principal is None):
        raise Usage("name either the id of a key, or --principal")
    if wanted is not None and not re.fullmatch(rf"[0-9a-f]{{{ID_CHARS_MIN},64}}", wanted):
        raise Usage(
            f"{wanted!r} is no id: write {ID_CHARS_MIN} or more of the hex digits that `iop-edge key list` shows"
        )
    now = datetime.now(UTC).replace(microsecond=0)
    chosen: list[KeyRecord] = []
    revoked: list[KeyRecord] = []

    def change(records: list[KeyRecord]) -> list[KeyRecord]:
        if wanted is not None:
            chosen.extend(record for record in records if record.key_sha256.startswith(wanted))
            if len({record.key_sha256 for record in chosen}) > 1:
                raise Usage(f"{wanted} is the beginning of {', '.join(record.id for record in chosen[:8])}; write more")
        else:
            chosen.extend(record for record in records if record.principal == principal)
        if not chosen:
            raise Usage(f"there is no key {wanted}" if wanted is not None else f"{principal!r} has no keys")
        revoked.extend(record for record in chosen if record.revoked_at is None)
        gone = {record.key_sha256 for record in revoked}
        return [r.model_copy(update={"revoked_at": now}) if r.key_sha256 in gone else r for r in records]

    change_keys(_path(arguments), change, beside=arguments.config)
    for record in chosen:
        said = "revoked" if record in revoked else f"was revoked already, {_day(record.revoked_at)}"
        print(f"{record.id} of {record.principal}: {said}")
    return Exit.OK
