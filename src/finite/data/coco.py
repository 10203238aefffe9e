"""COCO: one JSON per split, with images, annotations and categories.

Category ids may have gaps and any order; the class number is the position among the sorted ids, and the map is kept in
`ImageSet.class_ids`. Files that number the same names otherwise are each read by their own list. An id is the same as a
number, as text and as 7.0. Masks are not read: an annotation is its bbox. Crowd regions are never a training target.
"""

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from finite.data.assemble import RawImage, RawObject, assemble, missing_labels
from finite.data.boxes import NumberFault, number
from finite.data.conventions import Convention, ids_off_by_one
from finite.data.index import Index, absent, escapes, fold, scan, split_of_folders, split_of_word, stem
from finite.data.sample import Finding, ImageSet
from finite.data.text import TextError, read_text, whole

_LIMIT = 2 << 30  # bytes of one JSON file
#: All that is read of a file. The rest, masks above all, is let go while it is parsed: it can be ten times as much.
_KEPT = frozenset(
    "images annotations categories id image_id category_id bbox iscrowd file_name width height name".split()
)


@dataclass
class _File:
    """One annotation file: its document, the split that its name or folder speaks of, its category names by id."""

    path: str
    document: dict[str, Any]
    split: str | None
    names: dict[Any, str] = field(default_factory=dict)


def read(root: Path, index: Index | None = None) -> ImageSet:
    """The COCO set below `root`: every JSON file that holds images and categories."""
    index = index or scan(root)
    findings: list[Finding] = []
    files = _files(index, findings)
    together: dict[frozenset, tuple[_File, Counter]] = {}  # files of one category list are judged as one
    for file in files:
        file.names = _names_of(file, findings)
        entries = (entry for entry in file.document["annotations"] if isinstance(entry, dict))
        _, used = together.setdefault(frozenset(file.names.items()), (file, Counter()))
        used.update(key for entry in entries if (key := _id(entry.get("category_id"))) is not None)
    refusals = list(filter(None, (ids_off_by_one(used, first.names, first.path) for first, used in together.values())))
    classes, numbers, agreed = _classes(files, findings)
    total = sum(len(file.document["annotations"]) for file in files)
    raws: dict[str, RawImage] = {}
    mentioned: set[str] = set()
    twice: RawImage | None = None  # the last one that is annotated by two entries
    for file in files:
        for raw in _read_file(index, file, mentioned, findings):
            earlier = raws.setdefault(raw.image, raw)
            if earlier is not raw:
                _merge(earlier, raw, findings)
                twice = raw
    missing_labels(index, mentioned, findings)
    if twice is not None and not agreed:
        reason = f"{twice.image} is annotated twice, by files that number the classes otherwise: which one is meant?"
        findings.append(Finding("duplicate_id", "refuse", f"{reason} Nothing is used until one is left", twice.file))
    image_set = assemble(index, "coco", list(raws.values()), Convention("xywh"), findings, classes, numbers)
    image_set.objects_total = total
    if refusals:
        findings += refusals
        image_set.splits = {"all": []}
    return image_set


def load_json(path: Path) -> tuple[Any, str | None]:
    """A JSON document, of its objects the keys in _KEPT, and the legacy code page that had to be assumed, if any. Raises
    TextError."""
    text = read_text(path, _LIMIT)
    try:
        document = json.loads(text.text, object_hook=_slim)
        halves = "\\ud" in text.text or "\\uD" in text.text
        return (_whole(document) if halves else document), text.code_page
    except (ValueError, RecursionError) as error:
        reason = "is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise TextError(f"is not JSON: {reason}") from error


def _slim(entry: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if key in _KEPT}


def _whole(value: Any) -> Any:
    """The document without half characters, which a name could not be printed or stored with."""
    if isinstance(value, str):
        return whole(value)
    if isinstance(value, list):
        return [_whole(item) for item in value]
    return {whole(key): _whole(item) for key, item in value.items()} if isinstance(value, dict) else value


def looks_like(path: Path) -> bool:
    """Whether a JSON file may be COCO: two of the keys that every COCO file has stand near its beginning or end (the
    third may be anywhere in a large one)."""
    try:
        with open(path, "rb") as file:
            head = file.read(1 << 20)
            file.seek(max(0, path.stat().st_size - (1 << 16)))
            tail = file.read()
    except OSError:
        return False
    both = (head + tail).replace(b"\0", b"")
    return sum(key in both for key in (b'"images"', b'"annotations"', b'"categories"')) >= 2


