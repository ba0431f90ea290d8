"""How each kind of engine tells what it is doing."""

from __future__ import annotations

from pathlib import Path

import pytest

from iop.kinds import KINDS
from iop.node.providers import kinds
from iop.node.providers.kind import Figures
from iop.node.providers.kinds import ADAPTERS

VLLM = b"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="org/a}b"} 3.0
vllm:num_requests_running{engine="1",model_name="org/a}b"} 2.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="org/a}b"} 1e+01
vllm:num_requests_waiting{engine="1",model_name="org/a}b"} 0.0
vllm:num_requests_waiting_by_reason{engine="0"} 7.0
"""

SGLANG = b"""# HELP sglang:num_running_reqs The number of running requests.
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="org/a}b",dp_rank="0"} 3.0
sglang:num_running_reqs{model_name="org/a}b",dp_rank="1"} 1.0
sglang:num_running_reqs_offline_batch{model_name="org/a}b"} 9.0
# TYPE sglang:num_queue_reqs gauge
sglang:num_queue_reqs{model_name="org/a}b",dp_rank="0"} 2826.0
sglang:num_grammar_queue_reqs{model_name="org/a}b"} 7.0
"""


@pytest.mark.req("POOL-13")
@pytest.mark.parametrize(
    ("kind", "answer", "figures"),
    [
        ("vllm", VLLM, Figures(5, 10)),
        ("vllm", b"vllm:num_requests_running 4\r\n", Figures(4)),
        ("vllm", b"vllm:num_requests_waiting 4\n", None),
        ("vllm", b"vllm:num_requests_running nan\nvllm:num_requests_running 1.2.3\n", None),
        ("vllm", b"", None),
        ("sglang", SGLANG, Figures(4, 2826)),
        ("sglang", b"sglang:num_queue_reqs 4\n", None),
        ("sglang", VLLM, None),
        ("llama_cpp", b'[{"id":0,"is_processing":true,"prompt":"x"},{"id":1,"is_processing":false}]', Figures(1)),
        ("llama_cpp", b'[{"id":0,"state":1},{"id":1,"state":0},{"id":2,"state":1}]', Figures(2)),
        ("llama_cpp", b"[]", Figures(0)),
        ("llama_cpp", b'{"error":{"code":501}}', None),
        ("llama_cpp", b"[" * 100_000, None),
        ("ollama", b'{"models":[{"name":"a","size":1},{"name":"b"}]}', Figures(2)),
        ("ollama", b'{"models":{}}', None),
        ("ollama", b"<html>", None),
    ],
)
def test_an_engine_tells_what_it_is_doing(kind: str, answer: bytes, figures: Figures | None) -> None:
    engine = ADAPTERS[kind].engine
    assert engine is not None
    assert engine.read(answer) == figures


@pytest.mark.req("EXEC-4")
def test_a_kind_is_one_row_and_one_file() -> None:
    files = {path.stem for path in Path(kinds.__file__).parent.glob("*.py")} - {"__init__"}
    assert files == {kind.name for kind in KINDS}
    assert all(adapter.kind == name for name, adapter in ADAPTERS.items())
    assert {adapter.kind for adapter in ADAPTERS.values() if adapter.built_in} == {k.name for k in KINDS if k.built_in}
    assert all(server.kind == kind.name for kind in KINDS for server in kind.servers)


@pytest.mark.req("EXEC-8")
def test_no_path_of_a_command_generates() -> None:
    paths = {path for adapter in ADAPTERS.values() for path in adapter.api}
    assert paths == {b"/api/tags", b"/api/ps", b"/api/version", b"/api/show"}


def test_an_engine_without_figures_is_not_asked() -> None:
    assert ADAPTERS["openai_compat"].engine is None
    assert ADAPTERS["echo"].engine is None
