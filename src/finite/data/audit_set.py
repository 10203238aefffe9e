"""The set as a whole: copies across splits, class names and counts, and the targets that a training would see."""

import math
import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np

from finite.data.audit_pictures import Picture
from finite.data.index import fold
from finite.data.letterbox import letterbox_map
from finite.data.sample import Finding, ImageRecord, ImageSet

TARGETS = ("center_x", "center_y", "width", "height")
_FAR = 10.0  # standard deviations: a target so far from the mean is worth a look
_CONSTANT = 1e-3  # px
_LISTED = 50  # unused classes with a finding each
_CROWD = 30  # so many names that differ in one letter differ on purpose

Splits = Mapping[str, Sequence[ImageRecord]]


def split_findings(splits: Splits, pictures: Mapping[str, Picture]) -> list[Finding]:
    """Pictures with the same content; across splits it is a leak."""
    first: dict[str, tuple[str, ImageRecord]] = {}
    findings = []
    for split, records in splits.items():
        for record in records:
            original = first.setdefault(pictures[record.id].digest, (split, record))
            if original[1] is record:
                continue
            other_split, other = original
            boxes = "" if _same_boxes(record, other) else ", with other boxes"
            if split == other_split:
                reason = f"the same picture as {other.id}{boxes}"
            else:
                reason = (
                    f"LEAK: the same picture as {other.id} in {other_split}{boxes}: the score on {split} is too good"
                )
            findings.append(Finding("duplicate_image", "note", reason, record.id, value=other.id, image=record.id))
    return findings


def _same_boxes(a: ImageRecord, b: ImageRecord) -> bool:
    return sorted((obj.label, obj.box) for obj in a.objects) == sorted((obj.label, obj.box) for obj in b.objects)


def class_findings(image_set: ImageSet, counts: Counter[str]) -> list[Finding]:
    """Class names that look alike, classes without or with a single sample, classes that a split lacks."""
    findings = []
    used = [name for name in image_set.classes if counts[name]]
    for a, b in _neighbours(used):
        if why := alike(a, b, counts[a], counts[b]):
            findings.append(
                Finding(
                    "near_duplicate_class",
                    "note",
                    f"{a!r} ({counts[a]}) and {b!r} ({counts[b]}) {why}: one class written in two ways?",
                    value=f"{a}, {b}",
                )
            )
    only = {
        obj.label: (record, obj)
        for records in image_set.splits.values()
        for record in records
        for obj in record.objects
        if counts[obj.label] == 1 and not obj.ignore
    }
    unused = [name for name in image_set.classes if not counts[name]]
    if len(unused) > _LISTED:
        shown = ", ".join(map(repr, unused[:10]))
        reason = f"{len(unused)} of {len(image_set.classes)} classes are defined but never occur: {shown} ..."
        findings.append(Finding("unused_class", "note", reason, value=str(len(unused))))
    for name in image_set.classes:
        if counts[name] == 0 and len(unused) <= _LISTED:
            findings.append(Finding("unused_class", "note", f"{name!r} is defined but never occurs", value=name))
        elif counts[name] == 1:
            record, obj = only[name]
            place = _place(obj.source, record)
            reason = f"{name!r} has a single sample"
            findings.append(Finding("rare_class", "note", reason, *place, name, record.id, obj.box))
    if len(used) == 1:
        findings.append(
            Finding(
                "single_class",
                "note",
                f"{used[0]!r} is the only class: its class loss will be zero, which is no "
                "fault; the box is what is learnt",
                value=used[0],
            )
        )
    per_split = {
        split: {obj.label for record in records for obj in record.objects if not obj.ignore}
        for split, records in image_set.splits.items()
    }
    for split, present in per_split.items():
        lacking = [name for name in used if name not in present]
        if lacking and present:
            findings.append(
                Finding(
                    "missing_in_split",
                    "note",
                    f"{', '.join(map(repr, lacking[:10]))} never "
                    f"{'occurs' if len(lacking) == 1 else 'occur'} in {split}",
                    value=split,
                )
            )
    return findings


def alike(a: str, b: str, count_a: int, count_b: int) -> str | None:
    """Why two class names may be one: they differ by case, blanks or punctuation; or one is rare and a slip away.

    Names that differ in a digit are different on purpose.
    """
    plain_a, plain_b = _plain(a), _plain(b)
    if plain_a == plain_b and plain_a:
        return "differ by case, blanks or punctuation only"
    rare, common = sorted((count_a, count_b))
    if min(len(plain_a), len(plain_b)) < 5 or rare > max(2, 0.05 * common):
        return None
    if re.sub(r"\D", "", plain_a) != re.sub(r"\D", "", plain_b) or not one_slip(plain_a, plain_b):
        return None
    return "differ by one slip, and one of them is rare"


def _plain(name: str) -> str:
    return re.sub(r"[\W_]+", "", fold(name))


def _neighbours(names: Sequence[str]) -> list[tuple[str, str]]:
    """The pairs of names, in order, that are equal when plain, or once a letter is taken out of one or both: all that
    are a slip apart, without comparing each with each."""
    sharing: dict[str, list[int]] = defaultdict(list)
    for position, name in enumerate(names):
        plain = _plain(name)
        for variant in {plain, *(plain[:i] + plain[i + 1 :] for i in range(len(plain[:100])))}:
            sharing[variant].append(position)
    pairs = {
        pair for members in sharing.values() if 1 < len(members) <= _CROWD for pair in combinations(members, 2)
    }
    return [(names[a], names[b]) for a, b in sorted(pairs)]


