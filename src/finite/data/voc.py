"""Pascal VOC: one XML per picture, with or without ImageSets, in any folder layout.

The picture of an annotation is found by the annotation's own stem first, then by the <filename> written in it; <path>
is ignored, it belongs to another machine. Only an <object>'s own <bndbox> counts: those inside <part> are body parts.
Classes are ordered by a labelmap.txt where there is one, else by the alphabet.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from xml.etree.ElementTree import Element, ParseError

from defusedxml import ElementTree
from defusedxml.common import DefusedXmlException

from finite.data import class_list
from finite.data.assemble import RawImage, RawObject, assemble, missing_labels
from finite.data.boxes import NumberFault, number
from finite.data.conventions import Convention
from finite.data.index import Index, absent, basename, escapes, fold, scan, stem
from finite.data.sample import Finding, ImageSet
from finite.data.text import TextError, decode, read_bytes, read_text

_LIMIT = 32 << 20  # bytes of one XML file
_SIDES = ("xmin", "ymin", "xmax", "ymax")
_DECLARATION = re.compile(r"^\s*<\?xml[^>]*\?>")
_ENCODING = re.compile(rb"""<\?xml[^>]*encoding\s*=\s*["']([A-Za-z0-9._-]+)""")
_BARE_DOCTYPE = re.compile(r"<!DOCTYPE\s+[\w.:-]+\s*>")
_BARE_AMPERSAND = re.compile(r"&(?!(?:amp|lt|gt|quot|apos|#\d+|#x[0-9a-fA-F]+);)")
_MAIN = "imagesets/main"
_LISTS = {"train": "train", "val": "validation", "valid": "validation", "validation": "validation", "test": "test"}


def read(root: Path, voc_base: int = 1, index: Index | None = None) -> ImageSet:
    """The VOC set below `root`. `voc_base`: from what number its pixels are counted (0 or 1)."""
    index = index or scan(root)
    findings: list[Finding] = []
    raws: dict[str, RawImage] = {}
    for file in index.with_suffix(".xml"):
        raw = _read_file(index, file, findings)
        if raw is None:
            continue
        earlier = raws.get(raw.image)
        if earlier is None:
            raws[raw.image] = raw
            continue
        # Two annotations claim one picture: the one that has its name is right.
        loser = earlier if fold(stem(earlier.file)) != fold(stem(raw.image)) else raw
        raws[raw.image] = raw if loser is earlier else earlier
        findings.append(
            Finding(
                "duplicate_id", "drop_file", f"{raw.image} is annotated by {raws[raw.image].file} already", loser.file
            )
        )
    has_lists = _apply_lists(index, raws, findings)
    spoken_of = set(raws) | {image for file in index.with_suffix(".xml") for image in index.same_stem(file)}
    missing_labels(index, spoken_of, findings)
    convention = Convention("xyxy", base=voc_base, counts_from=voc_base)
    image_set = assemble(index, "voc", list(raws.values()), convention, findings, folder_splits=not has_lists)
    class_list.apply(image_set, index, class_list.LABELMAP)
    return image_set


def parse_xml(path: Path) -> tuple[Element, list[tuple[str, str, str]]]:
    """The root of an annotation file and what had to be mended, as (kind, reason, value).

    Raises TextError, ParseError, and DefusedXmlException for anything that declares entities.
    """
    data, notes = read_bytes(path, _LIMIT), []
    named = _ENCODING.match(data.lstrip())
    decoded = decode(data, named[1].decode() if named else None)
    if decoded.code_page is not None:
        notes.append(("bad_encoding", f"is not UTF-8; read as {decoded.code_page}", decoded.code_page))
    text = decoded.text
    text = _BARE_DOCTYPE.sub("", _DECLARATION.sub("", text.lstrip("\ufeff \t\r\n"), count=1), count=1)
    try:
        return ElementTree.fromstring(text, forbid_dtd=True), notes
    except ParseError:
        mended = _BARE_AMPERSAND.sub("&amp;", text)
        if mended == text:
            raise
        notes.append(("unreadable_label", "an & stands for itself where &amp; is due; read as meant", "&"))
        return ElementTree.fromstring(mended, forbid_dtd=True), notes


