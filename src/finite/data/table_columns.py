"""Which column of a table holds what: by the header's names, or by the content of a table without one."""

import csv
import io
import os
import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from finite.data.boxes import NumberFault, number
from finite.data.images import SUFFIXES
from finite.data.index import Index

#: Of several, the one whose cells are pictures here counts, then the first; so ids and addresses come last.
_IMAGE = tuple(
    "image filename file imagename imagefile imagepath img imgname filepath path picture photo fname imagefilename "
    "imagefilepath imgpath imgfile imgfilename images photopath photoname picturepath picturename fullpath name imageid imgid "
    "externalid imageurl".split()
)
_LABEL = tuple(
    "label class classname category categoryname labelname labels classes species classid categoryid labelid classlabel "
    "categorylabel objectclass objectname objectlabel objecttype objectcategory labeltext labelclass classtext targetname "
    "targetclass bboxlabel bboxclass speciesname scientificname commonname latinname breedname name type target object cls "
    "tag".split()
)
_MAY_BE_NO_CLASS = ("type", "tag")  # words in them may tell something else ("polygon", "night") than a class number beside
_SPLIT = ("split", "set", "subset", "usage", "dataset", "mlusage")
_IGNORE = ("difficult", "iscrowd", "isgroupof", "ignore")
_BOX_TEXT = ("bbox", "box", "boundingbox")
_CORNERS = (
    ("xmin", "ymin", "xmax", "ymax"),
    ("x0", "y0", "x1", "y1"),
    ("x1", "y1", "x2", "y2"),
    ("left", "top", "right", "bottom"),
    ("minx", "miny", "maxx", "maxy"),
    ("xtl", "ytl", "xbr", "ybr"),
    ("bboxxmin", "bboxymin", "bboxxmax", "bboxymax"),
    ("bboxx1", "bboxy1", "bboxx2", "bboxy2"),
    ("bboxx0", "bboxy0", "bboxx1", "bboxy1"),
    ("bboxleft", "bboxtop", "bboxright", "bboxbottom"),
    ("boxxmin", "boxymin", "boxxmax", "boxymax"),
    ("boxx1", "boxy1", "boxx2", "boxy2"),
    ("boxleft", "boxtop", "boxright", "boxbottom"),
    ("xstart", "ystart", "xend", "yend"),
    ("startx", "starty", "endx", "endy"),
    ("xleft", "ytop", "xright", "ybottom"),
    ("leftx", "topy", "rightx", "bottomy"),
    ("topleftx", "toplefty", "bottomrightx", "bottomrighty"),
)
#: Sides of a box. `width` and `height` may be the picture's, so they count last.
_SIDES = tuple(
    (f"{of}{wide}", f"{of}{high}")
    for of, wide, high in (
        *((of, *names) for of in ("bbox", "box") for names in (("width", "height"), ("w", "h"))),
        *(("", *names) for names in (("bw", "bh"), ("w", "h"), ("width", "height"))),
    )
)
_CENTRES = (
    *((f"x{word}", f"y{word}") for word in ("center", "centre", "c", "mid")),
    *((f"{word}x", f"{word}y") for word in ("center", "centre", "c")),
    *((f"bbox{word}x", f"bbox{word}y") for word in ("center", "centre", "c")),
    *((f"bboxx{word}", f"bboxy{word}") for word in ("center", "centre", "c")),
)
_FIRST_CORNERS = (
    ("x", "y"),
    ("left", "top"),
    ("xmin", "ymin"),
    ("minx", "miny"),
    ("x0", "y0"),
    ("x1", "y1"),
    ("xtl", "ytl"),
    ("topleftx", "toplefty"),
    ("xtopleft", "ytopleft"),
    ("bboxx", "bboxy"),
    ("boxx", "boxy"),
    ("bboxleft", "bboxtop"),
    ("bboxxmin", "bboxymin"),
)
_BOXES = (
    *(("xyxy", names) for names in _CORNERS),
    *(
        (form, place + sides)
        for sides in _SIDES
        for form, places in (("cxcywh", _CENTRES), ("xywh", _FIRST_CORNERS))
        for place in places
    ),
)
_SIZES = (
    ("imagewidth", "imageheight"),
    ("imgwidth", "imgheight"),
    ("imgw", "imgh"),
    ("imagew", "imageh"),
    ("width", "height"),
)
_SEPARATORS = (",", ";", "\t", "|")
_LONGEST = 20  # lines that one row may span
#: Columns of words that are no classes, by the end of their names; "at" only as a word of its own ("created_at").
_NO_CLASS = ("id", "uuid", "hash", "md5", "date", "time", "timestamp", "name", "folder", "path", "url", "index", "source")
_NO_WORD = re.compile(  # a date; a hash or part of a UUID, which has a digit somewhere
    r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}([T ].*)?|(?=.*\d)[0-9a-f-]{6,}", re.IGNORECASE
)
_MOST = 1000  # different words of a column that may be the class
NOTHING = frozenset(("", "nan", "none", "null", "na", "n/a", "<na>", "-"))  #: cells without a value, in lower case
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
    ignore: int | None = None
    header: tuple[str, ...] = ()  # the columns' names; none in a table without a header


