"""CSV and TSV: a row per object, in the many headers and dialects people use.

Columns are found by name (case, blanks and punctuation ignored); a file without a header is read where its columns can be
told by their content, and says so. Corners, left/top/width/height and centre forms are told by the names; numbers that are
all fractions of one are fractions of the picture. A row with a picture's name and nothing else says that it holds no object.
"""

import csv
import io
import os
import re
from dataclasses import dataclass

from pathlib import Path, PurePosixPath

from finite.data.assemble import RawImage, RawObject, assemble, missing_labels
from finite.data.boxes import Box, NumberFault, number
from finite.data.conventions import Convention
from finite.data.images import SUFFIXES
from finite.data.index import Index, escapes, fold, scan, split_of_folders, split_of_word, stem
from finite.data.sample import Finding, ImageSet
from finite.data.text import Text, TextError, read_text

_LIMIT = 1 << 30
_IMAGE = ("image", "filename", "file", "imagename", "imagefile", "imagepath", "imageid", "img", "imgname", "imgid", "filepath",
          "path", "picture", "photo", "fname", "imageurl", "externalid", "name")
_LABEL = ("label", "class", "classname", "category", "categoryname", "labelname", "labels", "classes", "species", "object",
          "classid", "categoryid", "labelid", "name", "type")
_SPLIT = ("split", "set", "subset", "usage", "dataset", "mlusage")
_BOX_TEXT = ("bbox", "box", "boundingbox")
_BOXES = (("xyxy", ("xmin", "ymin", "xmax", "ymax")), ("xyxy", ("x0", "y0", "x1", "y1")), ("xyxy", ("x1", "y1", "x2", "y2")),
          ("xyxy", ("left", "top", "right", "bottom")), ("xyxy", ("minx", "miny", "maxx", "maxy")),
          ("xyxy", ("xtl", "ytl", "xbr", "ybr")), ("xyxy", ("bboxxmin", "bboxymin", "bboxxmax", "bboxymax")),
          ("xyxy", ("bboxx1", "bboxy1", "bboxx2", "bboxy2")), ("xyxy", ("xstart", "ystart", "xend", "yend")),
          ("cxcywh", ("xcenter", "ycenter", "width", "height")), ("cxcywh", ("centerx", "centery", "width", "height")),
          ("cxcywh", ("cx", "cy", "w", "h")), ("cxcywh", ("cx", "cy", "width", "height")),
          ("cxcywh", ("xcenter", "ycenter", "w", "h")), ("cxcywh", ("xcentre", "ycentre", "width", "height")),
          ("xywh", ("x", "y", "w", "h")), ("xywh", ("x", "y", "width", "height")), ("xywh", ("left", "top", "width", "height")),
          ("xywh", ("xmin", "ymin", "width", "height")), ("xywh", ("bboxx", "bboxy", "bboxw", "bboxh")),
          ("xywh", ("bboxx", "bboxy", "bboxwidth", "bboxheight")), ("xywh", ("bboxleft", "bboxtop", "bboxwidth", "bboxheight")))
_SIZES = (("imagewidth", "imageheight"), ("imgwidth", "imgheight"), ("imgw", "imgh"), ("imagew", "imageh"), ("width", "height"))
WANTED = "wanted columns: image (or filename), label (or class), xmin, ymin, xmax, ymax"


@dataclass(frozen=True)
class Columns:
    """Where the columns stand. `box` holds four positions, or one whose text holds four numbers."""

    image: int
    label: int | None
    box: tuple[int, ...]
    form: str
    size: tuple[int, int] | None = None
    split: int | None = None


@dataclass
class _Row:
    line: int
    image: str
    label: str | None
    box: list[str]
    size: list[str]
    split: str


@dataclass
class _Table:
    path: str
    form: str
    rows: list[_Row]
    comma: bool                     # decimal commas are possible: the columns are separated by something else


def read(root: Path, index: Index | None = None) -> ImageSet:
    """The tables below `root` as one set. A table that repeats another one is read once."""
    index = index or scan(root)
    findings: list[Finding] = []
    tables: list[_Table] = []
    contents: dict[tuple, str] = {}
    faults: list[Finding] = []
    for path in index.with_suffix(".csv", ".tsv"):
        table = _read_table(index, path, findings, faults)
        if table is None:
            continue
        content = (table.form, tuple(sorted((row.image, row.label or "", *row.box) for row in table.rows)))
        if content in contents:
            findings.append(Finding("duplicate_id", "note", f"holds the same rows as {contents[content]}: read once", path))
            continue
        contents[content] = path
        tables.append(table)
    # A table without usable columns is a fault where it was to be the annotation, and some other table where one was found.
    findings += [Finding(f.kind, "note" if tables else "refuse", f.reason, f.file, f.line, value=f.value) for f in faults]
    forms = {table.form for table in tables}
    if len(forms) > 1:
        tables = [table for table in tables if table.form == tables[0].form]
        findings.append(Finding("format_mixup", "refuse", f"tables with boxes as {' and '.join(sorted(forms))} in one folder: give "
                                "one of them as data.root", tables[0].path))
    raws: dict[tuple[str, str], RawImage] = {}
    mentioned: set[str] = set()
    for table in tables:
        _read_rows(index, table, raws, mentioned, findings)
    missing_labels(index, mentioned, findings)
    merged = _one_per_image(raws, findings)
    normalised = _are_fractions([obj.values for raw in merged for obj in raw.objects])
    image_set = assemble(index, "csv", merged, Convention(tables[0].form if tables else "xyxy", normalised), findings)
    if len(forms) > 1:
        image_set.splits = {"all": []}
    return image_set


