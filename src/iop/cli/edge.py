"""``iop-edge``: its command line. Some begin here: serve, check, demo, status, reload, run."""

from __future__ import annotations

import argparse
import functools
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from iop.cli import certify, completion, control, init, key, token, trace
from iop.cli.admin import admin_of, of_running_edge
from iop.cli.program import (
    Exit,
    Parser,
    Usage,
    config_file,
    console_or_json,
    main_of,
    until_eof,
    version,
    watch_input,
)

if TYPE_CHECKING:
    from iop.config.edge import EdgeConfig


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ``iop-edge``; returns the exit code."""
    return main_of(command_line(), argv)


def command_line() -> Parser:
    """The whole of it: every command with its options."""
    parser = Parser(prog="iop-edge", description="The edge of IOP: one HTTP endpoint, many LLM servers.")
    version(parser)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    serve = commands.add_parser("serve", help="run the edge", description="Runs the edge until SIGINT or SIGTERM.")
    config_file(serve)
    console_or_json(serve)
    until_eof(serve)
    serve.set_defaults(run=_serve)

    check = commands.add_parser(
        "check", help="check a configuration file", description="Reads the file, reports every fault, starts nothing."
    )
    config_file(check)
    check.set_defaults(run=_check)

    init.add(commands)
    token.add(commands)
    certify.add(commands)

    demo = commands.add_parser(
        "demo",
        help="run an edge and a node on this machine",
        description="Runs an edge and a node over loopback with a local model server, or the built-in echo provider.",
    )
    demo.add_argument("--once", metavar="PROMPT", help="send one streaming chat request, print the reply, exit")
    demo.add_argument("--echo", action="store_true", help="take the echo provider even if a model server answers")
    console_or_json(demo)
    demo.set_defaults(run=_demo)

    status = commands.add_parser("status", help="show a running edge", description="Shows what a running edge does.")
    of_running_edge(status)
    status.add_argument("--json", action="store_true", help="print /admin/status as it is")
    status.add_argument("--watch", action="store_true", help="show it again and again, until interrupted")
    status.add_argument(
        "--interval", metavar="SECONDS", type=_seconds, default=2.0, help="between two looks of --watch (default: 2)"
    )
    status.set_defaults(run=_status)

    reload = commands.add_parser(
        "reload",
        help="let a running edge read its file again",
        description="Lets a running edge read its file again and says what changed. With a fault in the file the edge "
        "goes on as it is, every fault is printed, and the exit code is 2.",
    )
    of_running_edge(reload)
    reload.set_defaults(run=_reload)

    run = commands.add_parser(
        "run",
        help="send one prompt through a running edge",
        description="Runs a prompt and prints the answer as it comes. With --model it waits for a free slot like any "
        "request; with --adapter and --target it goes straight to a node, past the queue. Ctrl-C cancels it.",
    )
    of_running_edge(run)
    run.add_argument("prompt", metavar="PROMPT", nargs="+", help="what to ask; - reads it from standard input")
    run.add_argument("--model", default="", help="a model of the edge, or one of its aliases")
    run.add_argument("--node", default="", help="the node to run at; not needed while only one is connected")
    run.add_argument("--adapter", default="", help="a provider of that node, or its kind if it is the only one of it")
    run.add_argument("--target", default="", help="the model's name at that provider")
    run.add_argument("--options", metavar="JSON", default="", help='such as {"max_tokens": 100}')
    run.add_argument("--session", metavar="ID", default="", help="a name of yours that is echoed on every event")
    run.add_argument("--background", action="store_true", help="print the run's id and leave; it goes on")
    run.add_argument("--timeout", metavar="SECONDS", type=_seconds, default=600.0, help="for all of it (default: 600)")
    run.add_argument("--json", action="store_true", help="print the run's events, one JSON object a line")
    run.set_defaults(run=_run)

    control.add(commands)
    trace.add(commands)
    key.add(commands)
    completion.add(commands, parser)
    return parser


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.01 <= value <= 86_400:
        raise argparse.ArgumentTypeError("write seconds, from 0.01 to 86400")
    return value


def _serve(arguments: argparse.Namespace) -> int:
    from iop.config.load import load_edge

    config = load_edge(arguments.config)
    from iop.edge.app import run

    watch_input(arguments)
    return run(config, functools.partial(load_edge, arguments.config), log_format=arguments.log_format)


def _check(arguments: argparse.Namespace) -> int:
    from iop.config.edge import without_effect
    from iop.config.keysfile import check_keys
    from iop.config.load import load_edge

    config = load_edge(arguments.config)
    check_keys(config.http)
    _check_listeners(arguments.config, config)
    providers = sum(len(node.providers) for node in config.nodes)
    print(
        f"{arguments.config}: ok; nodes: {len(config.nodes)}, providers: {providers}, models: {len(config.models)}; "
        f"clients come in on {config.http.listen}, nodes on {config.transport.listen}"
    )
    for text in without_effect(config):
        print(f"{arguments.config}: has no effect: {text}", file=sys.stderr)
    return Exit.OK


def _check_listeners(file: Path, config: EdgeConfig) -> None:
    from iop.cli.listeners import check_listeners

    check_listeners(
        file,
        {
            "http.listen": config.http.listen,
            "transport.listen": config.transport.listen,
            "admin.listen": config.admin.listen,
        },
    )


def _demo(arguments: argparse.Namespace) -> int:
    from iop.cli.demo import run

    return run(arguments.once, log_format=arguments.log_format, echo=arguments.echo)


def _status(arguments: argparse.Namespace) -> int:
    from iop.cli.status import show

    return show(admin_of(arguments), as_json=arguments.json, every_s=arguments.interval if arguments.watch else None)


def _reload(arguments: argparse.Namespace) -> int:
    from iop.cli.reload import reload

    return reload(admin_of(arguments))


def _run(arguments: argparse.Namespace) -> int:
    from iop.cli.run import read_prompt, run

    options = None
    if arguments.options:
        try:
            options = json.loads(arguments.options)
        except ValueError:
            raise Usage("--options: write a JSON object") from None
        if not isinstance(options, dict):
            raise Usage("--options: write a JSON object")
    direct = bool(arguments.adapter and arguments.target)
    if bool(arguments.model) is direct or (
        arguments.model and (arguments.node or arguments.adapter or arguments.target)
    ):
        raise Usage("name either --model, or --adapter and --target and perhaps --node")
    asked = {
        "model": arguments.model,
        "node": arguments.node,
        "adapter": arguments.adapter,
        "target": arguments.target,
        "prompt": read_prompt(arguments.prompt),
        "options": options,
        "session_id": arguments.session,
        "background": arguments.background,
    }
    return run(admin_of(arguments), asked, timeout_s=arguments.timeout, as_json=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