def _files(index: Index, findings: list[Finding]) -> list[_File]:
    found, others = [], []
    for path in index.with_suffix(".json"):
        if not looks_like(index.path(path)):
            continue
        try:
            document, code_page = load_json(index.path(path))
        except TextError as error:
            findings.append(Finding("unreadable_label", "drop_file", str(error), path))
            continue
        if code_page:
            findings.append(Finding("bad_encoding", "fix", f"is not UTF-8; read as {code_page}", path, value=code_page))
        if not isinstance(document, dict) or not isinstance(document.get("images"), list):
            others.append(path)
            continue
        if not isinstance(document.get("annotations"), list):
            document["annotations"] = []
        found.append(_File(path, document, split_of_word(stem(path)) or split_of_folders(path)))
    for path in others:  # a fault where it was to be the annotation, and just some other file where there is one
        findings.append(Finding("unreadable_label", "note" if found else "drop_file", "has no list of images", path))
    named = [file for file in found if isinstance(file.document.get("categories"), list)]
    if named or not found:
        found = named  # captions and image lists have no categories
    else:
        _name_by_number(found, findings)
    # person_keypoints_train2017 repeats what instances_train2017 holds.
    main = {file.split for file in found if "instances" in file.path.lower()}
    return [file for file in found if "instances" in file.path.lower() or file.split not in main]


def _name_by_number(files: list[_File], findings: list[Finding]) -> None:
    """Give files without any category the numbers that their annotations use as names."""
    for file in files:
        entries = (entry for entry in file.document["annotations"] if isinstance(entry, dict) and "bbox" in entry)
        used = {key for entry in entries if (key := _id(entry.get("category_id"))) is not None}
        file.document["categories"] = [{"id": key, "name": str(key)} for key in sorted(used, key=_id_order)]
        reason = "has no categories: classes are called by their numbers"
        findings.append(Finding("unknown_class", "note", reason, file.path))


def _names_of(file: _File, findings: list[Finding]) -> dict[Any, str]:
    """Category id -> class name of one file."""

    def say(kind: str, action: str, reason: str, value: str | None = None) -> None:
        findings.append(Finding(kind, action, reason, file.path, value=value))

    names: dict[Any, str] = {}
    for position, category in enumerate(file.document["categories"], start=1):
        key = _id(category.get("id")) if isinstance(category, dict) else None
        if key is None:
            say("unknown_class", "note", f"category {position} has no id", _short(category))
            continue
        written = category.get("name")
        name = str(written).strip() if isinstance(written, (str, int, float)) else ""
        if not name:
            say("missing_class", "note", f"category {key} has no name; called {key}")
            name = str(key)
        elif isinstance(written, str) and name != written:
            say("label_whitespace", "fix", f"blanks around the class name {name!r} stripped", repr(written))
        if names.setdefault(key, name) != name:
            reason = f"category id {key} is {names[key]!r} and {name!r}: which is meant? Nothing is used until one is left"
            say("duplicate_id", "refuse", reason, str(key))
    return names


def _classes(files: list[_File], findings: list[Finding]) -> tuple[list[str], dict[str, int], bool]:
    """The classes of all files in order, the number of each, and whether the files agree on them: else none has one."""
    names: dict[Any, str] = {}
    agreed = True
    for file in files:
        clash = next((key for key, name in file.names.items() if names.setdefault(key, name) != name), None)
        if clash is not None:
            agreed = False
            reason = (
                f"category id {clash} is {file.names[clash]!r} here and {names[clash]!r} in another file: each file is "
                "read by its own list"
            )
            findings.append(Finding("duplicate_id", "note", reason, file.path, value=str(clash)))
    if not agreed:
        ordered = (file.names[key] for file in files for key in sorted(file.names, key=_id_order))
        return list(dict.fromkeys(ordered)), {}, False
    for name, count in Counter(names.values()).items():
        if count > 1:
            ids = ", ".join(str(key) for key, other in names.items() if other == name)
            reason = f"{name!r} stands under the ids {ids}; taken as one class"
            findings.append(Finding("near_duplicate_class", "note", reason, value=name))
    classes = list(dict.fromkeys(names[key] for key in sorted(names, key=_id_order)))
    return classes, {name: key for key, name in reversed(names.items()) if isinstance(key, int)}, True


def _read_file(index: Index, file: _File, mentioned: set[str], findings: list[Finding]) -> list[RawImage]:
    def say(
        kind: str, action: str, reason: str, at: str = file.path, obj: int | None = None, value: Any = None
    ) -> None:
        findings.append(Finding(kind, action, reason, at, object=obj, value=None if value is None else _short(value)))

    entries: dict[Any, list[tuple[int, dict]]] = {}
    for position, entry in enumerate(file.document["images"], start=1):
        key = _id(entry.get("id")) if isinstance(entry, dict) else None
        if key is None or not isinstance(entry.get("file_name"), str):
            say("missing_image", "drop_image", f"images[{position}] has no id or no file_name", value=entry)
            continue
        entries.setdefault(key, []).append((position, entry))
    by_id: dict[Any, RawImage] = {}
    gone: set[Any] = set()  # ids whose picture is set aside, with a finding of its own
    for key, claims in entries.items():
        distinct = {entry["file_name"] for _, entry in claims}
        if len(distinct) > 1:
            where = " and ".join(f"images[{position}] {entry['file_name']}" for position, entry in claims[:2])
            if len(claims) > 2:
                where += f" and {len(claims) - 2} more"
            for _, entry in claims:
                found = _find_image(index, file, entry["file_name"])
                mentioned.update(found)
                say(
                    "duplicate_id",
                    "drop_image",
                    f"image id {key} is used by {where}: whose boxes are whose?",
                    found[0] if found else entry["file_name"],
                    value=key,
                )
            gone.add(key)
            continue
        name = claims[0][1]["file_name"]
        found = _find_image(index, file, name)
        mentioned.update(found)
        if len(found) != 1:
            gone.add(key)
            if found:
                say(
                    "ambiguous_image",
                    "drop_image",
                    f"more than one picture fits: {', '.join(found[:3])}",
                    name,
                    value=name,
                )
            elif other := absent(index, name):
                say(other[0], "drop_image", other[1], name)
            elif escapes(name):
                say(
                    "path_escape",
                    "drop_image",
                    "no picture here has this name, and the name leads out of the folder: not opened",
                    name,
                    value=name,
                )
            else:
                say("missing_image", "drop_image", f"listed in {file.path}, but the picture is not there", name)
            continue
        if (
            fold(stem(found[0])) != fold(stem(name))
            or found[0].rsplit(".", 1)[-1].lower() != name.rsplit(".", 1)[-1].lower()
        ):
            say("name_mismatch", "note", f"{found[0]} is taken", value=name)
        by_id[key] = RawImage(found[0], file.path, [], _size(claims[0][1]), file.split, unit="annotation")
    _read_annotations(file.document["annotations"], by_id, gone, file.names, say)
    return list(by_id.values())


