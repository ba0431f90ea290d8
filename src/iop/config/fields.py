"""Types of single configuration fields, with messages that say what to write instead.

A validator here sees one value and, through the validation context, the environment and the folder of the file. What
needs two places of a file at once is in :mod:`iop.config.rules`.
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple
from urllib.parse import quote, urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    PlainValidator,
    SecretStr,
    ValidationInfo,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

__all__ = [
    "IDENT_FORM",
    "BaseUrl",
    "Bytes",
    "ConfigPath",
    "Context",
    "Count",
    "EnvName",
    "Fault",
    "HostPort",
    "Ident",
    "Int",
    "Millis",
    "ModelName",
    "Peer",
    "Real",
    "Seconds",
    "SecretEnv",
    "SecretFile",
    "Section",
    "ServerName",
    "ServerPath",
    "Sha256",
    "StoreUrl",
    "WebOrigins",
    "digest",
    "is_ident",
    "is_model_name",
    "number",
    "parse_base_url",
    "secret_from",
]


class Section(BaseModel):
    """Base of every section: frozen, strictly typed, and unknown keys are faults (CONF-1)."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, hide_input_in_errors=True)


class Fault(NamedTuple):
    """One thing wrong with a file: where (keys and list positions from the root) and what to do about it."""

    path: tuple[str | int, ...]
    message: str


@dataclass(frozen=True, slots=True)
class Context:
    """What validation may look at beside the file: environment variables, and the folder for relative paths."""

    env: Mapping[str, str]
    base: Path

    @staticmethod
    def of(info: ValidationInfo) -> Context:
        """The context of this validation; without one, the process environment and the working folder."""
        return info.context if isinstance(info.context, Context) else Context(os.environ, Path())


def _fault(message: str) -> PydanticCustomError:
    # Braces would be taken for placeholders.
    return PydanticCustomError("config", "{message}", {"message": message})


# ---- numbers --------------------------------------------------------------------------------------------------------


def number(value: Any) -> Any:
    """A quoted number is that number: ``{capacity: "${SLOTS}"}`` has to be quoted inside braces."""
    if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,18}(\.[0-9]{1,9})?", value):
        return float(value) if "." in value else int(value)
    return value


Int = Annotated[int, BeforeValidator(number)]
Real = Annotated[float, BeforeValidator(number)]
Count = Annotated[Int, Field(ge=1, le=1_000_000_000)]
Bytes = Annotated[Int, Field(ge=1, le=1 << 40)]
Seconds = Annotated[Real, Field(gt=0, le=31_536_000)]
Millis = Annotated[Int, Field(ge=1, le=31_536_000_000)]

# ---- names ----------------------------------------------------------------------------------------------------------


IDENT_FORM = "use 1 to 64 letters, digits, '.', '_' or '-', starting with a letter or digit"


def is_ident(value: str) -> bool:
    """Whether it can be the id of an edge, a node or a provider."""
    return re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", value) is not None


def is_model_name(value: str) -> bool:
    """Whether a model can have this name."""
    return 0 < len(value.encode("utf-8", "replace")) <= 512 and value.isprintable() and value == value.strip()


def _ident(value: str) -> str:
    if not is_ident(value):
        raise _fault(IDENT_FORM)
    return value


def _model_name(value: str) -> str:
    if not is_model_name(value):
        raise _fault("use 1 to 512 bytes of printable text without surrounding spaces")
    return value


