"""What stands beside YOLO label files: class names from data.yaml or a class list, and the splits (yolo_splits).

YAML is read as plain strings, lists and dicts: no tag is ever acted on, and a class called "no" stays "no".
"""

from dataclasses import dataclass, field
from typing import Any

import yaml

from finite.data.boxes import NumberFault, number
from finite.data.index import Index, basename
from finite.data.sample import Finding
from finite.data.text import TextError, read_text, whole
from finite.data.yolo_splits import KEYS, names_splits, read_splits

_LIMIT = 64 << 20
_YAML_LIMIT = 4 << 20  # bytes
#: Plain strings, lists and dicts only. libyaml's is ten times as fast and has a limit of depth; Python's knows no other.
_LOADER = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
_DATA_YAML = ("data.yaml", "dataset.yaml", "data.yml", "dataset.yml")
_NAME_FILES = (
    "classes.txt",
    "obj.names",
    "classes.names",
    "labels.txt",
    "names.txt",
    "predefined_classes.txt",
    "_darknet.labels",
)


@dataclass
class Layout:
    """Class names by number, the split of each picture (empty: none declared), the texts that are no label files."""

    classes: list[str] = field(default_factory=list)
    splits: dict[str, str] = field(default_factory=dict)
    folder_splits: bool = True  # whether the folders' names may say the splits
    texts: set[str] = field(default_factory=set)
    keypoints: bool = False  # rows carry keypoints after the box
    file: str | None = None  # where the classes are named


def read_layout(index: Index, findings: list[Finding]) -> Layout:
    """Class names and splits of the indexed folder."""
    layout = Layout()
    document = _read_yaml(index, layout, findings)
    if document is not None:
        layout.keypoints = "kpt_shape" in document
    else:
        _read_names(index, layout, findings)
    layout.splits, layout.folder_splits = read_splits(index, document, layout.file, layout.texts, findings)
    return layout


def is_dataset_yaml(index: Index, path: str) -> bool:
    """Whether a YAML file names classes, as a YOLO data.yaml does."""
    document = _load(index, path)
    return document is not None and bool(_names(document.get("names")))


def _load(index: Index, path: str) -> dict[str, Any] | None:
    try:
        text = read_text(index.path(path), _YAML_LIMIT).text
        if "names" not in text:  # some other YAML, which may be large, and parsing is slow
            return {}
        document = yaml.load(text, Loader=_LOADER)
    except (TextError, yaml.YAMLError, RecursionError, ValueError):
        return None
    return document if isinstance(document, dict) else None


def _read_yaml(index: Index, layout: Layout, findings: list[Finding]) -> dict[str, Any] | None:
    """The document that names the classes. Tools leave other YAML files that do (args.yaml of a training): one called
    data.yaml or with splits goes first, then the shallowest."""
    documents: dict[str, dict[str, Any]] = {}
    unreadable = []
    for path in index.with_suffix(".yaml", ".yml"):
        document = _load(index, path)
        if document is None:
            unreadable.append(path)
        elif _names(document.get("names")):
            documents[path] = document
    if not documents:
        findings += [Finding("unreadable_label", "note", "cannot be parsed as YAML", path) for path in unreadable]
        return None

    def rank(path: str) -> tuple:
        called, splits = basename(path).lower() in _DATA_YAML, names_splits(documents[path])
        return not (called or splits), path.count("/"), not called, not splits, path

    best, *rest = sorted(documents, key=rank)
    document = documents[best]
    names = _names(document["names"])
    layout.classes, layout.file = _checked(names, best, findings), best
    others = [
        path
        for path, other in ((path, documents[path]) for path in rest)
        if _names(other["names"]) != names or (names_splits(other) and any(other.get(k) != document.get(k) for k in KEYS))
    ]
    if others:
        more = f" and {len(others) - 3} more" if len(others) > 3 else ""
        reason = f"this one is read for classes and splits, not {', '.join(others[:3])}{more}, which say otherwise"
        findings.append(Finding("several_files", "note", reason, best))
    count = document.get("nc")
    if isinstance(count, str) and count.strip().isdecimal() and len(count) < 9 and int(count) != len(layout.classes):
        reason = f"nc is {int(count)}, but {len(layout.classes)} classes are named: the names count"
        findings.append(Finding("class_count", "note", reason, best, value=count.strip()))
    return document


def _names(value: Any) -> dict[int, str]:
    """Class names by number from a list or a dict; only plain text counts, anything nested is no name."""
    if isinstance(value, list):
        pairs = list(enumerate(value))
    elif isinstance(value, dict):
        pairs = []
        for key, name in value.items():
            try:
                pairs.append((int(number(key)), name))
            except NumberFault:
                continue
    else:
        pairs = []
    return {key: whole(name) for key, name in pairs if isinstance(name, str) and 0 <= key < 100_000}


def _checked(names: dict[int, str], file: str, findings: list[Finding]) -> list[str]:
    """Names as a list (a number without a name is called by it), blanks stripped and said."""
    classes: list[str] = []
    first: dict[str, int] = {}
    for position in range(max(names) + 1):
        written = names.get(position, str(position))
        name = written.strip() or str(position)
        if name != written:
            findings.append(
                Finding(
                    "label_whitespace",
                    "fix",
                    f"blanks around the class name {name!r} stripped",
                    file,
                    value=repr(written),
                )
            )
        if first.setdefault(name, position) != position:
            findings.append(
                Finding(
                    "near_duplicate_class",
                    "note",
                    f"{name!r} is named under the numbers {first[name]} and {position}",
                    file,
                    value=name,
                )
            )
        classes.append(name)
    return classes


def _read_names(index: Index, layout: Layout, findings: list[Finding]) -> None:
    for path in sorted(index.others, key=lambda path: (path.count("/"), path)):
        if basename(path).lower() not in _NAME_FILES and not path.lower().endswith(".names"):
            continue
        try:
            text = read_text(index.path(path), _LIMIT)
        except TextError as error:
            findings.append(Finding("unreadable_label", "drop_file", str(error), path))
            continue
        if text.code_page:
            findings.append(
                Finding("bad_encoding", "fix", f"is not UTF-8; read as {text.code_page}", path, value=text.code_page)
            )
        names = {position: line for position, line in enumerate(text.text.rstrip().splitlines())}
        if names:
            layout.classes, layout.file = _checked(names, path, findings), path
            return
