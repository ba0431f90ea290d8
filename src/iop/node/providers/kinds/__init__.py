"""What a node knows about each kind of provider, one file each, of the name that :mod:`iop.kinds` has (EXEC-4).

An adapter says how its engine differs from a plain OpenAI-compatible server: which paths it has, how it wants its
connections treated, where its health and its load are asked. The tunnel does the rest, alike for all.
"""

from __future__ import annotations

from importlib import import_module

from iop.kinds import KINDS
from iop.node.providers.kind import Adapter

__all__ = ["ADAPTERS"]

ADAPTERS: dict[str, Adapter] = {kind.name: import_module(f"{__name__}.{kind.name}").ADAPTER for kind in KINDS}
