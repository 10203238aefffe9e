"""Reading settings files so that every mistake can be named by file, line and key. Knows nothing of the schema.

The YAML is read as nodes, not as Python objects: that keeps the line of every key, shows a key given twice, and runs
nothing whatever the tags say. Scalars follow YAML 1.2 (1e-3 is a number, off is text), which PyYAML alone does not.
"""

import copy
import difflib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from finite.errors import UserError

Key = tuple[str | int, ...]  # ("stages", 0, "epochs")
MAX_BYTES = 1_000_000  # no settings file is larger; keeps a picture or a dump given by mistake from being parsed
#: Levels of lists and mappings in each other; the schema has four.
MAX_DEPTH = 50
STANDARD = "tag:yaml.org,2002:"
SHORT_NAMES = {"lr": "learning_rate", "wd": "weight_decay", "bs": "batch_size", "batch": "batch_size"}

#: YAML 1.2 core schema: what a plain scalar means, and the characters it may begin with.
CORE = (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    (
        "float",
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
)


class Loader(yaml.SafeLoader):
    """Composes nodes by YAML 1.2. Aliases are refused: a few lines of them can unfold to gigabytes."""

    yaml_implicit_resolvers: dict = {}

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()
            raise yaml.composer.ComposerError(
                None, None, f"alias *{event.anchor} is not supported; write the value out", event.start_mark
            )
        return super().compose_node(parent, index)


class Dumper(yaml.SafeDumper):
    """Quotes any text that YAML 1.1 or 1.2 would take for something else."""


for _name, _pattern, _first in CORE:
    Loader.add_implicit_resolver(STANDARD + _name, re.compile(rf"^(?:{_pattern})$"), _first)
    Dumper.add_implicit_resolver(STANDARD + _name, re.compile(rf"^(?:{_pattern})$"), _first)


def _scalar(kind: str, text: str) -> Any:
    """A scalar's value by its tag. ValueError when the text does not fit the tag (`!!int three`)."""
    if kind == "null":
        return None
    if kind == "bool":
        if text.lower() not in ("true", "false"):
            raise ValueError
        return text.lower() == "true"
    if kind == "int":
        return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))
    if kind == "float":
        return float(re.sub(r"^([-+]?)\.(inf|nan)$", r"\1\2", text.lower()))
    return text


def shown(value: Any) -> str:
    """A value as a message shows it: on one line, short, without control characters."""
    text = "empty" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def dotted(key: Key) -> str:
    text = ".".join(map(str, key))
    return text if text.isprintable() else repr(text)


def value(values: Any, key: str) -> Any:
    """What stands under a dotted key ("training.batch_size") of nested values; None where nothing does."""
    for part in key.split("."):
        values = values.get(part) if isinstance(values, Mapping) else None
    return values


def differing(old: Any, new: Any, key: str = "") -> list[str]:
    """Dotted keys under which two configurations, as nested dictionaries, differ."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        names = dict.fromkeys([*old, *new])
        return [d for name in names for d in differing(old.get(name), new.get(name), f"{key}.{name}".lstrip("."))]
    return [] if old == new else [key]


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with the values of `over`; groups key by key, anything else replaced. Nothing is shared with `base`."""
    result = copy.deepcopy(dict(base))
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(base.get(key), dict)
        result[key] = merge(base[key], value) if both else value
    return result


