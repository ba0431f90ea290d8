"""Request ids (API-5)."""

from __future__ import annotations

import re

import pytest

from iop.ids import REQUEST_ID_LENGTH, new_request_id


@pytest.mark.req("API-5")
def test_request_ids_have_a_fixed_alphabet_and_length_and_differ() -> None:
    ids = {new_request_id() for _ in range(2000)}
    assert len(ids) == 2000
    assert all(len(one) == REQUEST_ID_LENGTH and re.fullmatch(r"req_[0-9a-f]{24}", one) for one in ids)
