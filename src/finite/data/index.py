"""The files below the data root, and how a name written in an annotation finds its picture among them.

A written name is never joined to a folder and opened: it is looked up in this index. So no name can lead outside, and a
foreign path, another ending, another case or another Unicode form of the same letters still finds the right file.
"""

import os
import re
import stat
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote

from finite.data.images import SUFFIXES
from finite.data.sample import Packed

_SPLITS = {
    "train": "train",
    "training": "train",
    "trainset": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "dev": "validation",
    "test": "test",
    "testing": "test",
    "testset": "test",
}
_BATCH = 512
_MANY = 8  # pictures of one name
_FOREIGN = (".heic", ".heif", ".avif", ".jxl", ".psd", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".svg", ".eps", ".dcm")
_WORD = re.compile(r"[a-z]+")
_UNDECODED = re.compile("[\udc80-\udcff]")  # how Python shows bytes of a file name that are not UTF-8


def fold(name: str) -> str:
    """A name in the form in which names are compared: composed Unicode, case ignored."""
    return unicodedata.normalize("NFC", name).casefold()


def stem(name: str) -> str:
    """The last part of a path without a picture or annotation ending ("two..dots.jpg" -> "two..dots", "a.b" stays)."""
    base = basename(name)
    root, suffix = os.path.splitext(base)
    return root if suffix.lower() in SUFFIXES or suffix.lower() in (".xml", ".txt", ".json") else base


def basename(name: str) -> str:
    return parts(name)[-1] if parts(name) else ""


def parts(name: str) -> list[str]:
    """The parts of a path written on any system, without drive, root, "." and ".."."""
    name = re.sub(r"^(file:/*|[A-Za-z]:)", "", name.strip())
    return [part for part in re.split(r"[\\/]+", name) if part not in ("", ".", "..")]


def absent(index: "Index", *names: str) -> tuple[str, str] | None:
    """(kind, reason) where a picture of one of these names is there, but of a kind that is not read; None else."""
    for name in names:
        if name and (path := index.foreign(name)):
            return "unreadable_image", f"{path} is of a kind that is not read: convert it to JPEG or PNG"
    return None


def escapes(name: str) -> bool:
    """Whether a written path is absolute or climbs: it would leave the folder if it were followed."""
    return bool(re.match(r"\s*([A-Za-z]:)?[\\/]|\s*file:", name)) or ".." in re.split(r"[\\/]+", name)


def split_of_word(word: str) -> str | None:
    """The split that a file or folder name speaks of as a word of its own ("instances_val2017" -> validation)."""
    found = {_SPLITS[part] for part in _WORD.findall(word.lower()) if part in _SPLITS}
    return found.pop() if len(found) == 1 else None


def split_of_folders(path: str) -> str | None:
    """The split that the folders of a relative path speak of; the innermost one counts."""
    return split_folder(path)[1]


def split_folder(path: str) -> tuple[str, str | None]:
    """The innermost folder of a relative path that speaks of a split ("a/train2017"), and that split; ("", None)."""
    folders = PurePosixPath(path).parts[:-1]
    for position in reversed(range(len(folders))):
        split = _SPLITS.get(re.sub(r"[\d_-]+$", "", folders[position].lower()))
        if split:
            return "/".join(folders[: position + 1]), split
    return "", None


