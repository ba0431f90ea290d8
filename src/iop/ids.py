"""The one identifier that crosses all rooms.

``RequestId`` is minted by the edge for each client request (API-5): ``req_`` and 24 hexadecimal digits, so that it is
safe in headers, logs and file names. It is the run id on the wire.
"""

from __future__ import annotations

import os
from typing import NewType

RequestId = NewType("RequestId", str)
REQUEST_ID_LENGTH = 28


_BITS_BYTES = 12
_BLOCK_BYTES = 256 * _BITS_BYTES
_block = b""
_used = _BLOCK_BYTES


def new_request_id() -> RequestId:
    """A fresh request id with 96 random bits. The system is asked for many at a time: a call costs more than an id."""
    global _block, _used
    if _used >= _BLOCK_BYTES:
        _block, _used = os.urandom(_BLOCK_BYTES), 0
    start, _used = _used, _used + _BITS_BYTES
    return RequestId("req_" + _block[start:_used].hex())