def _form(pattern: str, told: str) -> AfterValidator:
    """A check that the whole text has a form; ``told`` says what to write."""

    def check(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise _fault(told)
        return value

    return AfterValidator(check)


def _sha256(value: str) -> str:
    if not re.fullmatch(r"[0-9a-fA-F]{64}", value):
        raise _fault("write 64 hex digits: printf %s TOKEN | sha256sum")
    return value.lower()


Ident = Annotated[str, AfterValidator(_ident)]
ModelName = Annotated[str, AfterValidator(_model_name)]
EnvName = Annotated[
    str,
    _form(
        r"[A-Za-z_][A-Za-z0-9_]{0,127}",
        "write the NAME of an environment variable (letters, digits, '_'), not the secret itself",
    ),
]
Sha256 = Annotated[str, AfterValidator(_sha256)]


def _config_path(value: Any, info: ValidationInfo) -> Path:
    if not isinstance(value, str | Path) or not str(value) or "\0" in str(value):
        raise _fault("write the path of a file or folder")
    return Context.of(info).base / Path(value).expanduser()


_DEFAULT_PORTS = (("http://", ":80"), ("https://", ":443"))


def _web_origin(value: str) -> str:
    if value == "*":
        return value
    value = value.lower()
    host = r"(?:\[[0-9a-f:.]+\]|[a-z0-9._~-]+)"
    if len(value) > 1024 or not re.fullmatch(rf"[a-z][a-z0-9+.-]*://{host}(?::[0-9]{{1,5}})?", value):
        raise _fault("write an origin as browsers do, https://app.example.org or http://localhost:3000, without a path")
    if any(value.startswith(scheme) and value.endswith(port) for scheme, port in _DEFAULT_PORTS):
        raise _fault("leave the port out: browsers do not send the usual one")
    return value


def _web_origins(value: tuple[str, ...]) -> tuple[str, ...]:
    if "*" in value and len(value) > 1:
        raise _fault("'*' allows every origin: name no others beside it")
    return value


#: Origins of web pages (RFC 6454) in lower case, or ``*`` alone.
WebOrigins = Annotated[
    tuple[Annotated[str, AfterValidator(_web_origin)], ...], Field(max_length=1000), AfterValidator(_web_origins)
]


def _client_path(value: str) -> str:
    if len(value) > 256 or not re.fullmatch(r"/v1(?:/[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}){1,8}", value):
        raise _fault("write a whole path below /v1, of one to eight plain segments: /v1/ocr")
    if value == "/v1/models" or value.startswith("/v1/models/"):
        raise _fault("the edge answers this path itself")
    return value


ServerPath = Annotated[
    str,
    _form(
        r"(?:/[!-~]{0,1023})?",
        "write a path from the root of the server, without spaces, that begins with /: /health",
    ),
]
ServerName = Annotated[
    str, _form(r"[A-Za-z0-9_.:-]{1,253}", "write a host name or an address as a certificate has it: edge.example")
]

#: Paths of providers that clients may POST to, beside those that are known (API-6b).
ClientPaths = Annotated[tuple[Annotated[str, AfterValidator(_client_path)], ...], Field(max_length=100)]


#: A file or folder; relative ones count from the folder of the configuration file.
ConfigPath = Annotated[Path, PlainValidator(_config_path)]


def _store_url(value: Any, info: ValidationInfo) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or re.fullmatch(r"file:[^?#\0]{1,4096}(\?[!-~]*)?", value) is None:
        raise _fault("write file:PATH, with ?mode= and ?cache= as SQLite knows them if need be, or null for none")
    path = value.removeprefix("file:")
    if path.startswith(("/", ":memory:")):
        return value
    return f"file:{quote(str(Context.of(info).base.absolute()))}/{path}"


#: SQLite's URI of a database, or None; a relative one counts from the folder of the configuration file.
StoreUrl = Annotated[str | None, PlainValidator(_store_url)]

# ---- addresses ------------------------------------------------------------------------------------------------------


class HostPort(NamedTuple):
    """``host:port``, ``[v6]:port`` or ``:port`` (all interfaces). Port 0 lets the system choose, for listeners."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> HostPort:
        """Reads one address; raises :class:`ValueError` with advice."""
        host, colon, port = text.rpartition(":")
        if not colon or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65535:
            raise ValueError("write HOST:PORT with a port of 0 to 65535, such as 127.0.0.1:8080 or [::1]:8080")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
            try:
                ipaddress.IPv6Address(host.partition("%")[0])
            except ValueError:
                raise ValueError("the part in brackets is not an IPv6 address") from None
        elif host == "":
            host = "0.0.0.0"
        elif not re.fullmatch(r"[A-Za-z0-9_]([A-Za-z0-9._-]{0,252})", host):
            raise ValueError("the host is not a name or address (IPv6 goes in brackets: [::1]:8080)")
        return cls(host, int(port))

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it. Names other than ``localhost`` count as not."""
        if self.host.lower() == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host.partition("%")[0]).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def read(text: str) -> HostPort:
            try:
                return cls.parse(text)
            except ValueError as error:
                raise _fault(str(error)) from None

        text = core_schema.no_info_after_validator_function(read, core_schema.str_schema(strict=True))
        python = core_schema.union_schema([core_schema.is_instance_schema(cls), text])
        return core_schema.json_or_python_schema(
            json_schema=text, python_schema=python, serialization=core_schema.to_string_ser_schema()
        )


