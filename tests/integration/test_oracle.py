"""What a client receives through IOP is what it receives directly: a thousand drawn exchanges (:mod:`tests.oracle`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.oracle.stand import STANDS, Stand, run, stand
from tests.support.aio import async_test

EXCHANGES = 1000
SEED = 10


@pytest.fixture(scope="module")
def stands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, Stand]]:
    with ExitStack() as opened:
        yield {n: opened.enter_context(stand(tmp_path_factory.mktemp("oracle"), n)) for n in range(len(STANDS))}


@pytest.mark.req("TUN-2", "TUN-5c", "TUN-9", "TUN-10", "API-2", "API-7b", "API-8b")
@async_test(timeout_s=60)
async def test_an_answer_through_iop_is_the_direct_one(stands: dict[int, Stand]) -> None:
    report = await run(stands, SEED, EXCHANGES)
    assert not report.differences, "\n" + "\n".join(map(str, report.differences))
    assert report.exchanges >= EXCHANGES