def _read_annotations(annotations: list, by_id: dict[Any, RawImage], gone: set, names: dict[Any, str], say) -> None:
    """Add each annotation to its picture; `annotations` is used up on the way, so that they are not in memory twice."""
    used = Counter(_id(entry.get("id")) for entry in annotations if isinstance(entry, dict))
    seen: dict[int, dict] = {}  # the first of those that share an id
    for position, entry in enumerate(annotations, start=1):
        annotations[position - 1] = None
        if not isinstance(entry, dict):
            say("bad_number", "drop_object", f"annotations[{position}] is not an object", value=entry)
            continue
        given = _id(entry.get("id"))
        key = given if isinstance(given, int) else position
        called = f"annotation {key}"
        image_id = _id(entry.get("image_id"))
        raw = by_id.get(image_id)
        if raw is None:
            if image_id not in gone:
                said = _short(entry.get("image_id"))
                reason = f"{called} belongs to image id {said}, which is not listed"
                say("missing_image", "drop_object", reason, obj=key, value=said)
            continue
        if given in seen and given is not None:
            same = seen[given] == entry
            say(
                "duplicate_object" if same else "duplicate_id",
                "drop_object" if same else "note",
                f"{called}: this id is used twice" + ("" if same else "; both objects are kept"),
                raw.image,
                key,
            )
            if same:
                continue
        if used[given] > 1:
            seen[given] = entry
        category = _id(entry.get("category_id"))
        if category not in names:
            raw.lost += 1
            say(
                "unknown_class",
                "drop_object",
                f"{called}: category id {_short(entry.get('category_id'))} is not defined",
                raw.image,
                key,
                entry.get("category_id"),
            )
            continue
        box = entry.get("bbox")
        if not isinstance(box, list) or len(box) != 4:
            raw.lost += 1
            missing = box is None
            say(
                "missing_box" if missing else "bad_number",
                "drop_object",
                f"{called}: " + ("no bbox" if missing else "bbox is not a list of four numbers"),
                raw.image,
                key,
                box,
            )
            continue
        try:
            x, y, width, height = (number(value) for value in box)
        except NumberFault as fault:
            raw.lost += 1
            say(fault.kind, "drop_object", f"{called}: {fault}", raw.image, key, box)
            continue
        crowd = entry.get("iscrowd") in (1, True, "1")
        if crowd:
            say("crowd", "drop_object", f"{called} is a crowd region", raw.image, key)
        raw.objects.append(RawObject(names[category], (x, y, width, height), key, ignore=crowd))


def _find_image(index: Index, file: _File, name: str) -> list[str]:
    return index.find(name, file.path, file.split)


def _merge(first: RawImage, second: RawImage, findings: list[Finding]) -> None:
    """One picture listed twice, under two ids or in two files: its objects are taken together (repeats drop later)."""
    if first.split != second.split:
        findings.append(
            Finding(
                "duplicate_image",
                "note",
                f"LEAK: listed in {first.split} and in {second.split}; it stays in {first.split}",
                first.image,
                value=second.file,
            )
        )
        return
    findings.append(
        Finding(
            "duplicate_id",
            "note",
            f"listed twice ({first.file}, {second.file}); its objects are taken together",
            first.image,
        )
    )
    first.objects += second.objects
    first.lost += second.lost


def _size(entry: dict) -> tuple[float, float] | None:
    try:
        width, height = number(entry.get("width")), number(entry.get("height"))
    except NumberFault:
        return None
    return (width, height) if width > 0 and height > 0 else None


def _id(value: Any) -> int | str | None:
    """An id in one form, 7 for 7, 7.0 and "7"; None for what is no id."""
    if isinstance(value, str):
        text = value.strip()
        return int(text) if text.isdecimal() and len(text) < 19 and str(int(text)) == text else text
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _id_order(key: Any) -> tuple:
    return (isinstance(key, str), key)


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else text[:77] + "..."
