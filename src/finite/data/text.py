"""Text files as people really write them: UTF-8 with and without a byte-order mark, UTF-16, legacy code pages.

`read_text` never guesses silently: what is not Unicode comes back with the name of the code page that was assumed, and
the reader reports it as `bad_encoding`.
"""

import codecs
import os
import re
from dataclasses import dataclass
from pathlib import Path

#: Byte-order marks, longest first: the mark of UTF-32-LE begins with that of UTF-16-LE.
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_DOUBLE_BYTE = ("gb", "big5", "shift", "sjis", "euc", "cp93", "cp94", "cp95", "ks_c", "windows-31j", "hz")
_TRIPLE = re.compile(rb"[\xe0-\xf4][\x80-\xbf]{2}")
_HIGH_RUN = re.compile(rb"[\x80-\xff]+")
_KANA = re.compile("[\u3041-\u30ff\uff66-\uff9d]")


class TextError(Exception):
    """A text file that cannot be read; the message is the reason, without the file's name."""


@dataclass(frozen=True)
class Text:
    """Decoded text and the legacy code page that was assumed (None: it is Unicode, nothing to say)."""

    text: str
    code_page: str | None = None


def read_text(path: Path, limit: int) -> Text:
    """The text of a file of at most `limit` bytes. Raises TextError when it is larger, unreadable or binary."""
    return decode(read_bytes(path, limit))


def read_bytes(path: Path, limit: int) -> bytes:
    """The bytes of a file of at most `limit` bytes. Raises TextError."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            data = file.read(min(size, limit) + 1)  # not more: so much memory would be asked for at once
    except OSError as error:
        raise TextError(f"cannot be read: {error.strerror or error}") from error
    if len(data) > limit:
        raise TextError(f"is larger than {limit:,} bytes, which no honest file of this kind is")
    return data


def decode(data: bytes, declared: str | None = None) -> Text:
    """Bytes as text: by byte-order mark, else UTF-16 by its zero bytes, else UTF-8, else `declared`, else a guess.

    A declared code page goes before UTF-8 only where it is a double-byte one and the bytes are pairs: two bytes of
    Chinese are sometimes one letter of UTF-8, but seldom three.
    """
    for mark, codec in _MARKS:
        if data.startswith(mark):
            try:
                return Text(data.decode(codec))
            except UnicodeDecodeError:
                data = data[len(mark) :]
                break
    if b"\0" in data[:4096]:
        return Text(_decode_utf16(data))
    pairs = declared is not None and declared.lower().startswith(_DOUBLE_BYTE) and not _TRIPLE.search(data)
    for codec in (declared if pairs else None, "utf-8", declared, None if data.isascii() else guess(data)):
        if codec:
            try:
                return Text(data.decode(codec), None if codec in ("utf-8", declared) else codec)
            except (UnicodeDecodeError, LookupError):
                continue
    return Text(data.decode("latin-1"), "latin-1")


def printable(text: str) -> str:
    """Text for a terminal: control characters, which could steer it, and half characters are shown as escapes."""
    return "".join(
        char if char.isprintable() or char == "\n" else char.encode("unicode_escape").decode() for char in text
    )


def short(text: str, most: int) -> str:
    """The text as far as `most` characters, with "..." for the rest: a damaged file may hold a word of megabytes."""
    return text if len(text) <= most else f"{text[:most]}..."


def whole(text: str) -> str:
    """Text without halves of surrogate pairs (JSON and YAML escapes can write them): those cannot be encoded again."""
    return text.encode("utf-8", "replace").decode("utf-8")


def guess(data: bytes) -> str:
    """The likeliest legacy code page of bytes that are not UTF-8, by how bytes above 127 stand together.

    Chinese characters come in pairs whose second byte is often below 0xC0; Japanese decodes to kana; Cyrillic makes
    whole words of high bytes; Western accents stand alone between ASCII letters.
    """
    runs = _HIGH_RUN.findall(data)
    pairs = all(len(run) % 2 == 0 and all(0xA1 <= byte <= 0xFE for byte in run) for run in runs)
    if pairs and any(byte < 0xC0 for run in runs for byte in run):
        return "gb18030"
    try:
        if _KANA.search(data.decode("shift_jis")):
            return "shift_jis"
    except UnicodeDecodeError:
        pass
    if sum(len(run) >= 3 for run in runs) * 2 >= len(runs):
        return "cp1251"
    return "cp1252"


def _decode_utf16(data: bytes) -> str:
    head = data[:4096]
    even, odd = head[0::2].count(0), head[1::2].count(0)
    if max(even, odd) * 4 < len(head) // 2 or min(even, odd) * 4 > max(even, odd):
        raise TextError("is a binary file, not text")
    try:
        return data.decode("utf-16-le" if odd > even else "utf-16-be")
    except UnicodeDecodeError as error:
        raise TextError(f"looks like UTF-16 but breaks off or is damaged at byte {error.start}") from error
