"""history.jsonl: the run as numbers, one JSON object per line, in the order in which things happened.

Every line has `kind`, `stage` (name), `epoch` (from 1 within the stage) and `step` (global, from 1). Besides:

- "step": `verdict`; `rate` (learning rate); `scale` (loss scale); and, unless the host refused the batch before the
  step, `terms` {name: {"raw", "bounded", "weighted"}} ("weighted": its share of the loss), without those out of use that were
  not measured; `total`; `grad_norm` before and `grad_norm_clipped` after clipping; `part_norms` {part of the network: gradient norm}; `points` {key point:
  largest magnitude}; where gradients of several steps were added up for one update (`training.accumulate`) and this step
  made it, `update_norm` before and `update_norm_clipped` after clipping; `clock`.
- "epoch": `terms` {name: {"raw", "weighted"}} as means over the epoch's healthy steps, and with `loss.balance: learned` each
  term's "factor" in the loss after it; `rate`; `scale` (null in float32); `healthy`, `overflow`, `refused` (steps of this epoch by verdict); `validation` {metric: value}; `clock`.
- "event": `event` (refused, rewind, ...) and `text`, a sentence; further keys as the event needs.

`clock` holds all that depends on the machine's speed (`seconds`, `wait_seconds`). Without it, the history of a run that
was killed and resumed equals that of a run left alone, line by line; for the same reason resuming leaves no line of its
own here (run.log tells it).

Non-finite numbers stand as the strings "nan", "inf", "-inf": `float(value)` reads any of them.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from finite.errors import UserError
from finite.run import plain, write_bytes

KINDS = ("step", "epoch", "event")


class History:
    """Appends to a history file and reads it. Opening it changes nothing on disk; the first `append` does."""

    def __init__(self, path: Path):
        self.path = Path(path)
        self._file: BinaryIO | None = None
        self._lines = len(_whole_lines(self.path))

    def __len__(self) -> int:
        """Whole lines in the file."""
        return self._lines

    def append(self, record: Mapping[str, Any]) -> None:
        """Add one line and hand it to the operating system at once: it outlives a killed process."""
        if record.get("kind") not in KINDS:
            raise ValueError(f"history record of kind {record.get('kind')!r}: expected one of {', '.join(KINDS)}")
        line = json.dumps(plain(record), ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n"
        if self._file is None:
            self.truncate(self._lines)  # a line torn by a kill would swallow this one
            self._file = self.path.open("ab")
        self._file.write(line.encode())
        self._file.flush()
        self._lines += 1

    def sync(self) -> int:
        """Force the lines to the disk and return their number: what a checkpoint stores, to be given to `truncate`."""
        if self._file is not None:
            os.fsync(self._file.fileno())
        return self._lines

    def read(self) -> list[dict[str, Any]]:
        """All whole lines. Raises UserError naming file and line when one is not a JSON object."""
        records = []
        for number, line in enumerate(_whole_lines(self.path), 1):
            try:
                record = json.loads(line)
            except ValueError as error:
                raise UserError(f"{self.path}:{number}: not JSON ({error}); the file was altered") from error
            if not isinstance(record, dict):
                raise UserError(f"{self.path}:{number}: not a JSON object; the file was altered")
            records.append(record)
        return records

    def truncate(self, lines: int) -> None:
        """Keep the first `lines` lines; what comes after, and a line torn by a kill, is cut. Atomic.

        Raises UserError when the file has fewer whole lines than that.
        """
        kept = _whole_lines(self.path)
        if len(kept) < lines:
            raise UserError(
                f"{self.path}: has {len(kept)} lines, the checkpoint was written after {lines}; it was altered or "
                "deleted, so this run can't be resumed: put it back, or start a new run with --init"
            )
        self.close()
        data = b"".join(kept[:lines])
        if not self.path.exists() or self.path.stat().st_size != len(data):
            write_bytes(self.path, data)
        self._lines = lines

    def close(self) -> None:
        """Close the file; a later `append` opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None


class Unwritten(History):
    """The history of a worker that leaves the writing to worker 0: takes everything, writes nothing."""

    def append(self, record: Mapping[str, Any]) -> None:
        pass

    def sync(self) -> int:
        return 0

    def truncate(self, lines: int) -> None:
        pass


def _whole_lines(path: Path) -> list[bytes]:
    """The lines that end in a newline, newline included; none when there is no file."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    return [line + b"\n" for line in data.split(b"\n")[:-1]]
