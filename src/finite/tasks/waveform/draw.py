"""Pictures and sounds of clips: spectrograms side by side with a caption, and WAV files."""

from collections.abc import Mapping, Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from finite.data.audio import encoded

#: Of the spectrograms: samples of a frame, and how far below full scale black is.
FFT, RANGE = 256, 80.0
#: Size of one spectrogram in px, and the gap between two.
WIDTH, HEIGHT, GAP = 180, 128, 4
PAPER, TEXT, FAINT = (28, 28, 32), (240, 240, 240), (160, 160, 168)
#: Samples of a sheet that can be listened to.
HEARD = 2
#: Colours from silence to full scale.
PALETTE = np.array([(0, 0, 4), (60, 15, 110), (165, 45, 96), (245, 125, 21), (252, 255, 164)], np.float64)


def spectrogram(signal: np.ndarray) -> np.ndarray:
    """(n,) -> (HEIGHT, WIDTH, 3) uint8: frequency upwards, time to the right. Times with a number that is not finite are
    magenta."""
    signal = np.asarray(signal, np.float64)
    fine = np.isfinite(signal)
    padded = np.pad(np.clip(np.where(fine, signal, 0), -1e6, 1e6), (FFT // 2, FFT))
    starts = np.linspace(0, max(len(signal) - 1, 0), WIDTH).astype(int)
    frames = padded[starts[:, None] + np.arange(FFT)] * np.hanning(FFT)
    level = 20 * np.log10(np.abs(np.fft.rfft(frames)) * 4 / FFT + 1e-10)
    shade = np.clip(1 + level / RANGE, 0, 1).T[::-1]
    rows = np.linspace(0, len(shade) - 1, HEIGHT).round().astype(int)
    place = shade[rows] * (len(PALETTE) - 1)
    colours = np.stack([np.interp(place, np.arange(len(PALETTE)), PALETTE[:, channel]) for channel in range(3)], -1)
    bad = np.pad(~fine, (FFT // 2, FFT))[starts[:, None] + np.arange(FFT)].any(1)
    colours[:, bad] = (255, 0, 255)
    return colours.round().astype(np.uint8)


def picture(signals: Sequence[np.ndarray], rate: int, label: str, note: str, title: str) -> Image.Image:
    """The signals' spectrograms from left to right; below them label and note, and the title in faint letters."""
    count = len(signals)
    canvas = Image.new("RGB", (count * WIDTH + (count - 1) * GAP, HEIGHT + 48), PAPER)
    for number, signal in enumerate(signals):
        canvas.paste(Image.fromarray(spectrogram(signal)), (number * (WIDTH + GAP), 0))
    pencil = ImageDraw.Draw(canvas)
    large, small = ImageFont.load_default(15), ImageFont.load_default(12)
    pencil.text((8, HEIGHT + 14), label, TEXT, large, "lm")
    seconds = f"{len(signals[0]) / rate:.2f} s, 0 to {rate / 2000:g} kHz"
    pencil.text((canvas.width - 8, HEIGHT + 14), f"{note}   {seconds}".strip(), FAINT, small, "rm")
    pencil.text((8, HEIGHT + 35), title[-max(canvas.width // 7, 10) :], FAINT, small, "lm")
    return canvas


def sounds(outputs: Mapping[str, np.ndarray], batch: Mapping[str, np.ndarray], rate: int) -> dict[str, bytes]:
    """NUMBER-noisy.wav, -clean.wav and -estimate.wav of the first samples; the first letters keep this order."""
    made = {}
    for row in range(min(HEARD, len(batch["samples"]))):
        count = int(batch["samples"][row])
        made |= {f"{row + 1}-{name}.wav": encoded(signal[row][:count], rate)
                 for name, signal in (("noisy", batch["noisy"]), ("clean", batch["clean"]), ("estimate", outputs["estimate"]))}
    return made
