"""Train, validation and test for a set that does not declare them all: stratified, seeded, copies kept together.

The result depends on the records' ids and the images' bytes, not on the order of the list or the machine.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
import json
from pathlib import Path

from finite.data.sample import ImageRecord
from finite.data.streams import SPLIT, stream
from finite.errors import UserError

NAMES = ("train", "validation", "test")

LabelOf = Callable[[ImageRecord], Hashable]


def identical(records: Sequence[ImageRecord]) -> list[list[ImageRecord]]:
    """Groups of records whose files hold the same bytes, by first id; most groups hold one. Raises UserError when a
    file can't be read. Only files of equal length are read."""
    by_length: dict[int, list[ImageRecord]] = defaultdict(list)
    groups: dict[tuple, list[ImageRecord]] = defaultdict(list)
    try:
        for record in sorted(records, key=lambda record: record.id):
            by_length[record.path.stat().st_size].append(record)
        for length, same in by_length.items():
            for record in same:
                alone = len(same) == 1
                groups[length, "" if alone else hashlib.sha256(record.path.read_bytes()).hexdigest()].append(record)
    except OSError as error:
        raise UserError(f"{error.filename}: {error.strerror}; the image is needed to split the data") from error
    return sorted(groups.values(), key=lambda group: group[0].id)


def split(
    records: Sequence[ImageRecord],
    label_of: LabelOf,
    fractions: Sequence[float],
    seed: int,
    names: Sequence[str] = NAMES,
) -> dict[str, list[ImageRecord]]:
    """Divide records among `names` in the given proportions, class by class; each list sorted by id.

    Every class gives its first group to names[0] (train): none is in validation or test alone. What rounding
    leaves over goes where the whole set is furthest behind its proportions. Small sets: train is given two images
    before validation gets its first, and validation its first before test does. A group of identical images counts
    with all its members, under the class of its first.
    """
    classes: dict[str, list[list[ImageRecord]]] = defaultdict(list)
    for group in identical(records):
        classes[str(label_of(group[0]))].append(group)
    share = [fraction / sum(fractions) for fraction in fractions]
    parts: list[list[tuple[str, list[ImageRecord]]]] = [[] for _ in names]
    counts = [0] * len(names)
    seen = 0
    for number, label in enumerate(sorted(classes)):
        groups = classes[label]
        order = stream(seed, SPLIT, number).permutation(len(groups))
        groups = sorted((groups[i] for i in order), key=len, reverse=True)  # large groups first: they fit worst
        total = sum(map(len, groups))
        seen += total
        quota = [int(part * total + 1e-9) for part in share]
        for _ in range(total - sum(quota)):
            behind = [part * seen - count - own for part, count, own in zip(share, counts, quota, strict=True)]
            quota[behind.index(max(behind))] += 1
        for position, group in enumerate(groups):
            chosen = 0 if position == 0 else quota.index(max(quota))
            quota[chosen] -= len(group)
            counts[chosen] += len(group)
            parts[chosen].append((label, group))
    _fill_empty(parts, share)
    return {
        name: sorted((record for _, group in part for record in group), key=lambda record: record.id)
        for name, part in zip(names, parts, strict=True)
    }


def _fill_empty(parts: list[list[tuple[str, list[ImageRecord]]]], share: Sequence[float]) -> None:
    """Give each part that rounding left empty one group of the fullest part, if that keeps two (in place)."""
    for position, part in enumerate(parts):
        fullest = max(parts, key=len)
        if share[position] > 0 and not part and len(fullest) > 2:
            members = Counter(label for label, _ in fullest)
            spare = [item for item in fullest if members[item[0]] > 1] or fullest  # a class keeps its only group
            part.append(spare[-1])
            fullest.remove(spare[-1])


def complete(
    splits: Mapping[str, list[ImageRecord]], label_of: LabelOf, fractions: Sequence[float], seed: int
) -> tuple[dict[str, list[ImageRecord]], list[str]]:
    """The three splits from what the folder declares, and a sentence for each thing that was decided here.

    Only the training images (or "all", where nothing is declared) are ever divided: what a folder calls validation or
    test stays as it is. Raises UserError when there is nothing to train on.
    """
    given = {name: list(records) for name, records in splits.items() if records}
    pool = given.pop("train", None) or given.pop("all", None)
    if pool is None:
        found = ", ".join(given) or "no images"
        raise UserError(f"the data has no training split (found: {found}); add one, or point data.root elsewhere")
    missing = [name for name in NAMES[1:] if name not in given]
    if not missing:
        return {name: given.get(name, pool) for name in NAMES}, []
    names = ["train", *missing]
    parts = split(pool, label_of, [fractions[NAMES.index(name)] for name in names], seed, names)
    told = " / ".join(f"{len(parts[name])} {name}" for name in names)
    source = f"the data has no {' or '.join(missing)} split" if given else "the data declares no split"
    return {name: parts.get(name) or given.get(name, []) for name in NAMES}, [
        f"{source}: {len(pool)} images divided by class with seed {seed} into {told}"
    ]


def held(path: Path, ids: Mapping[str, Sequence[str]], root: Path, samples: str) -> bool:
    """Whether the record of a run's split is there, and is this one: `ids` by split, of what is called `samples` below `root`.
    Raises UserError for the record of another split: a resumed run must see the same data."""
    try:
        old = json.loads(path.read_text())
        before = {name: list(old[name]) for name in NAMES}
    except FileNotFoundError:
        return False
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: damaged, so what the run was trained on is not known; restore the file") from error
    for name in NAMES:
        if before[name] != list(ids[name]):
            odd = sorted(set(before[name]) ^ set(ids[name]))
            what = f"{odd[0]} is in one alone" if odd else "their order differs"
            raise UserError(
                f"{root}: the {name} split is not the one in {path} ({len(ids[name])} {samples} now, {len(before[name])} then; {what}); "
                "restore the data, or start a new run"
            )
    return True
