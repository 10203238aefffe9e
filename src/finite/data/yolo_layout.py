"""What stands beside YOLO label files: class names and splits, from data.yaml, class lists and split lists.

YAML is read as plain strings, lists and dicts: no tag is ever acted on, and a class called "no" stays "no". A path in
it is compared with the folders that are there, from its end; so a path of another machine, or Roboflow's
"../train/images", finds its folder, and none leads outside.
"""

from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

import yaml

from finite.data.boxes import NumberFault, number
from finite.data.index import Index, basename, fold, parts, stem
from finite.data.sample import Finding
from finite.data.text import TextError, read_text, whole

_LIMIT = 64 << 20
_YAML_LIMIT = 4 << 20  # bytes
#: Plain strings, lists and dicts only. libyaml's is ten times as fast and has a limit of depth; Python's knows no other.
_LOADER = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
_KEYS = {"train": "train", "val": "validation", "valid": "validation", "validation": "validation", "test": "test"}
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
    texts: set[str] = field(default_factory=set)
    keypoints: bool = False  # rows carry keypoints after the box
    file: str | None = None  # where the classes are named
    _folders: set[PurePosixPath] = field(default_factory=set)

    def folders(self, index: Index) -> set[PurePosixPath]:
        """All folders that hold pictures, at any depth."""
        if not self._folders:
            self._folders = {parent for path in index.images for parent in PurePosixPath(path).parents}
        return self._folders


def read_layout(index: Index, findings: list[Finding]) -> Layout:
    """Class names and splits of the indexed folder."""
    layout = Layout()
    document, members = _read_yaml(index, layout, findings), {}
    if document is not None:
        layout.keypoints = "kpt_shape" in document
        for key, split in _KEYS.items():
            entries = document.get(key)
            for entry in entries if isinstance(entries, list) else [entries]:
                if isinstance(entry, str) and entry.strip():
                    members.setdefault(split, []).extend(_members(index, entry, layout, findings))
    if not layout.classes:
        _read_names(index, layout, findings)
    if not any(members.values()):
        members = {}
        for path in index.with_suffix(".txt"):
            split = _KEYS.get(stem(path).lower())
            if split and path not in layout.texts and _is_list(index, path):
                members.setdefault(split, []).extend(_from_list(index, path, layout, findings))
    layout.splits = _assign(members, layout.file, findings)
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
    paths = sorted(
        index.with_suffix(".yaml", ".yml"),
        key=lambda path: (path.count("/"), basename(path) not in ("data.yaml", "dataset.yaml"), path),
    )
    unreadable = []
    for path in paths:
        document = _load(index, path)
        if document is None:
            unreadable.append(path)
        elif names := _names(document.get("names")):
            layout.classes, layout.file = _checked(names, path, findings), path
            return document
    findings += [Finding("unreadable_label", "note", "cannot be parsed as YAML", path) for path in unreadable]
    return None


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


def _members(index: Index, entry: str, layout: Layout, findings: list[Finding]) -> list[str]:
    """The pictures of one entry of train, val or test: a folder, or a list file."""
    wanted = parts(entry)
    if entry.strip().lower().endswith(".txt"):
        lists = [path for path in index.with_suffix(".txt") if fold(basename(path)) == fold(basename(entry))]
        if lists:
            return _from_list(index, min(lists, key=lambda path: path.count("/")), layout, findings)
    elif not wanted:
        return list(index.images)
    folders = layout.folders(index)
    for length in range(len(wanted), 0, -1):
        tail = tuple(fold(part) for part in wanted[-length:])
        fitting = [folder for folder in folders if tuple(fold(part) for part in folder.parts[-length:]) == tail]
        if fitting:
            prefix = str(min(fitting, key=lambda folder: (len(folder.parts), str(folder)))) + "/"
            return [path for path in index.images if path.startswith(prefix)]
    findings.append(
        Finding(
            "missing_image",
            "note",
            "names a folder or list that is not there or holds no picture",
            layout.file,
            value=whole(entry[:100]),
        )
    )
    return []


def _is_list(index: Index, path: str) -> bool:
    """Whether most of the first lines of a text name pictures that are here."""
    try:
        lines = [line for line in read_text(index.path(path), _LIMIT).text.splitlines() if line.strip()][:20]
    except TextError:
        return False
    return bool(lines) and sum(bool(index.same_stem(line)) for line in lines) * 2 > len(lines)


def _from_list(index: Index, path: str, layout: Layout, findings: list[Finding]) -> list[str]:
    layout.texts.add(path)
    try:
        text = read_text(index.path(path), _LIMIT)
    except TextError as error:
        findings.append(Finding("unreadable_label", "drop_file", str(error), path))
        return []
    images = []
    for position, line in enumerate(text.text.splitlines(), start=1):
        if line.strip():
            found = index.find(line, path)
            images += found[:1]
            if not found:
                findings.append(
                    Finding(
                        "missing_image",
                        "note",
                        "the list names a picture that is not there",
                        path,
                        position,
                        value=line.strip()[:100],
                    )
                )
    return images


def _assign(members: dict[str, list[str]], file: str | None, findings: list[Finding]) -> dict[str, str]:
    """Picture -> split. Where all splits are the same pictures, the set is taken as undivided; a single shared picture
    is a leak and stays where it was named first."""
    sets = {split: set(images) for split, images in members.items() if images}
    if len(sets) > 1 and all(images == next(iter(sets.values())) for images in sets.values()):
        findings.append(
            Finding(
                "duplicate_image",
                "note",
                f"{' and '.join(sets)} name the same pictures: taken as one undivided set",
                file,
            )
        )
        return {}
    splits: dict[str, str] = {}
    for split, images in members.items():
        for image in images:
            earlier = splits.setdefault(image, split)
            if earlier != split:
                findings.append(
                    Finding(
                        "duplicate_image",
                        "note",
                        f"LEAK: named in {earlier} and in {split}; it stays in {earlier}",
                        image,
                    )
                )
    return splits
