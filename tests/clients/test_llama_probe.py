"""What the probes of a node find at a real llama.cpp server (HEALTH-5)."""

from __future__ import annotations

import asyncio

import pytest

from iop.net.loop import Runtime
from iop.node.providers.allowance import Allowance
from iop.node.providers.engine_load import Engines
from iop.node.providers.probe import probe
from iop.node.providers.provider import Provider
from iop.wire import messages as m
from tests.clients.conftest import Llama
from tests.support.aio import async_test


@pytest.mark.req("HEALTH-5", "EXEC-4")
@pytest.mark.parametrize(
    ("kind", "target", "found"),
    [
        ("llama_cpp", "smollm2", "available"),
        ("llama_cpp", "whatever", "available"),  # it takes any name
        ("openai_compat", "smollm2", "available"),
        ("openai_compat", "whatever", "available"),  # it was never listed: that is no evidence (HEALTH-7)
    ],
)
def test_a_real_server_is_well(llama: Llama, kind: str, target: str, found: str) -> None:
    @async_test()
    async def body() -> None:
        runtime = Runtime(asyncio.get_running_loop())
        config = m.ProviderConfig("p", kind, llama.direct, 1, 1000, 1000, enabled=True)
        provider = Provider(runtime, config, Allowance(), llama.direct)
        assert (await probe(provider, target, Engines(runtime, lambda provider: 0))).health == found
        provider.close()

    body()
