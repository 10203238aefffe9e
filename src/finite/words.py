"""What each task calls its samples and its figures, for everybody who shows them: tables, the console, pages."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Words:
    """`sample`: what a sample is called. `figures`: columns of the table of figures, heading by metric. `parts`: what a row of a
    part of the samples is called, by the metric that holds the parts. `legend`: how to read the pictures; `shown`: what is on
    them."""

    sample: str
    figures: Mapping[str, str]
    parts: Mapping[str, str]
    legend: str
    shown: str

    @property
    def samples(self) -> str:
        """The plural, which is also the metric that counts them."""
        return f"{self.sample}s"

    def heading(self, name: str) -> str:
        return self.figures.get(name) or {"nonfinite": "not finite"}.get(name) or name.replace("_", " ")


#: By a task's kind (`Config.kind`).
WORDS = {
    "detection": Words(
        "image",
        {"top1": "top-1", "mean_iou": "mean IoU", "iou50": "IoU >= 0.5", "localization": "localisation"},
        {"per_class": "{}", "per_size": "{} objects"},
        "true box green, predicted box orange",
        "images with true and predicted boxes",
    ),
    "dense": Words(
        "image",
        {"map50": "mAP50", "map": "mAP50-95", "recall": "recall"},
        {"per_class": "{}", "per_size": "{} objects"},
        "true boxes green (missed ones blue, ignored ones grey), found boxes orange (false alarms red)",
        "images with true and found boxes",
    ),
    "waveform": Words(
        "clip",
        {"si_sdr_gain": "SI-SDR gain, dB", "wiener_gain": "Wiener gain, dB", "si_sdr": "SI-SDR, dB", "noisy_si_sdr": "noisy, dB",
         "spectral_convergence": "spectral convergence", "log_magnitude": "log magnitude"},
        {"per_noise": "{} noise"},
        "spectrograms from left to right: noisy, clean, estimate; frequency upwards, time to the right",
        "spectrograms of the noisy clip, the clean one and the estimate",
    ),
}