def _plain(name: str) -> str:
    return re.sub(r"[\W_]+", "", name.casefold())


def columns_of(header: list[str], index: Index, rows: list[list[str]]) -> Columns | None:
    """The columns by their names; None where picture or box cannot be told. Of several for the picture or the class, the
    first `rows` tell which it is."""
    plain = [_plain(name) for name in header]
    where = {name: position for position, name in reversed(list(enumerate(plain)))}  # of equal names the first
    box = next(
        ((form, tuple(where[name] for name in names)) for form, names in _BOXES if all(n in where for n in names)), None
    )
    if box is None:
        text = next((where[name] for name in _BOX_TEXT if name in where), None)
        box = None if text is None else ("xywh", (text,))
    images = [where[name] for name in _IMAGE if name in where]
    if box is None or not images:
        return None
    image = max(images, key=lambda position: sum(bool(index.same_stem(cell)) for cell in _cells(rows, position)))
    label = _label_of([name for name in _LABEL if name in where and where[name] != image], where, index, rows)
    size = next(
        (
            tuple(where[name] for name in names)
            for names in _SIZES
            if all(n in where and where[n] not in box[1] for n in names)
        ),
        None,
    )
    split, ignore = (next((where[n] for n in names if n in where), None) for names in (_SPLIT, _IGNORE))
    return Columns(image, label, box[1], box[0], size, split, ignore, tuple(header))


def _cells(rows: list[list[str]], position: int) -> list[str]:
    """The cells of a column that hold something."""
    cells = (row[position].strip() for row in rows if position < len(row))
    return [cell for cell in cells if cell.lower() not in NOTHING]


def _label_of(names: list[str], where: dict[str, int], index: Index, rows: list[list[str]]) -> int | None:
    """The class column of those with known names: the first, but one of words (no pictures' names) where that holds
    numbers."""
    if not names:
        return None
    if any(map(_is_number, _cells(rows, where[names[0]]))):
        for name in names[1:]:
            cells = _cells(rows, where[name])
            if name not in _MAY_BE_NO_CLASS and cells and all(_is_word(cell) and not index.same_stem(cell) for cell in cells):
                return where[name]
    return where[names[0]]


def unread_words(columns: Columns, rows: Iterable[list[str]]) -> tuple[str | None, list[str]]:
    """Of the columns that are not read, the name of one that may well be the class (its words repeat and are few), if
    there is one; and the names of all that hold words."""
    known = {columns.image, columns.label, columns.split, columns.ignore, *columns.box, *(columns.size or ())}
    rest = {i: _Words() for i, name in enumerate(columns.header) if i not in known and _plain(name) not in _IMAGE}
    try:
        for row in rows:
            for position, words in rest.items():
                if position < len(row) and _is_word(cell := row[position].strip()):
                    words.add(cell, row[columns.image] if columns.image < len(row) else "")
    except csv.Error:  # said where the rows are read
        pass
    names = {position: columns.header[position].strip() for position, words in rest.items() if words.counts}
    classes = (name for position, name in names.items() if rest[position].are_classes and not _is_no_class(name))
    return next(classes, None), list(names.values())


def _is_no_class(name: str) -> bool:
    return _plain(name).endswith(_NO_CLASS) or re.search(r"[\W_]at$|[a-z]At$", name) is not None


