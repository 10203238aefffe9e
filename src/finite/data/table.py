"""CSV and TSV: a row per object, in the many headers and dialects people use.

Columns are found by name (case, blanks and punctuation ignored); a file without a header is read where its columns can
be told by their content, and says so. Corners, left/top/width/height and centre forms are told by the names; numbers
that are all fractions of one are fractions of the picture. A row with a picture's name and nothing else says that it
holds no object. Classes are ordered by a classes.csv where there is one, else by the alphabet.
"""

import csv
import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from finite.data import class_list
from finite.data.assemble import RawImage, RawObject, assemble, missing_labels
from finite.data.boxes import Box, NumberFault, number
from finite.data.conventions import Convention
from finite.data.images import SUFFIXES
from finite.data.index import Index, absent, escapes, fold, scan, split_of_folders, split_of_word, stem
from finite.data.sample import Finding, ImageSet
from finite.data.table_columns import NOTHING, Columns, cells_of, find_columns, unread_words, why_unknown
from finite.data.text import Text, TextError, read_text

_LIMIT = 1 << 30
#: What stands for the class where a row says that its picture holds nothing; a class only with a box.
_NO_OBJECT = NOTHING | {"background", "bg", "negative", "empty", "nothing", "no object", "no_object", "noobject", "no objects"}


@dataclass(slots=True)
class _Row:
    line: int
    image: str
    label: str | None
    box: list[str]
    size: list[str]
    split: str
    ignore: bool


@dataclass
class _Table:
    """A table whose columns are known; its rows are made of the text one by one, as they are asked for."""

    path: str
    body: str
    columns: Columns
    separator: str
    skip: int  # lines before the first row of data

    @property
    def form(self) -> str:
        return self.columns.form

    @property
    def comma(self) -> bool:
        """Whether decimal commas are possible: the columns are separated by something else."""
        return self.separator != ","

    def called(self, column: int | None) -> str:
        """A column as a person finds it: by its name, else its number from 1."""
        header = self.columns.header
        return repr(header[column].strip()) if column is not None and column < len(header) else str((column or 0) + 1)

    def rows(self, findings: list[Finding]) -> Iterator[_Row]:
        line = 0
        try:
            for line, cells in cells_of(self.body, self.separator):
                if line > self.skip and any(cell.strip() for cell in cells):
                    yield _row(line, cells, self.columns)
        except csv.Error as error:
            reason = f"breaks off: {error}; the rows above are read"
            findings.append(Finding("unreadable_label", "note", reason, self.path, line + 1))

    def content(self) -> tuple:
        """The same for two tables of the same rows in any order (a sum of 64-bit hashes that differ in every run)."""
        hashes = [hash((row.image, row.label or "", *row.box)) for row in self.rows([])]
        return self.form, len(hashes), sum(hashes)


def read(root: Path, index: Index | None = None) -> ImageSet:
    """The tables below `root` as one set. A table that repeats another one is read once."""
    index = index or scan(root)
    findings: list[Finding] = []
    tables: list[_Table] = []
    faults: list[Finding] = []
    for path in index.with_suffix(".csv", ".tsv"):
        if class_list.is_class_list(path) and not looks_like(index, path):
            continue
        table = _open_table(index, path, findings, faults)
        if table is not None:
            tables.append(table)
    if len(tables) > 1:
        tables = _distinct(tables, findings)
    # A table without usable columns is a fault where it was to be the annotation, and just some other table where an
    # annotation was found.
    findings += [
        Finding(f.kind, "note" if tables else "refuse", f.reason, f.file, f.line, value=f.value) for f in faults
    ]
    forms = {table.form for table in tables}
    if len(forms) > 1:
        tables = [table for table in tables if table.form == tables[0].form]
        findings.append(
            Finding(
                "format_mixup",
                "refuse",
                f"tables with boxes as {' and '.join(sorted(forms))} in one folder: give one of them as data.root",
                tables[0].path,
            )
        )
    raws: dict[tuple[str, str], RawImage] = {}
    mentioned: set[str] = set()
    said_splits: dict[str, str] = {}
    for table in tables:
        _read_rows(index, table, raws, mentioned, said_splits, findings)
    missing_labels(index, mentioned, findings)
    merged = _one_per_image(raws, findings)
    normalised = _are_fractions([obj.values for raw in merged for obj in raw.objects])
    convention = Convention(tables[0].form if tables else "xyxy", normalised)
    image_set = assemble(index, "csv", merged, convention, findings)
    for position, finding in enumerate(findings):
        if finding.kind == "unlisted_image" and finding.file in said_splits:
            reason = f"{said_splits[finding.file]}, none of train, validation, test: not used"
            findings[position] = replace(finding, reason=reason)
    class_list.apply(image_set, index, class_list.CLASSES_CSV)
    if len(forms) > 1:
        image_set.splits = {"all": []}
    return image_set