def looks_like(index: Index, path: str) -> bool:
    """Whether the columns of a table can be told."""
    try:
        text = _head(read_text(index.path(path), _LIMIT))
    except TextError:
        return False
    return _find_columns(index, text)[0] is not None


def _head(text: Text, lines: int = 30) -> str:
    return "\n".join(text.text[:1 << 16].splitlines()[:lines])


def _plain(name: str) -> str:
    return re.sub(r"[\W_]+", "", name.casefold())


def columns_of(header: list[str]) -> Columns | None:
    """The columns by their names; None where picture or box cannot be told."""
    plain = [_plain(name) for name in header]
    where = {name: plain.index(name) for name in plain}
    box = next(((form, tuple(where[name] for name in names)) for form, names in _BOXES if all(n in where for n in names)), None)
    if box is None:
        text = next((where[name] for name in _BOX_TEXT if name in where), None)
        box = None if text is None else ("xywh", (text,))
    image = next((where[name] for name in _IMAGE if name in where), None)
    if box is None or image is None:
        return None
    label = next((where[name] for name in _LABEL if name in where and where[name] != image), None)
    size = next((tuple(where[name] for name in names) for names in _SIZES if all(n in where and where[n] not in box[1]
                                                                                 for n in names)), None)
    return Columns(image, label, box[1], box[0], size, next((where[name] for name in _SPLIT if name in where), None))


def _columns_by_content(row: list[str]) -> Columns | None:
    """The columns of a table without a header: one picture's name, four numbers, at most one other text."""
    names = [i for i, cell in enumerate(row) if os.path.splitext(cell.strip())[1].lower() in SUFFIXES]
    numbers = [i for i, cell in enumerate(row) if _is_number(cell)]
    rest = [i for i in range(len(row)) if i not in names and i not in numbers and row[i].strip()]
    if len(names) != 1 or len(numbers) != 4 or len(rest) > 1:
        return None
    return Columns(names[0], rest[0] if rest else None, tuple(numbers), "xyxy")


def _find_columns(index: Index, text: str) -> tuple[Columns | None, str, int, bool]:
    """(columns, separator, lines before the first row of data, whether there is a header)."""
    lines = text.split("\n")
    skip = 0
    while skip < len(lines) and _is_preamble(index, lines[skip]):
        skip += 1
    for has_header, told in ((True, columns_of), (False, _columns_by_content)):
        for separator in (",", ";", "\t", "|"):
            cells = next(_cells(lines[skip], separator), (0, []))[1] if skip < len(lines) else []
            columns = told(cells)
            if columns is not None:
                return columns, separator, skip + has_header, has_header
    return None, ",", skip, False


def _is_preamble(index: Index, line: str) -> bool:
    """A blank line, Excel's "sep=;", or a comment (a picture may be called "#1.jpg", so the first cell decides)."""
    text = line.strip()
    comment = text.startswith("#") and not index.same_stem(re.split(r"[,;\t|]", text)[0])
    return not text or comment or re.fullmatch(r"sep=.", text) is not None


