"""What a changed edge file changes at a running edge, and what of it has to wait for a restart (CONF-2)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from iop.config.edge import EdgeConfig
from iop.errors import ConfigError

__all__ = ["Change", "compare"]

#: Settings that a running edge takes over. All others, new ones included until they are named here, need a restart.
LIVE = frozenset(
    {
        "edge.drain_timeout_sec",
        "http.allow_anonymous",
        "http.api_keys",
        "http.cors_origins",
        "http.keys_file",
        "http.more_paths",
        "http.max_body_bytes",
        "http.max_buffered_body_bytes",
        "http.max_header_bytes",
        "http.stream_keepalive_sec",
        "http.client_idle_timeout_sec",
        "http.header_timeout_sec",
        "http.body_timeout_sec",
        "http.idle_timeout_sec",
        "http.tls",
        "http.max_connections",
        "transport.max_frame_bytes",
        "transport.stream_window_bytes",
        "transport.max_buffered_bytes",
        "transport.tls",
        "queue.timeout_ms",
        "queue.max_waiters",
        "queue.max_waiters_per_principal",
        "recovery.max_attempts",
        "recovery.max_body_bytes",
        "metrics.principals",
        "nodes",
        "models",
    }
)

#: Of these only what is behind them: a listener that has TLS goes on with other files, and one without gets none.
SWITCHES = frozenset({"http.tls", "transport.tls"})


@dataclass(frozen=True, slots=True)
class Change:
    """``config`` is what the edge runs from here on: the new file, with the running value of whatever
    ``needs_restart``. ``changed`` names what differs now. Names are paths of the file, entries by their ids; values,
    which may be secret, are not told."""

    config: EdgeConfig
    changed: tuple[str, ...]
    needs_restart: tuple[str, ...]


def compare(running: EdgeConfig, wanted: EdgeConfig) -> Change:
    """The difference. Raises ConfigError if what can be taken over now is not safe with what has to stay."""
    changed: list[str] = []
    needs_restart: list[str] = []
    update: dict[str, Any] = {}
    for name in EdgeConfig.model_fields:
        before, after = getattr(running, name), getattr(wanted, name)
        if before == after:
            continue
        if not isinstance(before, BaseModel):
            if name in LIVE:
                changed += _entries(name, before, after)
            else:
                needs_restart.append(name)
                update[name] = before
            continue
        kept: dict[str, Any] = {}
        for key in type(before).model_fields:
            old, new = getattr(before, key), getattr(after, key)
            if old != new:
                path = f"{name}.{key}"
                if path in LIVE and not (path in SWITCHES and None in (old, new)):
                    changed.append(path)
                else:
                    needs_restart.append(path)
                    kept[key] = old
        if kept:
            update[name] = after.model_copy(update=kept)
    config = wanted.model_copy(update=update) if update else wanted
    listen = config.http.listen
    keyless = not config.http.api_keys and config.http.keys_file is None
    if not listen.is_loopback and keyless and not config.http.allow_anonymous:
        # The file is sound, with the address that it names. With the one that stays it would open the edge to anybody.
        fault = (
            f"http.api_keys: the edge still listens on {listen}, which other machines reach, and would ask for no key; "
            "keep the keys, or restart the edge for its new http.listen"
        )
        raise ConfigError([fault])
    return Change(config, tuple(changed), tuple(needs_restart))


def _entries(name: str, before: Iterable[Any], after: Iterable[Any]) -> Iterator[str]:
    """What differs in a list of entries with ids, at any depth."""
    old, new = {entry.id: entry for entry in before}, {entry.id: entry for entry in after}
    told = False
    for key in [*old, *(key for key in new if key not in old)]:
        path = f"{name}[{key}]"
        if key not in new:
            yield f"{path} removed"
        elif key not in old:
            yield f"{path} added"
        elif old[key] != new[key]:
            yield from _entry(path, old[key], new[key])
        else:
            continue
        told = True
    if not told:
        yield f"{name} (order)"


def _entry(path: str, before: BaseModel, after: BaseModel) -> Iterator[str]:
    fields = [key for key in type(before).model_fields if getattr(before, key) != getattr(after, key)]
    for key in fields:
        value = getattr(after, key)
        if key == "providers":
            yield from _entries(f"{path}.providers", getattr(before, key), value)
        else:
            yield f"{path}.{key}"
    if not fields:  # the secret in a file or variable of the same name
        yield f"{path} token"
