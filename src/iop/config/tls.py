"""The ``tls`` sections of both files, read together with the files that they name (SEC-1, CONF-1, CONF-2).

The contexts are made here, so that whatever is wrong with a certificate or key is a fault of the configuration like any
other: ``check`` says it, ``serve`` does not start with it, and a reload with it changes nothing. Two sections are equal
only if their files' contents are, so that a renewed certificate is a change of the configuration too.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import AfterValidator, PrivateAttr, model_validator
from pydantic_core import PydanticCustomError

from iop.config.fields import ConfigPath, Section, ServerName, Sha256
from iop.tls import contexts
from iop.tls.contexts import CredentialFault, Dialling, Served

__all__ = ["HttpTls", "NodeTls", "TransportTls"]

T = TypeVar("T")


def _checked(check: Callable[[Path], None]) -> Callable[[Path], Path]:
    def validator(path: Path) -> Path:
        _or_fault(lambda: check(path))
        return path

    return validator


def _or_fault(make: Callable[[], T]) -> T:
    try:
        return make()
    except CredentialFault as error:
        # Braces in a path would be taken for placeholders.
        raise PydanticCustomError("config", "{message}", {"message": str(error)}) from None


#: Each by itself first, so that all of them are told at once.
CertificateFile = Annotated[ConfigPath, AfterValidator(_checked(contexts.check_certificate))]
KeyFile = Annotated[ConfigPath, AfterValidator(_checked(contexts.check_key))]


class HttpTls(Section):
    """What clients are shown. ``cert`` may hold the CAs between it and one that clients know, behind it."""

    cert: CertificateFile
    key: KeyFile
    _served: Served = PrivateAttr()

    @model_validator(mode="after")
    def _resolve(self) -> HttpTls:
        self._served = self._make()
        return self

    def _make(self) -> Served:
        return _or_fault(lambda: contexts.served(self.cert, self.key, alpn=("http/1.1",)))

    @property
    def served(self) -> Served:
        return self._served


class TransportTls(HttpTls):
    """What nodes are shown. With ``client_ca`` they have to show a certificate of one of its CAs in turn."""

    client_ca: CertificateFile | None = None

    def _make(self) -> Served:
        return _or_fault(lambda: contexts.served(self.cert, self.key, self.client_ca))


class NodeTls(Section):
    """How a node knows its edge: by a CA's file, by the hash of one (as a join token has it), or by the system's CAs.
    With ``cert`` and ``key`` it shows who it is itself."""

    ca: CertificateFile | None = None
    ca_sha256: Sha256 | None = None
    cert: CertificateFile | None = None
    key: KeyFile | None = None
    #: The name that the edge's certificate has to have, in place of the host of ``node.edge``.
    server_name: ServerName | None = None
    _dialling: Dialling = PrivateAttr()

    @model_validator(mode="after")
    def _resolve(self) -> NodeTls:
        own_ca = self.ca is not None or self.ca_sha256 is not None
        self._dialling = _or_fault(
            lambda: contexts.dialling(
                self.ca, self.cert, self.key, check_name=not own_ca, known_later=self.ca_sha256 is not None
            )
        )
        return self

    @property
    def dialling(self) -> Dialling:
        return self._dialling
