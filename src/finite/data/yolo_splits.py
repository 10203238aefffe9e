"""Which pictures are in which split of a YOLO set, by the entries train, val and test of its data.yaml.

An entry is a folder, a list file, or a list of those, written on any machine: it is compared with what is there from its
end, so Roboflow's "../train/images" finds train/images, and none leads outside. Compared so far that a split's own word
("train") never drops out, and what is left of a path never leads into a folder that is another split's: an entry that
is not there is said to be absent, and then a folder called by the split's name serves, where there is one.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from finite.data.index import Index, basename, escapes, fold, parts, split_folder, split_of_folders, split_of_word, stem
from finite.data.sample import Finding
from finite.data.text import TextError, read_text, whole

_LIMIT = 64 << 20  # bytes of one list
KEYS = {"train": "train", "val": "validation", "valid": "validation", "validation": "validation", "test": "test"}


@dataclass
class _Entry:
    """One entry of a data.yaml, and the places that fit it best, `length` of its parts."""

    key: str
    text: str
    own: tuple[str, ...] = ()  # its parts, folded
    wanted: tuple[str, ...] = ()  # what is looked for: these, below the document's `path`
    length: int = 0
    places: list[PurePosixPath] = field(default_factory=list)
    named: list[str] = field(default_factory=list)  # where it is not there: the folders called by the split's name
    taken: bool = False  # whether the one folder of that name serves

    @property
    def split(self) -> str:
        return KEYS[self.key]

    @property
    def is_list(self) -> bool:
        return self.text.lower().endswith(".txt")


def names_splits(document: dict[str, Any]) -> bool:
    """Whether a YAML document has an entry for a split."""
    return bool(_entries(document))


def read_splits(
    index: Index, document: dict[str, Any] | None, file: str | None, texts: set[str], findings: list[Finding]
) -> tuple[dict[str, str], bool]:
    """Picture -> split, empty where none is declared, and whether the folders' names may then say it. `texts`: files known to be no label files; the lists that are read
    are added. `file`: where the document stands."""
    entries = _entries(document or {})
    members, absent = _declared(index, entries, file, texts, findings)
    lists: dict[str, list[str]] = {}
    if any(members.values()):
        _stand_in(index, absent, entries, members)
    else:
        members = {}
        for path in index.with_suffix(".txt"):
            split = KEYS.get(stem(path).lower())
            if split and path not in texts and _is_list(index, path):
                lists.setdefault(split, []).append(path)
                members.setdefault(split, []).extend(_from_list(index, path, texts, findings))
    for entry in absent:
        text = f"names {entry.key}: {whole(entry.text[:100])}, which is not there{_instead(index, entry, members, lists)}"
        findings.append(Finding("missing_split", "note", text, file, value=whole(entry.text[:100])))
    return _assign(index, members, file, findings)


def _entries(document: dict[str, Any]) -> list[_Entry]:
    """The entries with the parts that are looked for: those of `path` before them, as tools join them, unless the entry
    is absolute or climbs."""
    written = [(key, document.get(key)) for key in KEYS]
    pairs = [(key, entry) for key, value in written for entry in (value if isinstance(value, list) else [value])]
    base = document.get("path")
    above = tuple(map(fold, parts(base))) if isinstance(base, str) else ()
    found = [_Entry(key, entry.strip()) for key, entry in pairs if isinstance(entry, str) and entry.strip()]
    for entry in found:
        entry.own = tuple(map(fold, parts(entry.text)))
        entry.wanted = entry.own if escapes(entry.text) else above + entry.own
    return found


def _declared(
    index: Index, entries: list[_Entry], file: str | None, texts: set[str], findings: list[Finding]
) -> tuple[dict[str, list[str]], list[_Entry]]:
    """Split -> pictures, as far as the entries are there, and the entries that are not."""
    lasts = {fold(basename(entry.text)) for entry in entries if entry.is_list}
    above = {parent for path in index.images for parent in PurePosixPath(path).parents} if entries else set()
    folders = _with_parts(index, above - {PurePosixPath()})
    lists = _with_parts(index, {PurePosixPath(p) for p in index.with_suffix(".txt") if lasts and fold(basename(p)) in lasts})
    home = PurePosixPath(file or "").parent
    for entry in entries:
        if entry.wanted:
            _find(entry, lists if entry.is_list else folders, home, fold(index.root.name))
    members: dict[str, list[str]] = {}
    absent = []
    for entry in entries:
        if not entry.own and not entry.places:  # "." and the like: the set's own folder, wherever it stood
            near = [] if escapes(entry.text) else _below(index, home)
            members.setdefault(entry.split, []).extend(near or index.images)
        elif len(entry.places) != 1 or _is_anothers(entry, entries):
            absent.append(entry)
        elif entry.is_list:
            members.setdefault(entry.split, []).extend(_from_list(index, str(entry.places[0]), texts, findings))
        else:
            members.setdefault(entry.split, []).extend(_below(index, entry.places[0]))
    return members, absent


def _with_parts(index: Index, places: Iterable[PurePosixPath]) -> dict[PurePosixPath, tuple[str, ...]]:
    return {place: (fold(index.root.name), *map(fold, place.parts)) for place in places}


def _below(index: Index, folder: PurePosixPath) -> list[str]:
    return [path for path in index.images if path.startswith(f"{folder}/")]


def _find(entry: _Entry, candidates: dict[PurePosixPath, tuple[str, ...]], home: PurePosixPath, root: str) -> None:
    """Set the places that fit most of an entry's last parts; of equal ones those near the YAML, then the shallowest.
    `candidates`: places with the parts that are compared, which begin with the name of the root, `root`. The folders
    around the YAML, those of its `path` and those above the root are the set's place and speak of no split."""
    wanted = entry.wanted
    words = [split_of_folders(f"{part}/x") for part in wanted[:-1]] + [split_of_word(wanted[-1])]
    if escapes(entry.text) and not entry.text.startswith(".."):  # any folder of another disk may be called test
        words = [word if word == entry.split and i >= len(words) - 2 else None for i, word in enumerate(words)]
    around_set = max([len(wanted) - len(entry.own), *(i for i, part in enumerate(wanted[:-1]) if part == root)])
    words[:around_set] = [None] * around_set
    least = next((len(wanted) - i for i in reversed(range(len(wanted))) if words[i]), 1)
    for length in range(len(wanted), least - 1, -1):
        fitting = []
        for place, names in candidates.items():
            if names[-length:] == wanted[-length:]:
                inner = place.relative_to(home) if home in place.parents else place
                around = split_of_folders(f"{PurePosixPath(*inner.parts[:-length])}/x")
                if entry.split in words[-length:] or around in (None, entry.split):
                    fitting.append(place)
        if fitting:
            rank = {place: (home in place.parents, -len(place.parts)) for place in fitting}
            best = max(rank.values())
            entry.length, entry.places = length, sorted(place for place in fitting if rank[place] == best)
            return