def _cells(text: str, separator: str):
    """(line number, cells) of each row, by the csv module."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, skipinitialspace=True)
    while True:
        line = reader.line_num + 1
        try:
            row = next(reader)
        except StopIteration:
            return
        yield line, row


def _read_table(index: Index, path: str, findings: list[Finding], faults: list[Finding]) -> _Table | None:
    try:
        text = read_text(index.path(path), _LIMIT)
        body = text.text.replace("\0", "")
        columns, separator, skip, has_header = _find_columns(index, _head(Text(body)))
    except (TextError, csv.Error) as error:
        faults.append(Finding("unreadable_label", "drop_file", str(error), path))
        return None
    if columns is None:
        first = next((line for line in body.splitlines() if line.strip()), "")
        faults.append(Finding("bad_header", "drop_file", f"columns cannot be told by name; {WANTED}", path, 1, value=first[:100]))
        return None
    if text.code_page:
        findings.append(Finding("bad_encoding", "fix", f"is not UTF-8; read as {text.code_page}", path, value=text.code_page))
    if not has_header:
        findings.append(Finding("bad_header", "fix", f"no header: columns told by their content as picture {columns.image + 1}, "
                                f"box {', '.join(str(i + 1) for i in columns.box)} (left, top, right, bottom)", path, 1))
    if columns.label is None:
        findings.append(Finding("missing_class", "fix", "no class column: every object is called 'object'", path, 1))
    rows = []
    try:
        for line, cells in _cells(body, separator):
            if line > skip and any(cell.strip() for cell in cells):
                rows.append(_row(line, cells, columns))
    except csv.Error as error:
        findings.append(Finding("unreadable_label", "note", f"breaks off: {error}; the rows above are read", path, line + 1))
    return _Table(path, columns.form, rows, separator != ",")


def _row(line: int, cells: list[str], columns: Columns) -> _Row:
    def cell(position: int | None) -> str:
        return cells[position] if position is not None and position < len(cells) else ""

    box = [cell(i).strip() for i in columns.box]
    if len(box) == 1 and box[0]:
        box = [part for part in re.split(r"[,;\s]+", box[0].strip("[](){}\"' ")) if part]
    elif len(box) == 1:
        box = [""] * 4
    return _Row(line, cell(columns.image).strip(), None if columns.label is None else cell(columns.label), box,
                [cell(i) for i in columns.size or ()], cell(columns.split))


def _read_rows(index: Index, table: _Table, raws: dict[tuple[str, str], RawImage], mentioned: set[str],
               findings: list[Finding]) -> None:
    split_of_file = split_of_word(stem(PurePosixPath(table.path).stem)) or split_of_folders(table.path)
    found_before: dict[str, str | None] = {}
    unknown: dict[str, list[int]] = {}
    for row in table.rows:
        def say(kind: str, action: str, reason: str, value: str) -> None:
            findings.append(Finding(kind, action, reason, table.path, row.line, value=value[:100]))

        if not row.image:
            say("missing_image", "drop_object", "no picture named", " ".join(row.box))
            continue
        if row.image not in found_before:
            found = index.find(row.image, table.path, split_of_file)
            mentioned.update(found)
            found_before[row.image] = found[0] if len(found) == 1 else None
            if len(found) > 1:
                say("ambiguous_image", "drop_image", f"more than one picture fits: {', '.join(found[:3])}", row.image)
            elif found and fold(PurePosixPath(found[0]).name) != fold(re.split(r"[\\/]", row.image)[-1]) \
                    and os.path.splitext(row.image)[1].lower() in SUFFIXES:
                say("name_mismatch", "note", f"{found[0]} is taken", row.image)
        image = found_before[row.image]
        if image is None:
            unknown.setdefault(row.image, []).append(row.line)
            continue
        split = split_of_word(row.split) or split_of_file
        raw = raws.setdefault((image, split or ""), RawImage(image, table.path, [], _size(row.size), split))
        if not any(row.box) and not (row.label or "").strip():
            continue                # the picture is said to hold nothing
        values = _values(row, table.comma, say)
        if values is None:
            raw.lost += 1
        else:
            raw.objects.append(RawObject("object" if row.label is None else row.label, values, line=row.line))
    for name, lines in unknown.items():
        if index.find(name, table.path, split_of_file):
            continue                # ambiguous, said above
        kind = "path_escape" if escapes(name) else "missing_image"
        findings.append(Finding(kind, "drop_image", f"the picture is not there ({len(lines)} rows)", table.path, lines[0],
                                value=name[:100]))


def _values(row: _Row, comma: bool, say) -> Box | None:
    if not all(row.box) or len(row.box) != 4:
        kind = "missing_box" if len(row.box) == 4 or not any(row.box) else "bad_number"
        say(kind, "drop_object", f"{sum(map(bool, row.box))} of four numbers", " ".join(row.box))
        return None
    try:
        a, b, c, d = (_decimal(text, comma) for text in row.box)
    except NumberFault as fault:
        say(fault.kind, "drop_object", str(fault), " ".join(row.box))
        return None
    return a, b, c, d


def _decimal(text: str, comma: bool) -> float:
    return number(text.replace(",", ".") if comma and text.count(",") == 1 and "." not in text else text)


def _size(cells: list[str]) -> tuple[float, float] | None:
    try:
        width, height = (number(cell) for cell in cells)
    except (NumberFault, ValueError):
        return None
    return (width, height) if width > 0 and height > 0 else None


def _one_per_image(raws: dict[tuple[str, str], RawImage], findings: list[Finding]) -> list[RawImage]:
    """One raw image per picture: rows of one picture in two splits are a leak and stay with the split named first."""
    kept: dict[str, RawImage] = {}
    for (image, _), raw in raws.items():
        earlier = kept.setdefault(image, raw)
        if earlier is not raw:
            findings.append(Finding("duplicate_image", "note", f"LEAK: listed in {earlier.split} and in {raw.split}; it stays in "
                                    f"{earlier.split}", image, value=raw.file))
    return list(kept.values())


def _are_fractions(boxes: list[Box]) -> bool:
    """Whether nine of ten boxes lie in the unit square, and not all on whole numbers."""
    small = sum(max(values) <= 1.02 and min(values) >= -0.02 for values in boxes)
    return bool(boxes) and small >= 0.9 * len(boxes) and any(value % 1 for values in boxes for value in values)


def _is_number(cell: str) -> bool:
    try:
        number(cell)
    except NumberFault as fault:
        return fault.kind == "nonfinite"
    return True
