"""Join tokens."""

from __future__ import annotations

import hashlib
import re

import pytest

from iop.tls.join_token import ca_of, new_token, token_sha256

CA = "0f" * 32


@pytest.mark.req("REG-1")
def test_a_join_token_holds_a_secret_and_the_hash_of_a_ca() -> None:
    one, other = new_token(CA), new_token(CA)
    assert re.fullmatch(rf"iop-join\.[A-Za-z0-9_-]{{43}}\.{CA}", one)
    assert one != other
    assert ca_of(one) == CA
    assert token_sha256(one) == hashlib.sha256(one.encode()).hexdigest()  # of all of it


@pytest.mark.req("REG-1")
def test_a_token_of_any_other_form_is_as_good() -> None:
    plain = {new_token() for _ in range(300)}
    assert len(plain) == 300
    assert not any(token.startswith("-") for token in plain)  # an option, on a command line
    assert {ca_of(token) for token in [*plain, "t0", "", f"x.{CA}"]} == {None}


@pytest.mark.parametrize(
    "token",
    [
        "iop-join.",
        f"iop-join.{'a' * 43}",
        f"iop-join.{'a' * 43}.{CA[:-1]}",
        f"iop-join.{'a' * 43}.{CA}0",
        f"iop-join.{'a' * 42}.{CA}",
        f"iop-join.{'a' * 43}.{CA.upper()}",
        f"iop-join.{'a' * 42}\n.{CA}",
        f"iop-join.{'a' * 43}.{CA}\n",
    ],
)
def test_half_a_join_token_is_none_and_the_text_does_not_repeat_it(token: str) -> None:
    with pytest.raises(ValueError, match="damaged; paste all of it") as caught:
        ca_of(token)
    assert "aaa" not in str(caught.value)
