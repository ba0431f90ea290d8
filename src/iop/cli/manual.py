"""What ``--help`` says beyond its options: examples of every command, and how the programs end."""

from __future__ import annotations

import argparse

__all__ = ["Layout", "epilog"]

_EXITS = """\
exit codes:
  0  ended as asked
  1  a port is taken, no edge answers, a run did not complete, or a fault of ours
  2  bad usage or configuration
  3  a credential, an identity or the protocol version was refused
  4  reconnect.max_attempts are used up
  130  Ctrl-C before a command was done"""

#: By program and command: a line to type, and what it does.
EXAMPLES: dict[str, tuple[tuple[str, str], ...]] = {
    "iop-edge": (
        ("iop-edge demo", "try it on this machine"),
        ("iop-edge init ./iop --host edge.example.org", "a first configuration, with certificates"),
        ("iop-edge serve -c ./iop/edge.yaml", "run it"),
        ("iop-edge status --watch", "see what it does"),
    ),
    "iop-edge serve": (("iop-edge serve -c edge.yaml --log-format json", "log lines for machines"),),
    "iop-edge check": (("iop-edge check -c edge.yaml", "every fault at once, with the line of each"),),
    "iop-edge init": (
        ("iop-edge init ./iop", "for this machine"),
        ("iop-edge init ./iop --host edge.example.org", "for nodes that reach it under this name"),
    ),
    "iop-edge token": (("iop-edge token gpu-2 -c edge.yaml", "a token for another node, and the lines it goes into"),),
    "iop-edge certify": (
        ("iop-edge certify ./iop gpu-2", "a certificate for another node"),
        ("iop-edge certify ./iop", "new ones for all, before they expire"),
    ),
    "iop-edge key": (
        ("iop-edge key new --principal alice -c edge.yaml", "a key without limits, shown once"),
        ("iop-edge key list -c edge.yaml", "who has one, and what it may do"),
    ),
    "iop-edge key new": (
        (
            "iop-edge key new --principal ci --models 'qwen*' --rpm 60 --expires 90d -c edge.yaml",
            "some models, 60 requests a minute, for three months",
        ),
    ),
    "iop-edge key list": (("iop-edge key list --json --file keys.json", "for scripts, from the file itself"),),
    "iop-edge key revoke": (
        ("iop-edge key revoke 3f9a1c0b7d2e -c edge.yaml", "one key, by its id"),
        ("iop-edge key revoke --principal alice -c edge.yaml", "all that one has"),
    ),
    "iop-edge demo": (
        ("iop-edge demo", "until Ctrl-C; it prints the lines to call it with"),
        ('iop-edge demo --once "Why is the sky blue?"', "one answer, then the end"),
    ),
    "iop-edge status": (
        ("iop-edge status --json", "for scripts"),
        ("iop-edge status --watch --interval 1", "a table in place, every second"),
        ("iop-edge status --admin 127.0.0.1:9091", "of the edge that has its admin listener there"),
    ),
    "iop-edge reload": (("iop-edge reload -c edge.yaml", "what changed, or every fault of the file"),),
    "iop-edge run": (
        ('iop-edge run --model llama "Why is the sky blue?"', "waits for a slot like any request"),
        ("iop-edge run --node gpu-1 --adapter vllm --target Qwen/Qwen3-8B - < prompt.txt", "straight to one provider"),
    ),
    "iop-edge drain": (
        ("iop-edge drain --wait gpu-1", "a node, before its machine restarts"),
        ("iop-edge drain provider:gpu-1-vllm", "one provider, also if a node is called so, too"),
    ),
    "iop-edge undrain": (("iop-edge undrain gpu-1", "work for it again"),),
    "iop-edge requests": (("iop-edge requests", "what waits and runs, the oldest first"),),
    "iop-edge trace": (
        ("iop-edge trace req_4a6cbd2a2bd2bb1d9f33a7c5", "by the x-request-id of its answer"),
        ("iop-edge trace --json my-request-7", "by the x-request-id that its client sent"),
    ),
    "iop-edge ollama": (
        ("iop-edge ollama gpu-1 ps", "the models that are in its memory"),
        ("iop-edge ollama gpu-1 show llama3.2:3b", "what it knows of one"),
    ),
    "iop-edge cancel": (
        ("iop-edge cancel req_4a6cbd2a2bd2bb1d9f33a7c5", "the request whose answer has that x-request-id"),
    ),
    "iop-edge completion": (
        ("iop-edge completion bash > ~/.local/share/bash-completion/completions/iop-edge", "for bash"),
        ('iop-edge completion zsh > "${fpath[1]}/_iop-edge"', "for zsh"),
        ("iop-edge completion fish > ~/.config/fish/completions/iop-edge.fish", "for fish"),
    ),
    "iop-node": (
        ("iop-node join edge.example.org:7443 --token T", "run a node without a file; `iop-edge init` prints the line"),
        ("iop-node serve -c node.yaml", "run it with one"),
    ),
    "iop-node serve": (("iop-node serve -c node.yaml --log-format json", "log lines for machines"),),
    "iop-node check": (("iop-node check -c node.yaml", "every fault at once, with the line of each"),),
    "iop-node join": (
        ("iop-node join edge.example.org:7443 --token T", "over TLS, to the edge whose CA the token names"),
        ("IOP_NODE_TOKEN=T iop-node join 127.0.0.1:7443", "with a token that no other user of the machine sees"),
    ),
    "iop-node completion": (
        ("iop-node completion bash > ~/.local/share/bash-completion/completions/iop-node", "for bash"),
    ),
}


class Layout(argparse.HelpFormatter):
    """argparse's, but for paragraphs whose lines are kept as they are: those that begin with a word and a colon."""

    def add_argument(self, action: argparse.Action) -> None:
        super().add_argument(action)
        if isinstance(action, argparse._SubParsersAction):
            self._action_max_length += self._indent_increment  # which argparse forgets for the commands below

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        kept = [p if p.partition("\n")[0].endswith(":") else super(Layout, self)._fill_text(p, width, indent)
                for p in text.split("\n\n")]  # fmt: skip
        return "\n\n".join(kept)


def epilog(prog: str) -> str:
    """What stands below the options of a program or of one of its commands."""
    lines = []
    for line, what in EXAMPLES.get(prog, ()):
        lines += [f"  $ {line}", f"      {what}"]
    parts = ["\n".join(["examples:", *lines])] if lines else []
    if " " not in prog:
        parts.append(_EXITS)
    return "\n\n".join(parts)