def _peer(value: HostPort) -> HostPort:
    if value.port == 0:
        raise _fault("port 0 is not an address to connect to")
    return value


#: An address to connect to.
Peer = Annotated[HostPort, AfterValidator(_peer)]


def parse_base_url(value: str) -> str:
    """Checks a provider's base URL and drops its trailing slash: ``http(s)://host[:port][/path]``, or
    ``unix:/path/of.sock[:/path]`` for a server on a unix socket."""
    if not value.isprintable() or " " in value or "\\" in value:
        raise _fault("a URL has no spaces, backslashes or control characters")
    if value.startswith("unix:"):
        if not re.fullmatch(r"unix:/[^:?#]+(:/[^:?#]*)?", value):
            raise _fault("write unix:/path/of.sock, or unix:/path/of.sock:/v1 with a path")
        return value.rstrip("/")
    try:
        parts = urlsplit(value)
        port = parts.port
    except ValueError:
        raise _fault("this is not a URL; write one like http://127.0.0.1:8000/v1") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise _fault("write http://HOST:PORT/PATH, https://... or unix:/path/of.sock")
    if parts.username is not None or parts.password is not None:
        raise _fault("no user or password in the URL; name the provider's key with api_key_env")
    if parts.query or parts.fragment or "?" in value or "#" in value:
        raise _fault("no query or fragment in a base URL")
    return value.rstrip("/")


BaseUrl = Annotated[str, AfterValidator(parse_base_url)]

# ---- secrets --------------------------------------------------------------------------------------------------------

SECRET_FILE_BYTES = 4096


def digest(secret: str) -> bytes:
    """SHA-256 of a token or key: what the edge keeps and compares instead of the secret (REG-1, API-11)."""
    return hashlib.sha256(secret.encode()).digest()


def secret_from(context: Context, *, env: str | None, file: Path | None) -> SecretStr:
    """The secret that a ``*_env`` or ``*_file`` names, or an empty one if neither is given.

    The fields' own validators have called it once already, so that the fault is theirs: it names the source, never the
    value.
    """
    if env is not None:
        value = context.env.get(env, "")
        if not value:
            raise _fault(f"the environment variable {env} is not set; export it, or use the ..._file form")
        source = f"the environment variable {env}"
    elif file is not None:
        value = _read_secret(file)
        source = str(file)
    else:
        return SecretStr("")
    if not value.isascii() or not value.isprintable() or value != value.strip() or len(value) > 1024:
        raise _fault(f"{source} should hold one line of up to 1024 printable ASCII characters")
    return SecretStr(value)


def _read_secret(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            data = stream.read(SECRET_FILE_BYTES + 1)
    except OSError as error:
        raise _fault(f"cannot read {file}: {error.strerror}") from None
    if len(data) > SECRET_FILE_BYTES or not data.strip():
        raise _fault(f"{file} should hold one secret and nothing else")
    return data.decode("ascii", "replace").strip()


def _set_env(name: str, info: ValidationInfo) -> str:
    secret_from(Context.of(info), env=name, file=None)
    return name


def _readable(file: Path, info: ValidationInfo) -> Path:
    secret_from(Context.of(info), env=None, file=file)
    return file


#: The name of a variable, and the path of a file, that holds a secret which this program itself needs.
SecretEnv = Annotated[EnvName, AfterValidator(_set_env)]
SecretFile = Annotated[ConfigPath, AfterValidator(_readable)]