def one_slip(a: str, b: str) -> bool:
    """Whether one letter changed, added, left out, or two neighbours swapped, makes one of the other."""
    if abs(len(a) - len(b)) > 1:
        return False
    start = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
    rest_a, rest_b = a[start:], b[start:]
    swapped = len(a) == len(b) and rest_a[:2] == rest_b[:2][::-1] and rest_a[2:] == rest_b[2:]
    return rest_a[1:] == rest_b[1:] or rest_a[1:] == rest_b or rest_a == rest_b[1:] or swapped


def shrunk_findings(records: Sequence[ImageRecord], size: int, findings: list[Finding]) -> list[ImageRecord]:
    """The records without objects that cover less than a pixel once the picture is `size` pixels large. (A long thin one
    may be under a pixel high: it is still to be seen.)"""
    kept = []
    for record in records:
        scale = size / max(record.width, record.height)
        small = [obj for obj in record.objects if _area(obj.box) * scale**2 < 1 and not obj.ignore]
        for obj in small:
            file, line, number = _place(obj.source, record)
            wide, high = (obj.box[2] - obj.box[0]) * scale, (obj.box[3] - obj.box[1]) * scale
            findings.append(
                Finding(
                    "too_small",
                    "drop_object",
                    f"{wide:.2g} x {high:.2g} pixels at the network's {size} pixels",
                    file,
                    line,
                    number,
                    " ".join(f"{side:g}" for side in obj.box),
                    record.id,
                    obj.box,
                )
            )
        if small:
            record = replace(record, objects=tuple(obj for obj in record.objects if obj not in small))
        if record.objects or record.negative:
            kept.append(record)
    return kept


def _area(box: Sequence[float]) -> float:
    return (box[2] - box[0]) * (box[3] - box[1])


def _place(source: str, record: ImageRecord) -> tuple[str, int | None, int | None]:
    """(file, line, object) from an object's source ("labels/a.txt: line 3")."""
    file, _, where = source.rpartition(": ")
    unit, _, number = where.partition(" ")
    if unit == "line":
        return file, int(number), None
    return (record.id if unit == "annotation" else file), None, int(number)


def statistics(splits: Splits, size: int | None) -> dict[str, Any]:
    """Mean, sigma and range of each target (pixels of the network's input, or of the pictures without `size`),
    quantiles of aspect ratio and of the share of the picture that an object covers, and the commonest picture sizes."""
    boxes, shares = array("d"), array("d")  # a list of tuples would take five times the memory
    for record in (record for records in splits.values() for record in records):
        mapped = letterbox_map(record.width, record.height, size) if size else None
        for obj in record.objects:
            if not obj.ignore:
                boxes.extend(mapped.box(obj.box) if mapped else obj.box)
                shares.append((obj.box[2] - obj.box[0]) * (obj.box[3] - obj.box[1]) / (record.width * record.height))
    sizes = Counter(f"{record.width} x {record.height}" for records in splits.values() for record in records)
    figures: dict[str, Any] = {"picture_sizes": dict(sizes.most_common(5)), "picture_sizes_total": len(sizes)}
    if boxes:
        x0, y0, x1, y1 = np.asarray(boxes).reshape(-1, 4).T
        columns = ((x0 + x1) / 2, (y0 + y1) / 2, x1 - x0, y1 - y0)
        figures["targets"] = {
            name: {
                "mean": float(column.mean()),
                "std": float(column.std()),
                "min": float(column.min()),
                "max": float(column.max()),
            }
            for name, column in zip(TARGETS, columns)
        }
        figures["aspect_ratio"] = _quantiles(columns[2] / columns[3])
        figures["area_share"] = _quantiles(np.asarray(shares))
    return figures


def _quantiles(values: np.ndarray) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in zip(("min", "p10", "median", "p90", "max"), np.quantile(values, (0, 0.1, 0.5, 0.9, 1)))
    }


def target_findings(
    splits: Splits, figures: Mapping[str, Any], size: int | None, batch_size: int | None
) -> list[Finding]:
    """A target that never varies, objects whose target lies far out, and a last batch of one."""
    findings = []
    targets = figures.get("targets", {})
    records = [record for members in splits.values() for record in members]
    many = sum(not obj.ignore for record in records for obj in record.objects) > 1
    for name, figure in targets.items():
        if many and figure["std"] < _CONSTANT:
            findings.append(
                Finding(
                    "constant_target",
                    "note",
                    f"{name} is {figure['mean']:g} for every object: nothing to learn "
                    "there, and its sigma is taken as 1 pixel",
                    value=name,
                )
            )
    for record in records if many else ():
        mapped = letterbox_map(record.width, record.height, size) if size else None
        for obj in record.objects:
            x0, y0, x1, y1 = mapped.box(obj.box) if mapped else obj.box
            for name, value in zip(TARGETS, ((x0 + x1) / 2, (y0 + y1) / 2, x1 - x0, y1 - y0)):
                figure = targets.get(name)
                if (
                    not obj.ignore
                    and figure
                    and figure["std"] >= _CONSTANT
                    and math.fabs(value - figure["mean"]) > _FAR * figure["std"]
                ):
                    file, line, number = _place(obj.source, record)
                    findings.append(
                        Finding(
                            "far_target",
                            "note",
                            f"{name} is {value:.4g}, {_FAR:g} sigma and more from the mean {figure['mean']:.4g}",
                            file,
                            line,
                            number,
                            f"{value:.6g}",
                            record.id,
                            obj.box,
                        )
                    )
    training = splits.get("train", ())
    if batch_size and len(training) % batch_size == 1:
        findings.append(
            Finding(
                "last_batch_of_one",
                "note",
                f"{len(training)} training pictures in batches of {batch_size} leave "
                "one alone in the last: it is joined by other pictures that count nothing",
                value="1",
            )
        )
    return findings
