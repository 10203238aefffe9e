"""The confusion matrix as a picture."""

from collections.abc import Sequence
import io

import numpy as np


def confusion_picture(confusion: Sequence[Sequence[int]], classes: Sequence[str]) -> bytes:
    """A PNG of the confusion matrix: a row per true class, coloured by the share of that class, with counts."""
    from matplotlib.figure import Figure  # slow to import, and wanted here alone

    counts = np.array(confusion)
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    side = 1.8 + (0.42 if len(classes) <= 20 else 0.3) * len(classes)
    figure = Figure(figsize=(side + 0.6, side), dpi=110, layout="constrained")
    axes = figure.subplots()
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    axes.set_xticks(range(len(classes)), classes, rotation=45, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(classes)), classes)
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    axes.tick_params(length=0)
    for row, column in np.argwhere(counts > 0):
        colour = "white" if shares[row, column] > 0.5 else "black"
        axes.text(column, row, str(counts[row, column]), ha="center", va="center", color=colour, fontsize=8)
    data = io.BytesIO()
    figure.savefig(data, format="png")
    return data.getvalue()