def looks_like(index: Index, path: str) -> bool:
    """Whether the columns of a table can be told."""
    try:
        text = _head(read_text(index.path(path), _LIMIT))
    except TextError:
        return False
    return find_columns(index, text)[0] is not None


def why_not(index: Index, path: str) -> str:
    """The sentence for a table whose columns cannot be told."""
    try:
        return why_unknown(index, _head(read_text(index.path(path), _LIMIT)))
    except TextError as error:
        return str(error)


def _head(text: Text, lines: int = 30) -> str:
    return "\n".join(text.text[: 1 << 16].splitlines()[:lines])


def _distinct(tables: list[_Table], findings: list[Finding]) -> list[_Table]:
    first: dict[tuple, _Table] = {}
    for table in tables:
        same = first.setdefault(table.content(), table)
        if same is not table:
            findings.append(Finding("duplicate_id", "note", f"holds the same rows as {same.path}: read once", table.path))
    return list(first.values())


def _open_table(index: Index, path: str, findings: list[Finding], faults: list[Finding]) -> _Table | None:
    try:
        text = read_text(index.path(path), _LIMIT)
        body = text.text.replace("\0", "")
        columns, separator, skip, has_header = find_columns(index, _head(Text(body)))
    except (TextError, csv.Error) as error:
        faults.append(Finding("unreadable_label", "drop_file", str(error), path))
        return None
    if columns is None:
        first = next((line for line in body.splitlines() if line.strip()), "")
        reason = why_unknown(index, _head(Text(body)))
        faults.append(Finding("bad_header", "drop_file", reason, path, skip + 1, value=first[:100]))
        return None
    unread: list[str] = []
    if columns.label is None and has_header:
        may_be_class, unread = unread_words(columns, (cells for line, cells in cells_of(body, separator) if line > skip))
        if may_be_class is not None:
            reason = (
                f"no class column, but a column {may_be_class!r} of words that is not read: call it label if it holds the "
                "classes, else take it out"
            )
            faults.append(Finding("bad_header", "drop_file", reason, path, skip, value=may_be_class[:100]))
            return None
    if text.code_page:
        findings.append(
            Finding("bad_encoding", "fix", f"is not UTF-8; read as {text.code_page}", path, value=text.code_page)
        )
    if not has_header:
        findings.append(
            Finding(
                "bad_header",
                "fix",
                f"no header: columns told by their content as picture {columns.image + 1}, "
                f"box {', '.join(str(i + 1) for i in columns.box)} (left, top, right, bottom)"
                + ("" if columns.label is None else f", class {columns.label + 1}"),
                path,
                1,
            )
        )
    if columns.label is None:
        words = f"; words that are not read: {', '.join(map(repr, unread[:3]))}" if unread else ""
        reason = f"no class column: every object is called 'object'{words}"
        findings.append(Finding("missing_class", "fix", reason, path, 1))
    return _Table(path, body, columns, separator, skip)


def _row(line: int, cells: list[str], columns: Columns) -> _Row:
    def cell(position: int | None) -> str:
        return cells[position] if position is not None and position < len(cells) else ""

    box = [cell(i).strip() for i in columns.box]
    if len(box) == 1 and box[0]:
        box = [part for part in re.split(r"[,;\s]+", box[0].strip("[](){}\"' ")) if part]
    elif len(box) == 1:
        box = [""] * 4
    if all(part.lower() in NOTHING for part in box):
        box = [""] * len(box)
    return _Row(
        line,
        cell(columns.image).strip(),
        None if columns.label is None else cell(columns.label),
        box,
        [cell(i) for i in columns.size or ()],
        cell(columns.split),
        cell(columns.ignore).strip().lower() in ("1", "true", "yes"),
    )


