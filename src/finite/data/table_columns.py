"""Which column of a table holds what: by the header's names, or by the content of a table without one."""

import csv
import io
import os
import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from finite.data.boxes import NumberFault, number
from finite.data.images import SUFFIXES
from finite.data.index import Index

_IMAGE = tuple(
    "image filename file imagename imagefile imagepath imageid img imgname imgid filepath path picture photo fname imageurl "
    "externalid imagefilename imagefilepath imgpath imgfile imgfilename images photopath photoname picturepath picturename "
    "fullpath name".split()
)
_LABEL = tuple(
    "label class classname category categoryname labelname labels classes species object classid categoryid labelid target cls "
    "classlabel categorylabel objectclass objectname objectlabel objecttype objectcategory labeltext labelclass classtext tag "
    "targetname targetclass bboxlabel bboxclass name type".split()
)
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
_NO_CLASS = ("id", "index", "uuid", "annotationid", "objectid", "boxid", "date", "time", "timestamp", "source")
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


def columns_of(header: list[str]) -> Columns | None:
    """The columns by their names; None where picture or box cannot be told."""
    plain = [_plain(name) for name in header]
    where = {name: position for position, name in reversed(list(enumerate(plain)))}  # of equal names the first
    box = next(
        ((form, tuple(where[name] for name in names)) for form, names in _BOXES if all(n in where for n in names)), None
    )
    if box is None:
        text = next((where[name] for name in _BOX_TEXT if name in where), None)
        box = None if text is None else ("xywh", (text,))
    image = next((where[name] for name in _IMAGE if name in where), None)
    if box is None or image is None:
        return None
    label = next((where[name] for name in _LABEL if name in where and where[name] != image), None)
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


def unread_words(columns: Columns, rows: Iterable[list[str]]) -> str | None:
    """The name of a column of words that is none of the known ones: it may be the class. None where there is no such."""
    known = {columns.image, columns.label, columns.split, columns.ignore, *columns.box, *(columns.size or ())}
    rest = [
        position
        for position, name in enumerate(columns.header)
        if position not in known and _plain(name) not in (*_IMAGE, *_NO_CLASS)
    ]
    for row in rows:
        for position in rest:
            if position < len(row) and _is_word(row[position].strip()):
                return columns.header[position].strip()
    return None


def _is_word(cell: str) -> bool:
    """Whether a cell may be a class name: no number, truth value, list, address or file of a picture."""
    named = os.path.splitext(cell)[1].lower() in SUFFIXES or "://" in cell
    plain = cell.lower() in (*NOTHING, "true", "false", "yes", "no") or cell.startswith(("[", "{", "("))
    return any(letter.isalpha() for letter in cell) and not named and not plain and not _is_number(cell)


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
    """(columns, separator, lines before the first row of data, whether there is a header)."""
    lines = text.split("\n")
    skip = 0
    while skip < len(lines) and _is_preamble(index, lines[skip]):
        skip += 1
    for separator in _SEPARATORS:
        cells = next(cells_of(lines[skip], separator), (0, []))[1] if skip < len(lines) else []
        columns = columns_of(cells)
        if columns is not None:
            return columns, separator, skip + 1, True
    if skip < len(lines) and not _is_header(lines[skip]):
        for line in lines[skip:]:  # the first rows may be of pictures without objects
            for separator in _SEPARATORS:
                columns = _columns_by_content(next(cells_of(line, separator), (0, []))[1])
                if columns is not None:
                    return columns, separator, skip, False
    return None, ",", skip, False


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
