"""Metrics as a scraper sees them (OBS-1)."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from iop import errors
from iop.edge.api.routes import ROUTES
from iop.observability.metrics import APIS, OUTCOMES, EdgeMetrics, Histogram, Metrics, NodeMetrics


def samples(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    body, content_type = metrics.render()
    assert content_type.startswith("text/plain")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }


@pytest.mark.req("OBS-1")
def test_counts_appear_under_their_labels() -> None:
    metrics = EdgeMetrics()
    cell = metrics.requests["chat", "ok"]
    cell.value += 2
    metrics.requests["chat", "ok"].value += 1
    metrics.capacity.watch(lambda: 7)
    metrics.client_bytes.watch(lambda: {("in",): 10, ("out",): 20})
    seen = samples(metrics)
    assert seen["iop_edge_requests_total", (("api", "chat"), ("outcome", "ok"))] == 3
    assert seen["iop_edge_capacity", ()] == 7
    assert seen["iop_edge_client_bytes_total", (("direction", "out"),)] == 20


@pytest.mark.req("OBS-1")
def test_state_is_read_at_every_scrape() -> None:
    metrics = NodeMetrics()
    held = [1]
    metrics.slots.watch(lambda: held[0])
    assert samples(metrics)["iop_node_slots_in_use", ()] == 1
    held[0] = 5
    assert samples(metrics)["iop_node_slots_in_use", ()] == 5


@pytest.mark.req("OBS-1")
def test_histograms_are_cumulative_and_bounds_belong_below() -> None:
    metrics = EdgeMetrics()
    for value in (0.005, 0.0051, 4000.0):
        metrics.duration["chat"].observe(value)
    metrics.queue_wait.observe(0)
    seen = samples(metrics)
    name = "iop_edge_request_duration_seconds"
    assert seen[name + "_bucket", (("api", "chat"), ("le", "0.005"))] == 1
    assert seen[name + "_bucket", (("api", "chat"), ("le", "0.01"))] == 2
    assert seen[name + "_bucket", (("api", "chat"), ("le", "3600.0"))] == 2
    assert seen[name + "_bucket", (("api", "chat"), ("le", "+Inf"))] == 3
    assert seen[name + "_count", (("api", "chat"),)] == 3
    assert seen[name + "_sum", (("api", "chat"),)] == pytest.approx(4000.0101)
    assert seen["iop_edge_queue_wait_seconds_count", ()] == 1


@pytest.mark.req("OBS-1")
def test_labels_are_closed_sets() -> None:
    metrics = EdgeMetrics()
    with pytest.raises(ValueError, match="closed set"):
        metrics.requests["chat", "qwen3-32b"]
    with pytest.raises(ValueError, match="labels"):
        metrics.requests["chat"]
    metrics.leases.watch(lambda: {("gpu-1",): 1})
    with pytest.raises(ValueError, match="labels"):
        metrics.render()


@pytest.mark.req("OBS-1")
def test_reasons_are_bounded_in_number() -> None:
    metrics = EdgeMetrics()
    for index in range(200):
        metrics.protocol_errors[f"reason_{index}"].value += 1
    series = {key: value for key, value in samples(metrics).items() if key[0] == "iop_edge_protocol_errors_total"}
    assert len(series) == 65
    assert series["iop_edge_protocol_errors_total", (("reason", "other"),)] == 200 - 64
    assert len(metrics.protocol_errors) <= 64, "names without a bound are kept"


@pytest.mark.req("OBS-1")
@pytest.mark.parametrize("metrics", [EdgeMetrics(), NodeMetrics()], ids=lambda m: m.prefix)
def test_the_table_is_named_by_the_rules_of_prometheus(metrics: Metrics) -> None:
    for family in metrics.families:
        assert family.name.startswith(metrics.prefix)
        assert family.name.endswith("_total") == (family.kind == "counter"), family.name
        assert family.text.endswith("."), family.name
        assert not {"node", "provider", "request_id", "principal", "model"} & set(family.labels), family.name
        if isinstance(family, Histogram):
            assert list(family.bounds) == sorted(family.bounds)
            assert family.name.endswith("_seconds")
    assert f"{metrics.prefix}build_info" in {family.name for family in metrics.families}


def test_every_endpoint_has_a_label_value() -> None:
    """One that lacks it would raise in the middle of a link's input, and take the link down."""
    assert {endpoint.name for endpoint in ROUTES.values()} <= set(APIS)


def test_every_error_that_ends_a_request_is_an_outcome() -> None:
    assert {errors.QueueFull.code, errors.ClientGone.code, errors.ResponseStalled.code, "ok"} <= set(OUTCOMES)
    assert len(set(OUTCOMES)) == len(OUTCOMES)
    assert "other" in APIS