def _is_anothers(entry: _Entry, entries: list[_Entry]) -> bool:
    """Whether an entry that is only there in part leads to what another split names more fully, or into it."""
    place = entry.places[0]
    return entry.length < len(entry.wanted) and any(
        other.split != entry.split
        and other.length - len(other.wanted) > entry.length - len(entry.wanted)
        and any(found in (place, *place.parents) for found in other.places)
        for other in entries
    )


def _stand_in(index: Index, absent: list[_Entry], entries: list[_Entry], members: dict[str, list[str]]) -> None:
    """Take the folder of a split's name for an entry that is not there, where it is one that no entry has claimed; add
    it to `members`."""
    claimed = {image for images in members.values() for image in images}
    named = _named(index) if absent else {}
    for entry in absent:
        images = [image for image, split in named.items() if split == entry.split]
        entry.named = sorted({split_folder(image)[0] for image in images})
        if len(entry.places) < 2 and len(entry.named) == 1 and not claimed.intersection(images):
            entry.taken = True
            members.setdefault(entry.split, []).extend(images)
    if absent and "train" not in members:  # these are not to be taken for the missing training pictures
        declared = {entry.split for entry in entries}
        for image, split in named.items():
            if split not in declared and image not in claimed:
                members.setdefault(split, []).append(image)


def _named(index: Index) -> dict[str, str]:
    """Picture -> split, by the folders' names alone."""
    return {image: split for image in index.images if (split := split_of_folders(image))}


def _instead(index: Index, entry: _Entry, members: dict[str, list[str]], lists: dict[str, list[str]]) -> str:
    """The end of the sentence on an entry that is not there: what could be meant, and what is done. Without any `members`
    the folders' names are the splits, as without a YAML; `lists`: what was read for want of an entry that is there."""
    if entry.taken:
        return f"; those in {entry.named[0]} are taken"
    meant = f" as it stands: {_listed(entry.places)} could be meant" if len(entry.places) > 1 else ""
    in_split = {image: split for split, images in members.items() for image in images}
    if not in_split:
        in_split = _named(index)
        places = sorted({split_folder(image)[0] for image, split in in_split.items() if split == entry.split})
        if places:
            return f"{meant}; those in {_listed(places)} are taken"
        if not in_split:
            return f"{meant}; the set is taken as undivided"
    elif entry.split in lists:
        return f"{meant}; those in the list {_listed(lists[entry.split])} are taken"
    elif not meant and not lists and len(entry.named) > 1:
        meant = f": {_listed(entry.named)} could be meant"
    if entry.split == "train" and "train" not in in_split.values() and len(in_split) < len(index.images):
        return f"{meant}; the pictures of no split are taken"
    return f"{meant}; none is taken"


def _listed(places: Iterable[Any]) -> str:
    names = [str(place) for place in places]
    return " and ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _is_list(index: Index, path: str) -> bool:
    """Whether most of the first lines of a text name pictures that are here."""
    try:
        lines = [line for line in read_text(index.path(path), _LIMIT).text.splitlines() if line.strip()][:20]
    except TextError:
        return False
    return bool(lines) and sum(bool(index.same_stem(line)) for line in lines) * 2 > len(lines)


def _from_list(index: Index, path: str, texts: set[str], findings: list[Finding]) -> list[str]:
    texts.add(path)
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


def _assign(
    index: Index, members: dict[str, list[str]], file: str | None, findings: list[Finding]
) -> tuple[dict[str, str], bool]:
    """Picture -> split, and whether the folders' names may say it where that is empty. Where all splits are the same
    pictures, folders of several splits' names divide them, else nothing does; a single shared picture is a leak and
    stays where it was named first."""
    sets = {split: set(images) for split, images in members.items() if images}
    if len(sets) > 1 and all(images == next(iter(sets.values())) for images in sets.values()):
        by_folders = len(set(_named(index).values())) > 1
        done = "divided by the folders' names" if by_folders else "taken as one undivided set"
        reason = f"{' and '.join(sets)} name the same pictures: {done}"
        findings.append(Finding("duplicate_image", "note", reason, file))
        return {}, by_folders
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
    return splits, not splits
