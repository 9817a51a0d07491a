"""Reads YAML with the line of everything, so that a message can say where. Plain data only: no tags run code.

Scalars are read as in YAML 1.2's core schema: only ``true`` and ``false`` are booleans, ``1:30`` and dates are texts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml


class ScenarioError(Exception):
    """The file is not a valid scenario: where, what is wrong with which field, and what would be right."""

    def __init__(self, message: str, *, line: int = 1, field: str = "", allowed: Sequence[object] | None = None):
        super().__init__(message)
        self.message = message
        self.line = line
        self.field = field
        self.allowed = None if allowed is None else [str(each) for each in allowed]

    def __str__(self) -> str:
        where = f"line {self.line}: {self.field}: " if self.field else f"line {self.line}: "
        return (
            where
            + self.message
            + (f"; allowed: {', '.join(self.allowed) or 'nothing'}" if self.allowed is not None else "")
        )


class Section(dict[str, Any]):
    """A mapping that knows the line it begins on and the line of each of its keys."""

    def __init__(self, line: int):
        super().__init__()
        self.line = line
        self.lines: dict[str, int] = {}


class Items(list[Any]):
    """A list that knows the line of each of its items."""

    def __init__(self, line: int):
        super().__init__()
        self.line = line
        self.lines: list[int] = []


MAX_VALUES = 200_000


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, Any] = {}
    built = 0


_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"true|True|TRUE|false|False|FALSE"), list("tTfF"))
_Loader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"~|null|Null|NULL|"), ["~", "n", "N", ""])
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"[-+]?[0-9]+"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+)([eE][-+]?[0-9]+)?"),
    list("-+.0123456789"),
)
# A resolver matches from the start of a scalar; these must match all of it.
_Loader.yaml_implicit_resolvers = {
    first: [(tag, re.compile(f"(?:{pattern.pattern})$")) for tag, pattern in resolvers]
    for first, resolvers in _Loader.yaml_implicit_resolvers.items()
}


def read_yaml(path: Path) -> Section:
    """The file's mapping. Raises ScenarioError where it cannot be read, is not YAML, or has a key twice."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ScenarioError(f"is not UTF-8 text: {error.reason}") from None
    except OSError as error:
        raise ScenarioError(f"cannot be read: {error.strerror}") from None
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        found = _built(loader, node) if node is not None else None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise ScenarioError(
            f"is not YAML: {error.problem or error.context}", line=mark.line + 1 if mark else 1
        ) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ScenarioError(f"is not YAML: {error}") from None
    finally:
        loader.dispose()
    if not isinstance(found, Section):
        raise ScenarioError("must be a mapping with pools, teams and steps")
    return found


def _built(loader: _Loader, node: yaml.Node) -> Any:
    line = node.start_mark.line + 1
    loader.built += 1
    if loader.built > MAX_VALUES:
        # Ten short lines of aliases of aliases can stand for more than any memory holds.
        raise ScenarioError(
            f"holds more than {MAX_VALUES} values, an alias counting as all that it stands for", line=line
        )
    if isinstance(node, yaml.MappingNode):
        return _section(loader, node, line)
    if isinstance(node, yaml.SequenceNode):
        items = Items(line)
        for each in node.value:
            items.append(_built(loader, each))
            items.lines.append(each.start_mark.line + 1)
        return items
    if not node.tag.startswith("tag:yaml.org,2002:"):
        raise ScenarioError(f"tags such as {node.tag} are not used in scenarios", line=line)
    if node.tag == "tag:yaml.org,2002:int":
        return int(node.value)  # 010 is ten, as people read it
    return loader.construct_object(node, deep=True)


def _section(loader: _Loader, node: yaml.MappingNode, line: int) -> Section:
    section = Section(line)
    for key_node, value_node in node.value:
        key_line = key_node.start_mark.line + 1
        key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
        if not isinstance(key, str) or not key:
            raise ScenarioError("a key must be a word", line=key_line)
        if key in section:
            raise ScenarioError(f"is given twice, first on line {section.lines[key]}", line=key_line, field=key)
        section[key] = _built(loader, value_node)
        section.lines[key] = key_line
    return section