def _read_rows(
    index: Index,
    table: _Table,
    raws: dict[tuple[str, str], RawImage],
    mentioned: set[str],
    said_splits: dict[str, str],
    findings: list[Finding],
) -> None:
    """Add the table's rows to `raws`; `said_splits`: what is to be said of a picture whose split's word is not known."""
    split_of_file = split_of_word(stem(PurePosixPath(table.path).stem)) or split_of_folders(table.path)
    found_before: dict[str, str | None] = {}
    unknown: dict[str, list[int]] = {}
    columns, words, known = table.columns, Counter(), 0
    for row in table.rows(findings):

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
            elif (
                found
                and fold(PurePosixPath(found[0]).name) != fold(re.split(r"[\\/]", row.image)[-1])
                and os.path.splitext(row.image)[1].lower() in SUFFIXES
            ):
                say("name_mismatch", "note", f"{found[0]} is taken", row.image)
        image = found_before[row.image]
        if image is None:
            unknown.setdefault(row.image, []).append(row.line)
            continue
        split = split_of_word(row.split)
        if split is None and row.split.strip().lower() not in NOTHING:
            word = row.split.strip()[:40]
            words[word] += 1
            said_splits.setdefault(image, f"its split, column {table.called(columns.split)}, is {word!r}")
        known += split is not None
        split = split or split_of_file
        raw = raws.setdefault((image, split or ""), RawImage(image, table.path, [], _size(row.size), split))
        if _no_box(row, table.comma) and (row.label or "").strip().lower() in _NO_OBJECT:
            continue  # the picture is said to hold nothing
        values = _values(row, table.comma, say)
        if values is None:
            raw.lost += 1
        else:
            label = "object" if row.label is None else row.label
            raw.objects.append(RawObject(label, values, line=row.line, ignore=row.ignore))
    if words:
        shown = ", ".join(f"{word!r} ({count})" for word, count in words.most_common(5)) + (", ..." if len(words) > 5 else "")
        told = "no word for train, validation or test" + ("" if known else "; the column is not read")
        reason = f"column {table.called(columns.split)} holds {shown}: {told}"
        findings.append(Finding("unknown_split", "note", reason, table.path, value=next(iter(words))))
    for name, lines in unknown.items():
        if index.find(name, table.path, split_of_file):
            continue  # ambiguous, said above
        kind, reason = absent(index, name) or (
            "path_escape" if escapes(name) else "missing_image",
            "the picture is not there",
        )
        findings.append(
            Finding(
                kind,
                "drop_image",
                f"{reason} ({len(lines)} rows)",
                table.path,
                lines[0],
                value=name[:100],
            )
        )


def _no_box(row: _Row, comma: bool) -> bool:
    """Whether a row has no box: no coordinates, or four times 0 or -1 under a word for nothing."""
    if not any(row.box):
        return True
    try:
        numbers = {_decimal(text, comma) for text in row.box}
    except NumberFault:
        return False
    return numbers in ({0.0}, {-1.0}) and (row.label or "").strip().lower() in _NO_OBJECT


def _values(row: _Row, comma: bool, say) -> Box | None:
    if not all(row.box) or len(row.box) != 4:
        kind = "missing_box" if len(row.box) == 4 or not any(row.box) else "bad_number"
        reason = f"{sum(map(bool, row.box))} of four numbers"
        if not any(row.box):
            reason += "; for a picture without objects leave the class empty too, or write background, negative or none"
        say(kind, "drop_object", reason, " ".join(row.box))
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
            findings.append(
                Finding(
                    "duplicate_image",
                    "note",
                    f"LEAK: listed in {earlier.split} and in {raw.split}; it stays in {earlier.split}",
                    image,
                    value=raw.file,
                )
            )
    return list(kept.values())


def _are_fractions(boxes: list[Box]) -> bool:
    """Whether nine of ten boxes lie in the unit square, and not all on whole numbers."""
    small = sum(max(values) <= 1.02 and min(values) >= -0.02 for values in boxes)
    return bool(boxes) and small >= 0.9 * len(boxes) and any(value % 1 for values in boxes for value in values)
