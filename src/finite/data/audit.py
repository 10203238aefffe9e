"""The audit of a data folder: everything that the readers say, every picture decoded, and the set looked at as a whole.

    audit = check("photos", image_size=96, batch_size=32, cache_path=Path("runs/audit.json"))
    audit.image_set        what can be trained on
    audit.findings         what is wrong or worth a word, worst first

Nothing below the data root is written. What was found is remembered at `cache_path`: an unchanged folder is not looked
at again, and of a changed one only the changed pictures are decoded.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from finite.data import audit_cache
from finite.data.audit_pictures import Picture, decode_all, picture_findings
from finite.data.audit_set import class_findings, shrunk_findings, split_findings, statistics, target_findings
from finite.data.folder import open_index, read_index
from finite.data.index import Index
from finite.data.sample import Finding, ImageRecord, ImageSet

#: Actions from worst to mildest.
ACTIONS = ("refuse", "drop_file", "drop_image", "drop_object", "fix", "note")
_LEAK = "LEAK"


@dataclass
class Audit:
    """What a folder holds and what is wrong with it. Counts are of usable images (at least one object to train on)."""

    image_set: ImageSet
    findings: list[Finding]
    images_total: int
    images_usable: int
    images_negative: int
    objects_total: int
    objects_usable: int
    classes: dict[str, int]
    statistics: dict[str, Any] = field(default_factory=dict)
    remembered: bool = False

    @property
    def usable(self) -> bool:
        """Whether there is anything to train on, and nothing that the user must decide first."""
        return self.objects_usable > 0 and not self.refusals

    @property
    def refusals(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.action == "refuse"]

    def why_unusable(self, use: str = "train on") -> str:
        """One line for the error that stops a training on this set, or what else its `use` would be."""
        if self.refusals:
            first = self.refusals[0]
            return f"{first.file or self.image_set.root}: {first.reason}"
        worst = Counter(finding.kind for finding in self.findings).most_common(3)
        said = ", ".join(f"{kind} ({count})" for kind, count in worst) or "no objects"
        return f"{self.image_set.root}: nothing to {use}: {said}; tools/check_dataset.py shows each"


def check(
    root: Path | str,
    format: str = "auto",
    voc_base: int = 1,
    image_size: int | None = None,
    batch_size: int | None = None,
    cache_path: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Audit:
    """Audit the folder (or annotation file) `root`; arguments as for `folder.read_folder`.

    `image_size` (px, side of the network's input): objects smaller than a pixel at that size are set aside.
    `batch_size`: say when the last batch would be a single sample. `cache_path`: where to remember, outside the data
    root. `progress(done, total)` is called while pictures are decoded. Raises UserError where there is no data at all;
    a set that is there but unusable is an Audit with `usable` False.
    """
    index = open_index(root)
    stamps = file_stamps(index)
    key = _key(stamps, format, voc_base, image_size, batch_size)
    memory = audit_cache.load(cache_path) if cache_path is not None else audit_cache.Memory()
    if memory.key == key and (audit := audit_cache.recall(memory, index)) is not None:
        return replace(audit, remembered=True)
    memory.lines.clear()
    image_set = read_index(index, format, voc_base)
    pixels = {r.id: r.width * r.height for records in image_set.splits.values() for r in records}
    pictures = decode_all(index, pixels, stamps, memory.pictures, progress)
    audit = _judge(index, image_set, pictures, image_size, batch_size)
    if cache_path is not None:
        audit_cache.save(cache_path, key, pictures, audit)
    return audit


def file_stamps(index: Index) -> dict[str, tuple[int, int]]:
    """(size, time of change in ns) of every file, hidden ones left out: what tells that a file is still the same."""
    stamps = {}
    for path in (*index.images, *index.others):
        try:
            status = index.path(path).stat()
        except OSError:
            continue  # gone since the folder was listed, or a broken link: the reader will say so
        stamps[path] = (status.st_size, status.st_mtime_ns)
    return stamps


def _key(stamps: dict[str, tuple[int, int]], *settings: Any) -> str:
    text = repr((audit_cache.VERSION, settings, sorted(stamps.items())))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _judge(
    index: Index, image_set: ImageSet, pictures: dict[str, Picture], image_size: int | None, batch_size: int | None
) -> Audit:
    """The audit from what was read and decoded."""
    findings = list(image_set.findings)
    splits: dict[str, list[ImageRecord]] = {}
    for name, records in image_set.splits.items():
        findings += picture_findings(records, pictures)
        kept = [record for record in records if pictures[record.id].kind is None]
        if image_size is not None:
            kept = shrunk_findings(kept, image_size, findings)
        splits[name] = kept
    image_set = replace(image_set, splits=splits, findings=findings)
    findings += split_findings(splits, pictures)
    counts = Counter(
        obj.label for records in splits.values() for record in records for obj in record.objects if not obj.ignore
    )
    findings += class_findings(image_set, counts)
    figures = statistics(splits, image_size)
    findings += target_findings(splits, figures, image_size, batch_size)
    findings.sort(key=_badness)
    records = [record for members in splits.values() for record in members]
    usable = sum(any(not obj.ignore for obj in record.objects) for record in records)
    return Audit(
        image_set,
        findings,
        len(index.images),
        usable,
        sum(record.negative for record in records),
        image_set.objects_total,
        sum(counts.values()),
        {name: counts[name] for name in image_set.classes},
        figures,
    )


def _badness(finding: Finding) -> tuple:
    leak = finding.reason.startswith(_LEAK)
    place: Sequence[Any] = (finding.file or "", finding.line or 0, finding.object or 0)
    return (0 if leak else 1 + ACTIONS.index(finding.action), finding.kind, *place)
