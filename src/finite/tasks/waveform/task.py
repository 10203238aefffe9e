"""Waveform denoising as a task: a noisy signal in, the clean one out.

    task = WaveformTask(config)
    sources = task.data(run.data)          # reads, splits, adds noise; writes split.json
    network = task.network()               # scaled by the training split
    task = WaveformTask.restore(config, checkpoint.state)   # without data, for predict and export
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor
from PIL import Image

from finite.config import WaveformConfig
from finite.data import audio_audit
from finite.data.audio_audit import AudioAudit, Clip
from finite.data.audio_show import sentences
from finite.data.split import NAMES, held, split
from finite.errors import UserError
from finite.run import write_json
from finite.tasks.base import Predict, Sources, Told
from finite.tasks.waveform import draw
from finite.tasks.waveform.exported import WaveformExport
from finite.tasks.waveform.metrics import WaveformMetrics, merit
from finite.tasks.waveform.network import POWER_EPS, Cleaner, Network, basis
from finite.tasks.waveform.predicted import WaveformAnswers
from finite.tasks.waveform.source import ALL, FOLDER, PAIR, Rules, WaveformSource
from finite.tasks.waveform.terms import POINTS, SPECTRAL, TERMS, WaveformTerms

#: Training clips that the statistics are taken from, evenly over the split.
STATISTICS_CLIPS = 200


class WaveformTask:
    """See `finite.tasks.base.Task`."""

    terms = TERMS
    points = POINTS
    class_part = "none"  # no part depends on classes
    groups = {"analysis": "analysis.*", "mask": "mask.*", "synthesis": "synthesis.*"}
    heads: Mapping[str, str] = {}  # every term is about the one output
    scaling = {"power_*": "mask"}

    def __init__(self, config: WaveformConfig, kinds: Sequence[str] | None = None) -> None:
        self.config = config
        self.kinds = self._kinds_of(False) if kinds is None else tuple(kinds)
        self.statistics: dict[str, np.ndarray] = {}  # what `Network.set_statistics` takes; empty without data
        self._known: dict[bytes, tuple[float, float]] = {}  # see WaveformMetrics

    @classmethod
    def restore(cls, config: WaveformConfig, state: Mapping[str, Any]) -> "WaveformTask":
        """The task of a checkpoint. The statistics are tensors of the checkpoint and come with the weights."""
        return cls(config, state["kinds"])

    def state(self) -> dict[str, Any]:
        """What `restore` needs, for the checkpoint."""
        return {"kinds": list(self.kinds)}

    def _kinds_of(self, pairs: bool) -> tuple[str, ...]:
        if pairs:
            return (PAIR,)
        single = [*self.config.data.noises, *([FOLDER] if self.config.data.noise_root is not None else [])]
        return (*single, *([ALL] if len(single) > 1 else []))

    # ---- data --------------------------------------------------------------------------------------------------------

    def check_files(self) -> None:
        """See `finite.tasks.base.Task`: there are none."""

    def data(self, folder: Path) -> Sources:
        """Read `data.root` (and `data.test`, `data.noise_root`), split, and take the training statistics.

        Writes split.json into `folder`; where it exists already, the data must still say the same. `facts` of the result:
        root, format, clips per split, seconds per split, noise, left_out (reason: clips), findings (kind: count), notes
        (sentences for the user). Raises UserError.
        """
        config = self.config.data
        audit = self._audit(config.root)
        if not (folder / "findings.json").exists():
            write_json(folder / "findings.json", [asdict(finding) for finding in audit.findings])
        self.kinds = self._kinds_of(audit.pairs)
        notes, left_out = sentences(audit.findings), Counter(audit_dropped(audit))
        splits, told = self._split(audit)
        notes += told
        if config.test is not None:
            tested = self._audit(config.test)
            if tested.pairs != audit.pairs:
                raise UserError(f"data.test: {config.test} holds {'pairs' if tested.pairs else 'no pairs'}, data.root is otherwise")
            notes += sentences(tested.findings)
            splits["test"] = [clip for clips in tested.splits.values() for clip in clips]
            left_out.update(audit_dropped(tested))
        for name in ("train", "validation"):
            if not splits[name]:
                raise UserError(f"{config.root}: no clip in the {name} split ({audit.files} files were read); add some, or change data.split")
        self._remember(folder, splits)
        noises = self._noises(notes) if FOLDER in self.kinds else {}
        total = sum(map(len, splits.values()))
        made = {name: self._source(splits[name], len(splits[name]) / total, part, noises.get(name, []), name == "train")
                for part, name in enumerate(NAMES)}
        self._measure(made["train"])
        facts = {
            "root": str(config.root),
            "format": "pairs" if audit.pairs else "clean files",
            "clips": {name: len(splits[name]) for name in NAMES},
            "seconds": {name: round(sum(clip.samples for clip in splits[name]) / config.sample_rate, 1) for name in NAMES},
            "noise": ", ".join(self.kinds),
            "left_out": dict(left_out),
            "findings": dict(Counter(finding.kind for finding in audit.findings)),
            "notes": notes,
        }
        return Sources(made["train"], made["validation"], made["test"], facts)

    def _audit(self, root: Path) -> AudioAudit:
        if root == WaveformConfig().data.root and not root.exists():
            raise UserError(f"{root}: no such folder; `python dataset/make_tones.py` makes the built-in clips")
        audit = audio_audit.check(root, self.config.data.sample_rate, max(r.fft for r in self.config.loss.resolutions))
        if not audit.usable:
            why = "; ".join(sentences(audit.findings)[:3]) or "there is no .wav, .flac or .ogg in it"
            raise UserError(f"{root}: no usable clip: {why}")
        return audit

    def _split(self, audit: AudioAudit) -> tuple[dict[str, list[Clip]], list[str]]:
        """The three splits, and a sentence for each thing that was decided here."""
        config, notes = self.config.data, []
        given = {name: list(clips) for name, clips in audit.splits.items()}
        if config.hold_out:
            held = [clip for clips in given.values() for clip in clips if any(fnmatchcase(clip.id, p) for p in config.hold_out)]
            if not held:
                raise UserError(f"data.hold_out: {', '.join(config.hold_out)} fits no file below {config.root}")
            given = {name: [clip for clip in clips if clip not in held] for name, clips in given.items()}
            given["test"] = held
            notes.append(f"{len(held)} clips held out for the test by {', '.join(config.hold_out)}")
        pool = given.pop("all", [])
        if "train" in given:
            given["train"] += pool
        else:
            given["train"] = pool
        missing = [name for name in NAMES[1:] if not given.get(name)]
        if missing and given["train"]:
            names = ["train", *missing]
            parts = split(given["train"], lambda clip: "", [config.split[NAMES.index(name)] for name in names], self.config.seed, names)
            notes.append(f"the folder has no {' or '.join(missing)} split: {len(given['train'])} clips divided with seed {self.config.seed}")
            given |= parts
        return {name: given.get(name, []) for name in NAMES}, notes

    def _noises(self, notes: list[str]) -> dict[str, list[Clip]]:
        """Recordings of noise by split; no recording is in two. What is wrong with them goes to `notes`."""
        root = self.config.data.noise_root
        found = audio_audit.check(root, self.config.data.sample_rate, 1)
        clips = [clip for clips in found.splits.values() for clip in clips]
        notes += [f"data.noise_root: {text}" for text in sentences(found.findings)]
        if len(clips) < 3:
            raise UserError(f"data.noise_root: {root} has {len(clips)} usable recordings; three are needed, so that validation and test hear others")
        return split(clips, lambda clip: "", self.config.data.split, self.config.seed, NAMES)

    def source(self, root: Path, seen: Collection[Path] = ()) -> tuple[WaveformSource, dict[str, Any]]:
        """All clips of another folder, to be scored; and the facts about it. Raises UserError."""
        audit = self._audit(root)
        if audit.pairs != (self.kinds == (PAIR,)):
            raise UserError(f"{root}: holds {'pairs' if audit.pairs else 'no pairs'}, the run was trained otherwise")
        clips = [clip for clips in audit.splits.values() for clip in clips]
        fresh = [clip for clip in clips if clip.path.resolve() not in seen]
        left_out = audit_dropped(audit) | ({"seen in training": len(clips) - len(fresh)} if len(fresh) < len(clips) else {})
        if not fresh:
            raise UserError(f"{root}: nothing to score, the run was trained on all {len(clips)} clips of it")
        notes = sentences(audit.findings)
        noises = self._noises(notes)["test"] if FOLDER in self.kinds else []
        facts = {"root": str(root), "format": "pairs" if audit.pairs else "clean files", "clips": len(fresh), "left_out": left_out,
                 "notes": notes}
        return self._source(fresh, 1.0, len(NAMES), noises), facts

    def _source(self, clips: Sequence[Clip], share: float, part: int, noises: Sequence[Clip], trained: bool = False) -> WaveformSource:
        """`share` of the memory is its own; what is `trained` on is augmented as configured."""
        data, augment = self.config.data, self.config.augment
        changed = trained and augment.enabled
        rules = Rules(data.sample_rate, data.length, self.kinds, data.snr, data.test_snr,
                      (augment.gain if changed else (0.0, 0.0)) if trained else None, augment.polarity if changed else 0.0)
        return WaveformSource(clips, rules, noises, part, data.cache_mb * share)

    def _remember(self, folder: Path, splits: Mapping[str, Sequence[Clip]]) -> None:
        """Write split.json, or make sure that it still holds: a resumed run must see the same data."""
        config, ids = self.config.data, {name: [clip.id for clip in splits[name]] for name in NAMES}
        if not held(folder / "split.json", ids, config.root, "clips"):
            roots = {"root": config.root.absolute(), "test_root": config.test and config.test.absolute(), "seed": self.config.seed}
            write_json(folder / "split.json", {**roots, **ids})

    def _measure(self, train: WaveformSource) -> None:
        """Mean and deviation of the log powers of noisy training clips, by bin."""
        model = self.config.model
        forward, _ = basis(model.window, model.hop)
        count, sums, squares = 0, 0.0, 0.0
        for index in np.unique(np.linspace(0, len(train) - 1, min(len(train), STATISTICS_CLIPS)).astype(int)).tolist():
            row = train.row(index, self.config.seed, 0)
            noisy = np.pad(row["noisy"], (model.window, model.window))
            frames = np.lib.stride_tricks.sliding_window_view(noisy, model.window)[:: model.hop] @ forward
            bins = model.window // 2
            power = np.log(frames[:, :bins] ** 2.0 + frames[:, bins + 1 : -1] ** 2.0 + POWER_EPS).astype(np.float64)
            count, sums, squares = count + len(power), sums + power.sum(0), squares + np.square(power).sum(0)
        mean = sums / count
        self.statistics = {"power_mean": mean, "power_std": np.sqrt(np.maximum(squares / count - mean**2, 0.01))}

    # ---- network and figures -----------------------------------------------------------------------------------------

    def network(self) -> Network:
        """A new network with initial weights by `seed`; after `data`, with the training split's statistics."""
        model = self.config.model
        network = Network(model.window, model.hop, model.channels, model.depth, model.hidden, model.norm == "batch", self.config.seed)
        if self.statistics:
            network.set_statistics(**self.statistics)
        return network

    def start_weights(self, network: Network) -> dict[str, str]:
        return {}

    def terms_cell(self, network: Any, used: Collection[str] | None = None) -> WaveformTerms:
        """See `finite.tasks.base.Task`: without a spectral term in use no spectrum is computed."""
        loss = self.config.loss
        return WaveformTerms(network, self.config.data.length, [(r.fft, r.hop, r.window) for r in loss.resolutions], loss.magnitude_eps,
                             loss.log_eps, loss.ratio_eps, loss.ratio, spectral=used is None or not SPECTRAL.isdisjoint(used))

    def predictor(self, network: Network) -> Predict:
        """See `finite.tasks.base.Task`: output `estimate` (B, L). It runs the same cell as the exported model does."""
        cell = Cleaner(network)
        cell.set_train(False)

        def construct(noisy):
            return cell(noisy)

        compiled = ms.jit(construct)

        def predict(batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
            return {"estimate": compiled(Tensor(np.ascontiguousarray(batch["noisy"], np.float32))).asnumpy()}

        return predict

    def metrics(self) -> WaveformMetrics:
        return WaveformMetrics(self.kinds, self._known)

    def score(self, metrics: Mapping[str, Any], terms: Collection[str]) -> float:
        """The gain in SI-SDR."""
        return float("nan") if metrics["si_sdr_gain"] is None else metrics["si_sdr_gain"]

    def merit(self, outputs: Mapping[str, np.ndarray], batch: Mapping[str, np.ndarray]) -> np.ndarray:
        return merit(outputs, batch)

    def show(self, outputs: Mapping[str, np.ndarray] | None, batch: Mapping[str, np.ndarray], titles: Sequence[str]) -> list[Image.Image]:
        """One picture per row: spectrograms of noisy, clean and estimate. Numbers that are not finite are magenta."""
        gains = [None] * len(titles) if outputs is None else merit(outputs, batch).tolist()
        pictures = []
        for row, title in enumerate(titles):
            count = max(int(np.nan_to_num(batch["samples"][row], nan=1.0)), 1)
            kind = int(batch["kind"][row])
            signals = [batch["noisy"][row][:count], batch["clean"][row][:count], *([] if outputs is None else [outputs["estimate"][row][:count]])]
            name = self.kinds[kind] if 0 <= kind < len(self.kinds) else f"kind {kind}"
            gain = "" if gains[row] is None else f"SI-SDR {gains[row]:+.1f} dB"
            pictures.append(draw.picture(signals, self.config.data.sample_rate, f"{name} noise", gain, title))
        return pictures

    def charts(self, metrics: Mapping[str, Any]) -> dict[str, bytes]:
        return {}

    def examples(self, outputs: Mapping[str, np.ndarray], batch: Mapping[str, np.ndarray], titles: Sequence[str]) -> dict[str, bytes]:
        """noisy, clean and estimate of the first samples, as WAV."""
        return draw.sounds(outputs, batch, self.config.data.sample_rate)

    def told(self, facts: Mapping[str, Any]) -> Told:
        data, model, augment, loss = self.config.data, self.config.model, self.config.augment, self.config.loss
        return Told(
            f"denoiser, {model.channels} channels, {model.depth} levels, window {model.window} every {model.hop}",
            {"resolutions": " ".join(f"{r.fft}/{r.hop}/{r.window}" for r in loss.resolutions), "augment": str(augment.enabled),
             "length": data.length, "channels": model.channels},
            [("AudioFolder", {"root": str(data.root), "format": facts.get("format", ""), "clips": facts.get("clips", {}).get("train", 0)}, []),
             ("Map", {"threads": data.threads}, [
                 ("Decode", {"sample_rate": data.sample_rate, "cache_mb": data.cache_mb}),
                 ("Crop", {"length": data.length}),
                 ("AddNoise", {"kinds": ", ".join(self.kinds), "snr": list(data.snr)}),
                 *([("Augment", augment.model_dump(exclude={"enabled"}))] if augment.enabled else []),
             ])])

    def exported(self) -> WaveformExport:
        return WaveformExport(self.config.data.length, self.config.data.sample_rate)

    def answers(self) -> WaveformAnswers:
        return WaveformAnswers(self.config.data.sample_rate, self.config.data.length, self.config.model.window, self.config.model.hop,
                               self.config.model.depth)


def audit_dropped(audit: AudioAudit) -> dict[str, int]:
    return audio_audit.dropped(audit.findings)