@dataclass
class Settings:
    """Values as read, the place of each ("config.yaml:14", "--set seed"), and what is wrong, in the order found."""

    values: dict[str, Any] = field(default_factory=dict)
    places: dict[Key, str] = field(default_factory=dict)
    problems: list[tuple[Key, str, str]] = field(default_factory=list)  # key, place, what is wrong

    def place(self, key: Key) -> str:
        """Where `key` was given, or the nearest group around it."""
        for length in range(len(key), -1, -1):
            if key[:length] in self.places:
                return self.places[key[:length]]
        return "settings"

    def complaints(self) -> list[str]:
        """One line for each problem, in the order of the file."""

        def order(problem: tuple[Key, str, str]) -> tuple[bool, int]:
            line = re.search(r":(\d+)$", problem[1])
            return problem[1].startswith("--set"), int(line[1]) if line else 0

        lines = []
        for key, place, what in sorted(self.problems, key=order):
            named = place == f"--set {dotted(key)}" or not key
            lines.append(f"{place}: {what}" if named else f"{place}: {dotted(key)}: {what}")
        return list(dict.fromkeys(lines))

    # ---- from nodes --------------------------------------------------------------------------------------------------

    def take(self, node: yaml.Node, key: Key, place: Any) -> Any:
        """The value of a node; notes its place and problems. `place` turns a mark of the text into a place."""
        self.places.setdefault(key, place(node.start_mark))
        kinds = {yaml.MappingNode: ("map",), yaml.SequenceNode: ("seq",)}
        kind = node.tag.removeprefix(STANDARD)
        if kind not in kinds.get(type(node), ("str", "int", "float", "bool", "null")):
            tag = node.tag.replace(STANDARD, "!!", 1)
            self.problems.append((key, place(node.start_mark), f"tag {tag} is not allowed; give a plain value"))
            return None
        if isinstance(node, yaml.MappingNode):
            return self._take_map(node, key, place)
        if isinstance(node, yaml.SequenceNode):
            return [self.take(item, (*key, position), place) for position, item in enumerate(node.value)]
        try:
            value = _scalar(kind, node.value)
        except ValueError:
            self.problems.append((key, place(node.start_mark), f"{shown(node.value)} cannot be read as {kind}"))
            return None
        if isinstance(value, float) and not math.isfinite(value):
            self.problems.append((key, place(node.start_mark), f"{node.value} is not allowed; give a finite number"))
        return value

    def _take_map(self, node: yaml.MappingNode, key: Key, place: Any) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for name, value in node.value:
            if not isinstance(name, yaml.ScalarNode):
                self.problems.append((key, place(name.start_mark), "a key must be a name, not a list or a group"))
                continue
            inner = (*key, name.value)
            if name.value in result:
                first = self.places[inner]
                self.problems.append((inner, place(name.start_mark), f"given twice, first at {first}; keep one"))
                continue
            self.places[inner] = place(name.start_mark)
            result[name.value] = self.take(value, inner, place)
        return result

    # ---- from the command line ---------------------------------------------------------------------------------------

    def override(self, text: str) -> None:
        """Set one value from "a.b.c=value" (value in YAML); what was there, a whole group or list too, is replaced."""
        name, equals, value = text.partition("=")
        name = name.strip()
        place = f"--set {name}"
        parts = name.split(".")
        if not equals or not all(parts):
            self.problems.append(((), f"--set {text.strip()}", "write KEY=VALUE, such as training.batch_size=16"))
            return
        try:
            holder, key = self._walk(parts)
            node = yaml.compose(value, Loader=Loader)
            if value[node.end_mark.index if node else 0 :].strip():
                raise LookupError("what follows # would be lost; put quotes around the value")
        except LookupError as error:
            self.problems.append(((), place, str(error.args[0])))
            return
        except (yaml.YAMLError, RecursionError) as error:
            reason = getattr(error, "problem", None) or "cannot be parsed"
            self.problems.append(((), place, f"{shown(value)} is not YAML ({reason}); put quotes around text"))
            return
        for inner in [inner for inner in self.places if inner[: len(key)] == key]:
            del self.places[inner]
        for length in range(1, len(key) + 1):
            self.places.setdefault(key[:length], place)
        holder[key[-1]] = None if node is None else self.take(node, key, lambda mark: place)

    def _walk(self, parts: Sequence[str]) -> tuple[Any, Key]:
        """The group or list that holds the last of `parts`, and the full key. Missing groups are made."""
        holder: Any = self.values
        key: Key = ()
        for position, part in enumerate(parts):
            if isinstance(holder, list):
                part = _item(holder, part, dotted(key))
            elif not isinstance(holder, dict):
                raise LookupError(f"{dotted(key)} is a single value and has no {part}")
            key = (*key, part)
            if position < len(parts) - 1:
                holder = holder[part] if isinstance(holder, list) else holder.setdefault(part, {})
        return holder, key

    # ---- what the schema says ----------------------------------------------------------------------------------------

    def explain(self, errors: Sequence[Mapping[str, Any]], known: Mapping[str, Any]) -> None:
        """Add pydantic's errors in plain words. `known` holds every key there is, for the suggestions."""
        bad = {key for key, _, _ in self.problems if key}
        for error in errors:
            key: Key = tuple(part for part in error["loc"] if part != "[key]")
            if any(key[:length] in bad for length in range(len(key) + 1)):
                continue  # said already
            unknown = error["type"] == "extra_forbidden" or error["loc"][-1:] == ("[key]",)
            what = _unknown(key, known) if unknown else _wrong(error)
            self.problems.append((key, self.place(key), what))


def _item(items: list[Any], part: str, name: str) -> int:
    """The position that `part` names in a list: a number, or the item's `name`."""
    names = [item.get("name") for item in items if isinstance(item, dict)]
    if part in names:
        return names.index(part)
    if part.isdecimal() and int(part) < len(items):
        return int(part)
    near = difflib.get_close_matches(part, [str(known) for known in names], 1)
    hint = f"did you mean {near[0]}?" if near else f"{name} has {len(items)}: {', '.join(map(str, names))}"
    raise LookupError(f"no item {part} in {name}; {hint}")