class _Words:
    """The words of a column: how often each occurs, up to so many, and whether they are more than names of the pictures."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.varies = False  # a word stands at two pictures, or a picture has two words
        self._picture_of: dict[str, str] = {}
        self._word_of: dict[str, str] = {}

    def add(self, word: str, picture: str) -> None:
        if len(self.counts) > _MOST:
            return
        self.counts[word] += 1
        if not self.varies:
            one = self._picture_of.setdefault(word, picture) == picture and self._word_of.setdefault(picture, word) == word
            self.varies = not one

    @property
    def are_classes(self) -> bool:
        few = len(self.counts) <= _MOST and len(self.counts) * 2 <= self.counts.total()
        return few and self.varies and sum(count > 1 for count in self.counts.values()) > 1


def _is_word(cell: str) -> bool:
    """Whether a cell may be a class name: no number, truth value, date, hash, list, address or file of a picture."""
    named = os.path.splitext(cell)[1].lower() in SUFFIXES or "://" in cell
    plain = cell.lower() in (*NOTHING, "true", "false", "yes", "no", *"ynft") or cell.startswith(("[", "{", "("))
    letters = any(letter.isalpha() for letter in cell) and _NO_WORD.fullmatch(cell) is None
    return letters and not named and not plain and not _is_number(cell)


def _columns_by_content(row: list[str]) -> Columns | None:
    """The columns of a table without a header: one picture's name, four numbers, at most one other text. A fifth number
    is the class where it is whole and stands last."""
    names = [i for i, cell in enumerate(row) if os.path.splitext(cell.strip())[1].lower() in SUFFIXES]
    numbers = [i for i, cell in enumerate(row) if _is_number(cell)]
    if len(names) != 1 or len(numbers) not in (4, 5):
        return None
    rest = [i for i in range(len(row)) if i not in names and i not in numbers and row[i].strip()]
    if len(numbers) == 5 and not rest and numbers[-1] == len(row) - 1 and row[-1].strip().isdecimal():
        rest = [numbers.pop()]
    if len(numbers) != 4 or len(rest) > 1:
        return None
    return Columns(names[0], rest[0] if rest else None, tuple(numbers), "xyxy")


def find_columns(index: Index, text: str) -> tuple[Columns | None, str, int, bool]:
    """(columns, separator, lines before the first row of data, whether there is a header of names). A first row 0, 1, 2,
    ... is one of numbers, as pandas writes it, unless such a picture is there."""
    lines = text.split("\n")
    skip = 0
    while skip < len(lines) and _is_preamble(index, lines[skip]):
        skip += 1
    for separator in _SEPARATORS:
        cells = next(cells_of(lines[skip], separator), (0, []))[1] if skip < len(lines) else []
        columns = columns_of(cells, index, _rows(lines[skip + 1 :], separator))
        if columns is not None:
            return columns, separator, skip + 1, True
    if skip < len(lines) and not _is_header(lines[skip]):
        for line in lines[skip:]:  # the first rows may be of pictures without objects
            for separator in _SEPARATORS:
                columns = _columns_by_content(next(cells_of(line, separator), (0, []))[1])
                if columns is not None:
                    first = [cell.strip() for cell in next(cells_of(lines[skip], separator), (0, []))[1]]
                    counts = first == [str(i) for i in range(len(first))] and len(first) > columns.image
                    return columns, separator, skip + (counts and not index.same_stem(first[columns.image])), False
    return None, ",", skip, False


def _rows(lines: list[str], separator: str) -> list[list[str]]:
    try:
        return [cells for _, cells in cells_of("\n".join(lines), separator)]
    except csv.Error:
        return []


def why_unknown(index: Index, text: str) -> str:
    """The sentence for a table whose columns cannot be told: what its header says, where it has one."""
    header = next((line for line in text.split("\n") if not _is_preamble(index, line)), "")
    said = f" ({header.strip()[:200]})" if header and _is_header(header) else ""
    return f"columns cannot be told by name{said}; {WANTED}"


def _is_header(line: str) -> bool:
    """Whether the first row holds names of columns, known or not: no number, and no picture's name."""
    cells = [cell.strip().strip("\"'").strip() for cell in re.split(r"[,;\t|]", line)]
    return not any(_is_number(cell) or os.path.splitext(cell)[1].lower() in SUFFIXES for cell in cells)


def _is_preamble(index: Index, line: str) -> bool:
    """A line without any value, Excel's "sep=;", or a comment (a picture may be called "#1.jpg", so the first cell decides)."""
    text = line.strip()
    comment = text.startswith("#") and not index.same_stem(re.split(r"[,;\t|]", text)[0])
    return not text.strip(",;|\"' \t") or comment or re.fullmatch(r"sep=.", text) is not None


def cells_of(text: str, separator: str) -> Iterator[tuple[int, list[str]]]:
    """(line number, cells) of each row, by the csv module.

    A quoted cell may hold line ends. But where such a row has not as many cells as the first one, or its later lines
    have as many alone, its quote was never closed: then the line is taken alone, its quotes as they stand.
    """
    source, waiting, taken = io.StringIO(text, newline=""), deque(), []

    def lines() -> Iterator[str]:
        while len(taken) < _LONGEST and (line := waiting.popleft() if waiting else source.readline()):
            taken.append(line)
            yield line

    options = {"delimiter": separator, "skipinitialspace": True}
    reader, position, width = csv.reader(lines(), **options), 1, None
    while True:
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error:
            if len(taken) == 1:
                raise
            row = None
        if len(taken) > 1 and (row is None or width not in (None, len(row)) or _are_rows(taken[1:], width, options)):
            waiting.extendleft(reversed(taken[1:]))
            del taken[1:]
            row = next(csv.reader(taken, quoting=csv.QUOTE_NONE, **options))
            reader = csv.reader(lines(), **options)
        elif len(taken) == _LONGEST:
            reader = csv.reader(lines(), **options)
        width = width or len(row)
        yield position, row
        position += len(taken)
        taken.clear()


def _are_rows(lines: list[str], width: int | None, options: dict[str, Any]) -> bool:
    """Whether one of the lines is a row of its own, as wide as the first one of the table."""
    return any(len(next(csv.reader([line], quoting=csv.QUOTE_NONE, **options))) == width for line in lines)


def _is_number(cell: str) -> bool:
    try:
        number(cell)
    except NumberFault as fault:
        return fault.kind == "nonfinite"
    return True
