"""YAML text to a plain tree and the line of every key: ``${ENV}`` filled in, duplicate keys and keys without a value
refused (CONF-1)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

from iop.config.fields import Fault

__all__ = ["Lines", "read_tree"]

Path = tuple[str | int, ...]
Lines = dict[Path, int]

SOURCE_BYTES = 4 << 20
NODES = 200_000
DEPTH = 32
#: Below the sections, which may be named and left empty. Without it ``tls:`` with all of its lines commented out would
#: be no TLS, and ``client_ca:`` no certificates, without a word.
EMPTY = "nothing is written behind it; write a value, null for none, or leave it out"
HALF = "holds half a character (a surrogate such as \\ud800 without its pair)"

_VARIABLE = re.compile(r"\$\$\{|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}|(?P<odd>\$\{)")


def read_tree(text: str | bytes, env: Mapping[str, str]) -> tuple[Any, Lines, list[Fault]]:
    """Parses one document. Returns the tree, the line (from 1) of each path, and the faults met on the way.

    ``${NAME}`` is replaced by that variable and ``${NAME:-text}`` falls back to the text; ``$${`` stands for ``${``. It
    works inside single values only, so a variable cannot bring in structure. An unquoted value gets its type after
    that: ``capacity: ${SLOTS}`` is a number. An unreadable document yields ``(None, {}, faults)``.
    """
    if len(text) > SOURCE_BYTES:
        return None, {}, [Fault((), f"larger than {SOURCE_BYTES >> 20} MiB")]
    loader = None
    try:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        if root is None:
            return {}, {}, []
        walk = _Walk(loader, env)
        walk.visit(root, (), 0)
        if walk.unusable:
            return None, walk.lines, walk.faults
        return loader.construct_document(root), walk.lines, walk.faults
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where: Lines = {(): mark.line + 1} if mark else {}
        what = " ".join(filter(None, (error.context, error.problem))) or "not YAML"
        if "flow" in what:
            what += "; inside { } and [ ] a ${NAME} has to be quoted"
        return None, where, [Fault((), f"not valid YAML: {what}")]
    except RecursionError:
        return None, {}, [Fault((), f"nested deeper than {DEPTH}")]
    except (yaml.YAMLError, ValueError):
        # ReaderError (bytes that are no UTF-8, control characters), absurd numbers and dates.
        return None, {}, [Fault((), "not valid YAML: not UTF-8 text, or not a plain document")]
    finally:
        if loader is not None:
            loader.dispose()


class _Walk:
    """One pass over the node graph before values are built from it."""

    def __init__(self, loader: yaml.SafeLoader, env: Mapping[str, str]) -> None:
        self.lines: Lines = {}
        self.faults: list[Fault] = []
        self.unusable = False  # building values from this graph would not end, or would lose something
        self._loader = loader
        self._env = env
        self._visits = 0
        self._filled: set[int] = set()  # an anchored scalar is reached once per alias, and filled in once

    def visit(self, node: yaml.Node, path: Path, depth: int) -> None:
        self._visits += 1
        if self._visits > NODES or depth > DEPTH:
            # Also where an alias inside its own anchor ends.
            if not self.unusable:
                self.faults.append(Fault(path[:3], f"nested deeper than {DEPTH} or more than {NODES} values"))
            self.unusable = True
            return
        self.lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            self._mapping(node, path, depth)
        elif isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                self.visit(item, (*path, index), depth + 1)
        elif isinstance(node, yaml.ScalarNode):
            if not node.value and node.tag == "tag:yaml.org,2002:null" and len(path) > 1:
                self.faults.append(Fault(path, EMPTY))
            if "${" in node.value and id(node) not in self._filled:
                self._filled.add(id(node))
                self._fill(node, path)
            if not self._make_text(node):
                self.faults.append(Fault(path, HALF))

    def _mapping(self, node: yaml.MappingNode, path: Path, depth: int) -> None:
        first: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                self.lines[path] = line
                self.faults.append(Fault(path, "a key is a list or a mapping; keys are words"))
                self.unusable = True
                continue
            whole = self._make_text(key)
            name = key.value
            if not whole:
                self.faults.append(Fault((*path, name), HALF))
            if key.tag != "tag:yaml.org,2002:merge":
                key.tag = "tag:yaml.org,2002:str"  # 'on' or '1' as a key is that word
                if name in first:
                    self.lines[(*path, name)] = line
                    self.faults.append(Fault((*path, name), f"given twice, first on line {first[name]}"))
                    continue
                first[name] = line
                self.lines[(*path, name)] = line
            self.visit(value, (*path, name), depth + 1)

    @staticmethod
    def _make_text(node: yaml.ScalarNode) -> bool:
        """Joins surrogate pairs, which is how JSON may write a character. Half of one, from ``"\\ud800"`` or a
        variable's stray byte, is replaced, so that the file's other faults are still found; then the answer is no."""
        if node.value.isascii():
            return True
        units = node.value.encode("utf-16-le", "surrogatepass")
        node.value = units.decode("utf-16-le", "replace")
        return bool(node.value.encode("utf-16-le") == units)

    def _fill(self, node: yaml.ScalarNode, path: Path) -> None:
        def value(match: re.Match[str]) -> str:
            if match["odd"]:
                self.faults.append(
                    Fault(path, "'${' begins a variable: write ${NAME}, ${NAME:-text}, or $${ for itself")
                )
                return ""
            if not match["name"]:
                return "${"
            found = self._env.get(match["name"]) or match["default"]
            if found is None:
                self.faults.append(Fault(path, f"the environment variable {match['name']} is not set"))
                return ""
            return found

        before = len(self.faults)
        node.value = _VARIABLE.sub(value, node.value)
        if node.style is None and len(self.faults) == before:
            node.tag = self._loader.resolve(yaml.ScalarNode, node.value, (True, False))  # type: ignore[no-untyped-call]
