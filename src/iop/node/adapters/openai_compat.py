"""Any server that speaks the OpenAI API over HTTP: the base of the other kinds."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ADAPTER", "Adapter"]


@dataclass(frozen=True, slots=True)
class Adapter:
    """One kind of provider.

    ``methods``: what a tunnel may use (TUN-7). ``rest_after_stream``: whether a connection that ended a stream has to
    rest before it is used again (TUN-5). ``health_path``: where to ask, when the configuration does not say.
    ``built_in``: the node itself serves this provider, on loopback.
    """

    kind: str
    methods: frozenset[bytes] = frozenset({b"GET", b"POST"})
    rest_after_stream: bool = True
    health_path: str = "/v1/models"
    built_in: bool = False


ADAPTER = Adapter("openai_compat")