def _names(known: Any, key: Key = ()) -> Iterator[Key]:
    """All keys of nested groups; lists count with their first item."""
    items = known.items() if isinstance(known, Mapping) else enumerate(known[:1]) if isinstance(known, list) else ()
    for name, value in items:
        yield (*key, name)
        yield from _names(value, (*key, name))


def _unknown(key: Key, known: Mapping[str, Any]) -> str:
    level: Any = known
    for part in key[:-1]:
        level = level[0] if isinstance(level, list) else level[part]
    plain = {re.sub(r"[\W_]", "", str(name)).lower(): name for name in level}
    last = SHORT_NAMES.get(str(key[-1]), str(key[-1]))
    sought = re.sub(r"[\W_]", "", last).lower()
    near = [str(plain[name]) for name in difflib.get_close_matches(sought, plain, 1)]
    if not near:  # perhaps the right key in the wrong group
        elsewhere = {str(full[-1]): full for full in reversed(list(_names(known))) if isinstance(full[-1], str)}
        near = [dotted(elsewhere[name]) for name in difflib.get_close_matches(last, elsewhere, 1, 0.8)]
    return f"unknown key; did you mean {near[0]}?" if near else f"unknown key; known here: {', '.join(map(str, level))}"


def _wrong(error: Mapping[str, Any]) -> str:
    """What is wrong and what is allowed, from one of pydantic's errors (other than unknown keys)."""
    kind, value, limits = error["type"], error["input"], error.get("ctx", {})
    found = shown(value)
    if kind == "missing":
        return "is missing; give it a value"
    if kind == "value_error":
        return str(limits["error"]) if isinstance(value, dict) else f"{found}: {limits['error']}"
    for name, words in (("ge", "{} or more"), ("le", "{} or less"), ("gt", "above {}"), ("lt", "below {}")):
        if name in limits:
            return f"{found} is out of range; must be {words.format(limits[name])}"
    if kind == "literal_error":
        return f"{found} is not allowed; must be {limits['expected']}"
    if kind == "too_long":
        return f"{found} has {limits['actual_length']} items; must have {limits['max_length']}"
    needs = {
        "int": "a whole number",
        "float": "a number",
        "finite": "a finite number",
        "bool": "true or false",
        "string": "text",
        "tuple": "a list",
        "list": "a list",
        "dict": "a group of keys",
        "model": "a group of keys",
    }.get(kind.partition("_")[0])
    if needs is None:
        return f"{found}: {error['msg']}"
    if value is None:
        return f"is empty; must be {needs}"
    hint = ""
    if needs.endswith("number") and isinstance(value, str) and re.fullmatch(r"\s*[-+]?[\d.]+(e[-+]?\d+)?\s*", value):
        hint = " (without quotes)"
    elif needs == "a whole number" and isinstance(value, float) and value.is_integer():
        hint = f" (write {int(value)})"
    return f"{found} is of the wrong type; must be {needs}{hint}"


# ---- files -----------------------------------------------------------------------------------------------------------


def depth(text: str) -> int:
    """Levels of nesting in a YAML text, as far as the first one beyond MAX_DEPTH. Raises yaml.YAMLError."""
    level = deepest = 0
    for event in yaml.parse(text, Loader=Loader):
        level += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        deepest = max(deepest, level)
        if deepest > MAX_DEPTH:
            break
    return deepest


def read(path: Path) -> Settings:
    """The settings file `path` as values, places and problems.

    Raises UserError when there is nothing to go on with: not readable, not UTF-8, not YAML, empty, or not a mapping.
    """
    try:
        if not path.is_file():
            raise UserError(f"{path}: no such settings file; give one with --config")
        if path.stat().st_size > MAX_BYTES:
            raise UserError(f"{path}: is {path.stat().st_size} bytes long, too large for a settings file")
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); check the path and its permissions") from None
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}:{line}: is not UTF-8 text; save the file as UTF-8") from None
    try:
        if depth(text) > MAX_DEPTH:  # counted, because how deep Python may recurse is not ours alone to say
            raise UserError(f"{path}: is nested too deeply for a settings file")
        node = yaml.compose(text, Loader=Loader)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise UserError(f"{path}:{line}: holds the character {error.character:#x}, which YAML does not allow") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{path}:{mark.line + 1}:{mark.column + 1}"
        raise UserError(f"{place}: cannot be read as YAML: {error.problem or error.context}") from None
    if node is None:
        raise UserError(f"{path}: is empty; config.yaml at the top of the project shows every key")
    if not isinstance(node, yaml.MappingNode):
        raise UserError(f"{path}:{node.start_mark.line + 1}: is no mapping; settings are lines of the form key: value")
    result = Settings()
    result.places[()] = str(path)
    values = result.take(node, (), lambda mark: f"{path}:{mark.line + 1}")
    result.values = values or {}
    return result
