"""Identifiers that cross rooms.

``RequestId`` is minted by the edge for each client request (API-5): ``req_`` and 24 characters of a fixed alphabet, so
that it is safe in headers, logs and file names. It is the run id on the wire.
"""

from __future__ import annotations

import os
from base64 import b32encode
from typing import NewType

RequestId = NewType("RequestId", str)
NodeId = NewType("NodeId", str)
ProviderId = NewType("ProviderId", str)
GroupId = NewType("GroupId", str)
LeaseId = NewType("LeaseId", int)
Generation = NewType("Generation", int)

REQUEST_ID_LENGTH = 28


def new_request_id() -> RequestId:
    """A fresh request id: 120 random bits in lower-case base32."""
    return RequestId("req_" + b32encode(os.urandom(15)).decode("ascii").lower())