def is_annotation(path: Path) -> bool:
    """Whether the file begins like a VOC annotation (cheap: the first 4 kB are looked at)."""
    try:
        with open(path, "rb") as file:
            head = file.read(4096)
        return "<annotation" in decode(head[: len(head) // 4 * 4]).text
    except (OSError, TextError):
        return False


def _read_file(index: Index, file: str, findings: list[Finding]) -> RawImage | None:
    def say(kind: str, action: str, reason: str, obj: int | None = None, value: str | None = None) -> None:
        findings.append(Finding(kind, action, reason, file, object=obj, value=value))

    try:
        root, notes = parse_xml(index.path(file))
    except DefusedXmlException:
        say("xml_entity", "drop_file", "declares a document type or entities: refused unread")
        return None
    except (TextError, ParseError, ValueError) as error:
        say("unreadable_label", "drop_file", f"cannot be parsed: {error}")
        return None
    for kind, reason, value in notes:
        say(kind, "fix", reason, value=value)
    if root.tag.rpartition("}")[2] != "annotation":
        say("unreadable_label", "drop_file", f"is no annotation: its root is <{root.tag[:40]}>")
        return None
    image = _find_image(index, file, (root.findtext("filename") or "").strip(), say)
    if image is None:
        return None
    raw = RawImage(image, file, [], _size(root, say))
    for position, element in enumerate(root.findall("object"), start=1):
        values = _values(element, position, say)
        if values is None:
            raw.lost += 1
            continue
        difficult = (element.findtext("difficult") or "").strip() in ("1", "true", "True")
        raw.objects.append(RawObject(element.findtext("name") or "", values, number=position, ignore=difficult))
    return raw


def _find_image(index: Index, file: str, filename: str, say) -> str | None:
    found = index.find(file, file)
    if len(found) > 1 and filename:
        found = [image for image in found if fold(basename(image)) == fold(basename(filename))] or found
    by_stem = bool(found)
    if not found and filename:
        found = index.find(filename, file)
    if len(found) > 1:
        say("ambiguous_image", "drop_file", f"more than one picture fits: {', '.join(found[:3])}", value=filename)
        return None
    if not found:
        if other := absent(index, file, filename):
            say(other[0], "drop_file", other[1], value=filename)
        elif escapes(filename):
            say(
                "path_escape",
                "drop_file",
                "no picture here has this name, and the name leads out of the folder: not opened",
                value=filename,
            )
        else:
            say("missing_image", "drop_file", "its picture is not there", value=filename or stem(file))
        return None
    if by_stem and filename and fold(stem(filename)) != fold(stem(found[0])):
        say("name_mismatch", "note", f"the picture beside it, {found[0]}, is taken", value=filename)
    return found[0]


def _size(root: Element, say) -> tuple[float, float] | None:
    texts = [root.findtext(f"size/{side}") for side in ("width", "height")]
    try:
        width, height = (number(text or "") for text in texts)
    except NumberFault:
        width = height = 0.0
    if width > 0 and height > 0:
        return width, height
    shown = None if texts == [None, None] else " x ".join((text or "").strip()[:20] for text in texts)
    say("size_missing", "note", "no usable size; taken from the picture", value=shown)
    return None


def _values(element: Element, position: int, say) -> tuple[float, float, float, float] | None:
    boxes = element.findall("bndbox")
    if len(boxes) != 1:
        if boxes:
            say("several_boxes", "drop_object", f"{len(boxes)} boxes in one object", position)
        else:
            say("missing_box", "drop_object", "no <bndbox>", position)
        return None
    texts = [boxes[0].findtext(side) for side in _SIDES]
    absent = [side for side, text in zip(_SIDES, texts) if text is None]
    if absent:
        say("missing_box", "drop_object", f"no <{absent[0]}>", position)
        return None
    try:
        x0, y0, x1, y1 = (number(text) for text in texts)
    except NumberFault as fault:
        say(fault.kind, "drop_object", str(fault), position, " ".join(text.strip()[:20] for text in texts))
        return None
    return x0, y0, x1, y1


def _apply_lists(index: Index, raws: dict[str, RawImage], findings: list[Finding]) -> bool:
    """Set the split of each picture from ImageSets/Main; False where there are no lists."""
    lists = {}
    for file in index.with_suffix(".txt"):
        folders, name = file.split("/")[:-1], stem(file).lower()
        if "imagesets" in (folder.lower() for folder in folders) and name in (*_LISTS, "trainval"):
            lists.setdefault(name, []).append(file)
    main = {
        name: kept for name, files in lists.items() if (kept := [f for f in files if f"/{_MAIN}/" in f"/{f.lower()}"])
    }
    lists = main or lists  # those of Segmentation and Layout divide other pictures otherwise
    if "train" in lists:
        lists.pop("trainval", None)  # the union of the other two
    by_stem: dict[str, list[str]] = {}
    for image, raw in raws.items():
        by_stem.setdefault(fold(stem(image)), []).append(image)
        if fold(stem(raw.file)) != fold(stem(image)):
            by_stem.setdefault(fold(stem(raw.file)), []).append(image)
    for name in ("train", "trainval", "val", "valid", "validation", "test"):
        for file in lists.get(name, ()):
            _apply_list(index, file, _LISTS.get(name, "train"), raws, by_stem, findings)
    return bool(lists)


def _apply_list(
    index: Index,
    file: str,
    split: str,
    raws: dict[str, RawImage],
    by_stem: dict[str, list[str]],
    findings: list[Finding],
) -> None:
    try:
        text = read_text(index.path(file), _LIMIT)
    except TextError as error:
        findings.append(Finding("unreadable_label", "drop_file", str(error), file))
        return
    if text.code_page:
        findings.append(
            Finding("bad_encoding", "fix", f"is not UTF-8; read as {text.code_page}", file, value=text.code_page)
        )
    excused = {fold(stem(finding.file)) for finding in findings if finding.file}  # said already why it is not there
    for position, line in enumerate(text.text.splitlines(), start=1):
        entry = line.strip()
        if not entry:
            continue
        images = by_stem.get(fold(stem(entry)))
        if images is None:  # "000005 -1": a class list's flag
            *words, last = entry.split()
            entry = entry[: -len(last)].rstrip() if words and last in ("-1", "0", "1") else entry
            images = by_stem.get(fold(stem(entry)))
        if images is None:
            if fold(stem(entry)) not in excused:
                findings.append(
                    Finding(
                        "missing_image",
                        "note",
                        "the list names a picture that is not there or has no annotation",
                        file,
                        position,
                        value=entry[:100],
                    )
                )
            continue
        image = _nearest(index, images, entry, file)
        raw = raws[image]
        if raw.split not in (None, split):
            findings.append(
                Finding(
                    "duplicate_image",
                    "note",
                    f"LEAK: {image} is listed in {raw.split} and in {split}; it stays in {raw.split}",
                    file,
                    position,
                    value=entry[:100],
                )
            )
        raw.split = raw.split or split


def _nearest(index: Index, images: Sequence[str], entry: str, file: str) -> str:
    best = [image for image in index.find(entry, file) if image in images]
    return best[0] if best else images[0]
