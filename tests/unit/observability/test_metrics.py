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
    cell = metrics.requests["chat", "ok", "m", "n1", "p", ""]
    cell.value += 2
    metrics.requests["chat", "ok", "m", "n1", "p", ""].value += 1
    metrics.capacity.watch(lambda: {("n1", "p"): 7})
    metrics.client_bytes.watch(lambda: {("in",): 10, ("out",): 20})
    seen = samples(metrics)
    where = (("model", "m"), ("node", "n1"), ("outcome", "ok"), ("principal", ""), ("provider", "p"))
    assert seen["iop_edge_requests_total", (("api", "chat"), *where)] == 3
    assert seen["iop_edge_capacity", (("node", "n1"), ("provider", "p"))] == 7
    assert seen["iop_edge_client_bytes_total", (("direction", "out"),)] == 20


@pytest.mark.req("OBS-1")
def test_state_is_read_at_every_scrape() -> None:
    metrics = NodeMetrics()
    held = [1]
    metrics.slots.watch(lambda: {("p",): held[0]})
    assert samples(metrics)["iop_node_slots_in_use", (("provider", "p"),)] == 1
    held[0] = 5
    assert samples(metrics)["iop_node_slots_in_use", (("provider", "p"),)] == 5


@pytest.mark.req("OBS-1")
def test_histograms_are_cumulative_and_bounds_belong_below() -> None:
    metrics = EdgeMetrics()
    for value in (0.005, 0.0051, 4000.0):
        metrics.duration["chat", "m"].observe(value)
    metrics.queue_wait["m"].observe(0)
    seen = samples(metrics)
    name = "iop_edge_request_duration_seconds"
    for bound, count in (("0.005", 1), ("0.01", 2), ("3600.0", 2), ("+Inf", 3)):
        assert seen[name + "_bucket", (("api", "chat"), ("le", bound), ("model", "m"))] == count
    assert seen[name + "_count", (("api", "chat"), ("model", "m"))] == 3
    assert seen[name + "_sum", (("api", "chat"), ("model", "m"))] == pytest.approx(4000.0101)
    assert seen["iop_edge_queue_wait_seconds_count", (("model", "m"),)] == 1


@pytest.mark.req("OBS-1")
def test_labels_are_closed_sets() -> None:
    metrics = EdgeMetrics()
    with pytest.raises(ValueError, match="closed set"):
        metrics.requests["chat", "qwen3-32b", "", "", "", ""]
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


#: Labels that are ids of the configuration, by metric; no other metric has one (OBS-1b, OBS-1c).
_WHERE = {"node", "provider"}
IDS_OF: dict[str, set[str]] = {
    "requests_total": {"model", "principal", *_WHERE},
    "tokens_total": {"model", "principal", *_WHERE},
    "request_duration_seconds": {"model"},
    "time_to_first_token_seconds": {"model"},
    "queue_wait_seconds": {"model"},
    "queue_depth": {"model"},
    "leases_in_use": _WHERE,
    "capacity": _WHERE,
    "provider_up": _WHERE,
    "engine_requests_running": {"provider"},
    "tunnels_total": {"provider"},
    "runs_total": {"provider"},
    "slots_in_use": {"provider"},
}


@pytest.mark.req("OBS-1c")
def test_series_of_what_is_no_longer_configured_are_dropped() -> None:
    metrics = EdgeMetrics()
    for model, provider in (("m", "p"), ("m", "gone"), ("gone", "p"), ("", "")):
        metrics.requests["chat", "ok", model, "n1" if provider else "", provider, ""].value += 1
        metrics.duration["chat", model].observe(1)
    kept = metrics.requests["chat", "ok", "m", "n1", "p", ""]
    metrics.forget(model={"m"}, node={"n1"}, provider={"p"})
    assert {labels[2:5] for labels, _ in metrics.requests.read()} == {("m", "n1", "p"), ("", "", "")}
    assert {labels for labels, _, _ in metrics.duration.read()} == {("chat", "m"), ("chat", "")}
    assert metrics.requests["chat", "ok", "m", "n1", "p", ""] is kept
    assert metrics.requests["chat", "ok", "gone", "n1", "p", ""].value == 0, "it begins anew if it comes back"


@pytest.mark.req("OBS-1c")
def test_what_found_no_room_never_counts_backwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iop.observability.metrics.SERIES_MAX", 2)
    metrics = EdgeMetrics()
    for count in range(1, 4):
        for name in ("m", "n", "o"):  # the third of them has no series of its own
            metrics.requests["chat", "ok", name, name, name, name].value += 1
            metrics.duration["chat", name].observe(1)
        known = {"m", "n", "o"}
        metrics.forget(model=known, node=known, provider=known, principal=known)
        assert dict(metrics.requests.read())["chat", "ok", *("other",) * 4] == count
        assert {labels[1]: total for labels, _, total in metrics.duration.read()}["other"] == count
    metrics.forget(model={"m"}, node={"m"}, provider={"m"}, principal={"m"})
    assert {labels[2] for labels, _ in metrics.requests.read()} == {"m", "other"}


@pytest.mark.req("OBS-1")
@pytest.mark.parametrize("metrics", [EdgeMetrics(), NodeMetrics()], ids=lambda m: m.prefix)
def test_the_table_is_named_by_the_rules_of_prometheus(metrics: Metrics) -> None:
    for family in metrics.families:
        assert family.name.startswith(metrics.prefix)
        assert family.name.endswith("_total") == (family.kind == "counter"), family.name
        assert family.text.endswith("."), family.name
        ids = {"node", "provider", "principal", "model", "request_id"} & set(family.labels)
        assert ids <= IDS_OF.get(family.name.removeprefix(metrics.prefix), set()), family.name
        if isinstance(family, Histogram):
            assert ids <= {"model"}, "the series of a histogram are many already"
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
