"""What clients are told of a node's failures."""

from __future__ import annotations

import pytest

from iop.edge.api.errors import error_of
from iop.wire import messages as m


@pytest.mark.req("SUP-4", "API-5")
def test_a_call_that_a_stopping_node_cancels_is_no_fault_of_the_edge() -> None:
    error = error_of(m.ExecutionFailure(m.ErrorCode.CANCELLED, message=b"the request was cancelled"), "p1")
    assert (error.code, error.status, error.retryable) == ("node_draining", 503, True)
    assert "p1" in error.message


@pytest.mark.req("API-5")
@pytest.mark.parametrize("code", list(m.ErrorCode))
def test_no_failure_of_a_node_blames_the_client(code: m.ErrorCode) -> None:
    assert error_of(m.ExecutionFailure(code), "p1").status >= 500
