"""Load through a real edge and a real node, each in a process of its own, against the same load without them.

    python -m benchmarks.tunnel_load                                   200 streams, 50 events a second each
    python -m benchmarks.tunnel_load --streams 1000 --seconds 20 --json out.json
    python -m benchmarks.tunnel_load --non-stream --streams 32         whole answers, as fast as they go

First the clients talk to the model server directly, then through the pair; what is added is the difference. The exit
code is 0 when no stream lost, reordered or mixed up an event and none broke, else 1. How to read the figures:
benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import secrets
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __package__ in (None, ""):  # started as a file
    sys.path.insert(0, str(Path(__file__).parents[1]))

import iop
from benchmarks.children import Child, ChildFailed
from iop.tls.authority import Authority
from iop.tls.join_token import new_token

MIN_STEP_S = 0.001  # of the provider's timer
WARM_UP_STREAMS = 10
WARM_UP_S = 0.5

Result = dict[str, Any]


@dataclass(frozen=True)
class Settings:
    """What to do. ``rate`` is events a second and stream; with ``non_stream`` requests a second and client, 0 = each
    sends the next one when it has its answer."""

    streams: int = 200
    rate: float = 50.0
    seconds: float = 5.0
    non_stream: bool = False
    in_step: bool = False
    prompt_bytes: int = 100
    tls: bool = False

    @property
    def slots(self) -> int:
        """Phases over which the provider spreads the streams."""
        if self.in_step or self.non_stream:
            return 1
        return max(1, min(self.streams, int(1 / self.rate / MIN_STEP_S)))


# ---- the processes --------------------------------------------------------------------------------------------------


@dataclass
class Pair:
    """A running edge and node before a running provider."""

    edge: Child
    node: Child
    provider: Child
    provider_port: int
    port: int

    @property
    def measured(self) -> dict[str, Child]:
        return {"edge": self.edge, "node": self.node, "provider": self.provider}


@contextmanager
def running_pair(settings: Settings) -> Iterator[Pair]:
    """Starts all three; ends them whatever happens."""
    with ExitStack() as stack:

        def start(name: str, *arguments: str, **more: Any) -> Child:
            child = Child(name, ["-m", *arguments], **more)
            stack.callback(child.end)
            return child

        rate = settings.rate or 50.0  # of no meaning for whole answers
        provider = start("provider", "benchmarks.load_provider", "--rate", str(rate), "--slots", str(settings.slots))
        provider_port = provider.line()["port"]
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        token = secrets.token_urlsafe(16)
        config = edge_config(provider_port, settings.streams)
        if settings.tls:
            token, config["transport"]["tls"] = link_tls(Path(folder))
        file = Path(folder) / "edge.yaml"
        file.write_text(json.dumps(config))
        logs = ["--log-format", "json", "--until-eof"]
        edge = start(
            "edge", "iop.cli.edge", "serve", "-c", str(file), *logs, tells="stderr", env={"IOP_TOKEN_LOAD": token}
        )
        node_host, node_port = edge.listening("nodes")
        port = edge.listening("http")[1]
        address = f"{node_host}:{node_port}"
        node = start("node", "iop.cli.node", "join", address, *logs, tells="stderr", env={"IOP_NODE_TOKEN": token})
        node.line(lambda line: line.get("event") == "edge_connected")
        yield Pair(edge, node, provider, provider_port, port)


def link_tls(folder: Path) -> tuple[str, dict[str, str]]:
    """A join token, and the files that the edge shows to who has it."""
    authority = Authority.create()
    issued = authority.edge("edge-1", ["127.0.0.1"])
    (folder / "edge.pem").write_bytes(issued.certificate_pem)
    (folder / "edge-key.pem").write_bytes(issued.key_pem)
    return new_token(authority.sha256), {"cert": "edge.pem", "key": "edge-key.pem"}


def edge_config(provider_port: int, streams: int) -> dict[str, Any]:
    """An edge with one node, one provider and room for all streams, on free loopback ports."""
    anywhere = {"listen": "127.0.0.1:0"}
    provider = {
        "id": "load",
        "kind": "openai_compat",
        "base_url": f"http://127.0.0.1:{provider_port}/v1",
        "capacity": max(streams, WARM_UP_STREAMS),
    }
    return {
        "http": {**anywhere, "max_connections": max(1000, 2 * streams)},
        "transport": dict(anywhere),
        "admin": anywhere,
        "nodes": [{"id": "load", "token_env": "IOP_TOKEN_LOAD", "providers": [provider]}],
        "models": [{"id": "load", "candidates": [{"node": "load", "provider": "load", "target": "load"}]}],
    }


# ---- one run --------------------------------------------------------------------------------------------------------


def run_load(title: str, settings: Settings, port: int, stop_port: int, measured: dict[str, Child]) -> Result:
    """Runs the clients against ``port``; CPU per event of ``measured`` and of the clients over the window, and what
    data each process held at its end. Says on stderr how it goes."""
    arguments = ["--port", str(port), "--stop-port", str(stop_port), "--streams", str(settings.streams)]
    arguments += ["--seconds", str(settings.seconds), "--prompt-bytes", str(settings.prompt_bytes)]
    if settings.non_stream:
        arguments += ["--non-stream", "--rate", str(settings.rate)]
    client = Child("client", ["-m", "benchmarks.load_client", *arguments])
    processes = {**measured, "client": client}
    cpu_s: dict[str, float] = {}
    heap: dict[str, int] = {}
    events = 0
    unit = "answers" if settings.non_stream else "events"
    try:
        while True:
            line = client.line(timeout_s=60)
            if line["kind"] == "progress":
                rate = f"{line['events']} {unit}, {line['errors']} errors"
                print(f"{title}: {line['open']} open, {rate}", file=sys.stderr, flush=True)
            elif line["kind"] == "window":
                # Bracketed by the same two lines as the events that it is divided by.
                sign = 1 if line["at"] == "end" else -1
                events += sign * line["events"]
                for name, child in processes.items():
                    cpu_s[name] = cpu_s.get(name, 0.0) + sign * child.cpu_s()
                if sign > 0:
                    heap = {name: child.heap_bytes() for name, child in measured.items()}
            else:
                break
    finally:
        client.end()
    result = {key: value for key, value in line.items() if key != "kind"}
    result["cpu_us_per_event"] = {name: round(s * 1e6 / max(1, events), 2) for name, s in cpu_s.items()}
    result["cpu_share"] = {name: round(s / settings.seconds, 3) for name, s in cpu_s.items()}
    result["heap_bytes"] = heap
    return result


def measure(settings: Settings) -> Result:
    """The whole test. Raises ChildFailed."""
    with running_pair(settings) as pair:
        warm_up = Settings(min(WARM_UP_STREAMS, settings.streams), settings.rate, WARM_UP_S, settings.non_stream)
        run_load("warm-up", warm_up, pair.port, pair.provider_port, {})
        direct = run_load("direct", settings, pair.provider_port, pair.provider_port, {"provider": pair.provider})
        idle = {name: child.memory_bytes() for name, child in pair.measured.items()}
        heap = {name: child.heap_bytes() for name, child in pair.measured.items()}
        through = run_load("edge and node", settings, pair.port, pair.provider_port, pair.measured)
    outcomes = dict(pair.edge.outcomes)  # whole, now that the edge has ended
    return {
        "settings": {**settings.__dict__, "slots": settings.slots},
        "host": {
            "iop": iop.__version__,
            "python": platform.python_version(),
            "system": platform.platform(),
            "cpus": os.cpu_count(),
        },
        "direct": direct,
        "through": through,
        "added_ms": {
            key: round(through["latency_ms"][key] - at, 3)
            for key, at in direct["latency_ms"].items()
            if key in through["latency_ms"]
        },
        "memory_kb_per_stream": {
            name: round((through["heap_bytes"][name] - heap[name]) / 1024 / settings.streams, 1)
            for name in ("edge", "node")
        },
        "idle_mb": {name: round(idle[name] / 1e6, 1) for name in ("edge", "node")},
        "errors": {name: run["errors"] for name, run in (("direct", direct), ("through", through)) if run["errors"]},
        "outcomes": outcomes,
    }


# ---- the report -----------------------------------------------------------------------------------------------------


def report(result: Result) -> Iterator[str]:
    """The result as lines of text."""
    settings, direct, through = result["settings"], result["direct"], result["through"]
    unit = "answers" if settings["non_stream"] else "events"
    wanted = "" if settings["non_stream"] else f" of {settings['streams'] * settings['rate']:.0f}"
    yield f"{settings['streams']} streams, {settings['seconds']:g} s; direct / through edge and node"
    yield f"  {unit} per second{wanted}: {direct['events_per_s']:.0f} / {through['events_per_s']:.0f}"
    what = "answer after" if settings["non_stream"] else "event's way, provider to client"
    for key, added in result["added_ms"].items():
        yield f"  {what}, {key}: {direct['latency_ms'][key]:.3f} / {through['latency_ms'][key]:.3f} ms, +{added:.3f}"
    for key in ("p50", "p99"):
        if direct["first_event_ms"] and through["first_event_ms"]:
            first = direct["first_event_ms"][key], through["first_event_ms"][key]
            yield f"  first event after, {key}: {first[0]:.2f} / {first[1]:.2f} ms"
    cpu = ", ".join(f"{name} {value:.1f}" for name, value in through["cpu_us_per_event"].items())
    yield f"  CPU per {unit.removesuffix('s')}, us: {cpu}"
    share = ", ".join(f"{name} {value:.0%}" for name, value in through["cpu_share"].items())
    yield f"  CPU used, of one core: {share}"
    memory = ", ".join(f"{name} {value:.1f}" for name, value in result["memory_kb_per_stream"].items())
    idle = ", ".join(f"{name} {value:.1f}" for name, value in result["idle_mb"].items())
    yield f"  memory per stream, KB: {memory}; idle, MB: {idle}"
    skipped = through["provider"]["skipped"]
    if skipped or through["open"] < settings["streams"]:
        yield f"  open at the end: {through['open']}; events that found a full connection: {skipped}"
    yield f"  errors: {json.dumps(result['errors']) if result['errors'] else 'none'}"


def main() -> int:
    parser = argparse.ArgumentParser(description="Load through a real edge and node.")
    parser.add_argument("--streams", type=int, default=200, help="at the same time (default %(default)s)")
    parser.add_argument("--rate", type=float, help="events a second and stream (default 50)")
    parser.add_argument("--seconds", type=float, default=5.0, help="of measuring, each way (default %(default)s)")
    parser.add_argument("--non-stream", action="store_true", help="whole answers; --rate 0, the default, is no pause")
    parser.add_argument("--in-step", action="store_true", help="all streams speak at once, as in a batching engine")
    parser.add_argument("--prompt-bytes", type=int, default=100, help="of each prompt (default %(default)s)")
    parser.add_argument("--tls", action="store_true", help="edge and node speak TLS")
    parser.add_argument("--json", metavar="OUT", type=Path, help="write all figures to this file")
    arguments = parser.parse_args()
    rate = arguments.rate if arguments.rate is not None else 0.0 if arguments.non_stream else 50.0
    if arguments.streams < 1 or arguments.seconds <= 0 or rate < 0 or not (rate or arguments.non_stream):
        parser.error("--streams, --seconds and --rate have to be above 0")
    settings = Settings(
        arguments.streams,
        rate,
        arguments.seconds,
        arguments.non_stream,
        arguments.in_step,
        arguments.prompt_bytes,
        arguments.tls,
    )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that children are ended
    try:
        result = measure(settings)
    except ChildFailed as error:
        print(f"tunnel_load: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 1
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")
    print("\n".join(report(result)))
    return 1 if result["errors"] else 0


if __name__ == "__main__":
    sys.exit(main())