@dataclass
class Index:
    """Relative paths (forward slashes, sorted) of the files below `root`, hidden ones left out.

    A name whose bytes are not UTF-8 stands here as "caf%E9.jpg", so that every id can be printed and stored; `on_disk`
    holds its real form. `packed`: the pictures that lie in a larger file instead of one of their own.
    """

    root: Path
    images: list[str]
    others: list[str]
    on_disk: dict[str, str] = field(default_factory=dict, repr=False)
    packed: dict[str, Packed] = field(default_factory=dict, repr=False)
    _by_stem: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list), repr=False)
    _by_place: dict[tuple[str, str], list[str]] = field(default_factory=lambda: defaultdict(list), repr=False)
    _foreign: dict[str, str] | None = field(default=None, repr=False)
    _found: dict[tuple[str, str, str | None], list[str]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        for path in self.images:
            self._by_stem[fold(stem(path))].append(path)
        for key, namesakes in self._by_stem.items():
            for path in namesakes if len(namesakes) > _MANY else ():
                self._by_place[key, fold(PurePosixPath(path).parent.name)].append(path)

    def foreign(self, name: str = "") -> str | None:
        """A picture of a kind that is not read, of this name (any, without one)."""
        if self._foreign is None:
            self._foreign = {}
            for path in self.others:
                if path.lower().endswith(_FOREIGN):
                    self._foreign.setdefault(fold(os.path.splitext(basename(path))[0]), path)
        key = fold(os.path.splitext(basename(name))[0]) if name else next(iter(self._foreign), "")
        return self._foreign.get(key)

    def with_suffix(self, *suffixes: str) -> list[str]:
        return [path for path in self.others if path.lower().endswith(suffixes)]

    def path(self, relative: str) -> Path | Packed:
        return self.packed.get(relative) or self.root / self.on_disk.get(relative, relative)

    def same_stem(self, name: str) -> list[str]:
        """The pictures whose stem is that of `name`, written plainly, with %20 and the like, or with the picture's ending
        in front of the annotation's."""
        found = self._by_stem.get(fold(stem(name)), [])
        if not found and "%" in name:
            found = self._by_stem.get(fold(stem(unquote(name))), [])
        if not found and stem(stem(name)) != stem(name):  # "a.jpg.txt" speaks of a.jpg
            found = self._by_stem.get(fold(stem(stem(name))), [])
            found = [path for path in found if fold(basename(path)) == fold(stem(name))] or found
        return found

    def find(self, name: str, near: str, split: str | None = None) -> list[str]:
        """The pictures that fit `name` best: one, none, or several where nothing tells them apart.

        What counts, in this order: the folders written in the name, the exact file name, the split, the folders of
        `near` (the annotation file).
        """
        candidates = self.same_stem(name)
        if len(candidates) <= 1:
            return list(candidates)
        if len(candidates) <= _MANY:
            return self._best(candidates, name, near, split)
        # Thousands of folders may each hold a 0001.jpg: only those of the folder written in the name are compared, and
        # what has none is looked up once.
        folder = fold(parts(name)[-2]) if len(parts(name)) > 1 else ""
        candidates = self._by_place.get((fold(stem(candidates[0])), folder)) or candidates
        if len(candidates) <= _MANY:
            return self._best(candidates, name, near, split)
        key = (name, near, split)
        if key not in self._found:
            self._found[key] = self._best(candidates, name, near, split)
        return list(self._found[key])

    def _best(self, candidates: list[str], name: str, near: str, split: str | None) -> list[str]:
        wanted, base = [fold(part) for part in parts(name)[:-1]], basename(name)
        near_folders = PurePosixPath(near).parts[:-1]

        def rank(path: str) -> tuple:
            *folders, last = PurePosixPath(path).parts
            return (
                _common(list(reversed(wanted)), [fold(part) for part in reversed(folders)]),
                last == base,
                fold(last) == fold(base),
                stem(last) == stem(base),
                split is not None and split_of_folders(path) == split,
                _common(near_folders, folders) + _common(near_folders[::-1], folders[::-1]),
            )

        ranks = [rank(path) for path in candidates]
        best = max(ranks)
        return [path for path, value in zip(candidates, ranks) if value == best]


def in_turn(pool: Executor, function: Callable[[str], Any], items: Sequence[str]) -> Iterator[Any]:
    """function(item) of each item, in order, by a pool; what waits in its queue does not grow with their number."""
    for start in range(0, len(items), _BATCH):
        yield from pool.map(function, items[start : start + _BATCH])


def _common(a, b) -> int:
    count = 0
    for x, y in zip(a, b):
        if x != y:
            break
        count += 1
    return count


def _is_file(path: str) -> bool:
    """Whether it can be opened without waiting for ever, as on a pipe. A link that leads nowhere counts: the reader
    says so."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        return True


def scan(root: Path) -> Index:
    """All files below `root`. Linked folders are followed, each real folder once, so that a loop of links ends."""
    images, others, on_disk, seen = [], [], {}, set()
    for folder, names, files in os.walk(root, followlinks=True):
        place = os.stat(folder)
        if (place.st_dev, place.st_ino) in seen:
            names.clear()
            continue
        seen.add((place.st_dev, place.st_ino))
        names[:] = sorted(name for name in names if not name.startswith(".") and name != "__MACOSX")
        relative = os.path.relpath(folder, root).replace(os.sep, "/")
        prefix = "" if relative == "." else relative + "/"
        for name in files:
            if not name.startswith(".") and _is_file(os.path.join(folder, name)):
                shown = _UNDECODED.sub(lambda match: f"%{ord(match[0]) - 0xDC00:02X}", prefix + name)
                if shown != prefix + name:
                    on_disk[shown] = prefix + name
                is_image = os.path.splitext(name)[1].lower() in SUFFIXES
                (images if is_image else others).append(shown)
    return Index(root, sorted(images), sorted(others), on_disk)
