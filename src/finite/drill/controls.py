"""Clean controls: awkward but legal data and settings, on which no incident may be raised."""

from collections.abc import Callable
from typing import Any

from mindspore import Tensor
import numpy as np

from finite.data.pipeline import Batch
from finite.drill import many
from finite.drill.dataset import EPOCHS, IMAGES, STEPS
from finite.drill.faults import HALF, STAGE, Make, Setup
from finite.drill.formulas import DrillNetwork
from finite.drill.rig import Injection
from finite.drill.task import Row

#: Each control is drawn this many times for a seed.
DRAWS = 3


def some(share: float, change: Callable[[Row, np.random.Generator], None], **options: Any) -> Make:
    """A share of the samples is changed."""
    def make(rng: np.random.Generator) -> Setup:
        chosen = set(np.flatnonzero(rng.random(IMAGES["train"]) < share).tolist())
        seed = int(rng.integers(2**31))

        def spoil(number: int, row: Row) -> Row:
            if number in chosen:
                row = {name: np.array(value) for name, value in row.items()}
                change(row, np.random.default_rng([seed, number]))
            return row

        return Setup(spoil=spoil, **options)

    return make


def scaled(name: str, low: float, high: float) -> Make:
    """The new network's layer is that many times too large: the loss starts high."""
    def make(rng: np.random.Generator) -> Setup:
        times = float(rng.uniform(low, high))

        def start(network: DrillNetwork) -> None:
            for p in network.get_parameters():
                if p.name == name:
                    p.set_data(Tensor(p.asnumpy() * np.float32(times)))

        return Setup(start=start)

    return make


def batches(change: Callable[[dict[str, np.ndarray], np.random.Generator], None], steps: int = 3, **options: Any) -> Make:
    """A few batches of a run are changed."""
    def make(rng: np.random.Generator) -> Setup:
        seed = int(rng.integers(2**31))

        def batch(whole: Batch) -> Batch:
            change(whole.arrays, np.random.default_rng(seed))
            return whole

        return Setup(Injection(int(rng.integers(1, STEPS - steps)), steps, batch=batch), **options)

    return make


def settings(**choices: tuple) -> Make:
    """Settings drawn from choices; keys with __ for a dot."""
    return lambda rng: Setup(changes={key.replace("__", "."): values[int(rng.integers(len(values)))] for key, values in choices.items()})


def set_box(low: float, high: float) -> Callable[[Row, np.random.Generator], None]:
    """A box of that width and height anywhere in the frame."""
    def change(row: Row, rng: np.random.Generator) -> None:
        size = rng.uniform(low, high, 2)
        row["box"] = np.array([*rng.uniform(size / 2, 32 - size / 2), *size], np.float32)
    return change


def fill(value: float) -> Callable[[Row, np.random.Generator], None]:
    def change(row: Row, rng: np.random.Generator) -> None:
        row["image"][:] = value
    return change


def binary(row: Row, rng: np.random.Generator) -> None:
    row["image"] = np.where(row["image"] > 120, 255, 0).astype(np.float32)


def other_label(row: Row, rng: np.random.Generator) -> None:
    row["label"] = np.array(rng.integers(3), np.int32)


def without_object(row: Row, rng: np.random.Generator) -> None:
    row["class_weight"], row["box_weight"] = np.zeros((), np.float32), np.zeros((), np.float32)


def rare(row: Row, rng: np.random.Generator) -> None:
    if int(row["label"]) == 2:
        without_object(row, rng)


def unweighted(arrays: dict[str, np.ndarray], rng: np.random.Generator) -> None:
    arrays["class_weight"][:], arrays["box_weight"][:] = 0, 0


def one_left(arrays: dict[str, np.ndarray], rng: np.random.Generator) -> None:
    arrays["class_weight"][1:], arrays["box_weight"][1:] = 0, 0


def nearly_copies(arrays: dict[str, np.ndarray], rng: np.random.Generator) -> None:
    for a in arrays.values():
        a[2:] = a[:1]


def flat_batch(arrays: dict[str, np.ndarray], rng: np.random.Generator) -> None:
    arrays["image"][:] = rng.integers(0, 256, (len(arrays["image"]), 1, 1, 1))


def copies(rng: np.random.Generator) -> Setup:
    """Byte-identical copies under other names: every row is one of a few."""
    few = int(rng.integers(12, 40))
    held: dict[int, Row] = {}
    return Setup(spoil=lambda number, row: held.setdefault(number % few, row) | {"fault": row["fault"]})


DENSE = {"changes": many.CHANGES, "variant": "dense"}

CONTROLS: dict[str, Make] = {
    "large_first_box_loss": scaled("box_head.box.weight", 30, 300),
    "large_first_class_loss": scaled("classifier.dense.weight", 5, 20),
    "tiny_boxes": some(0.3, set_box(0.5, 2.0)),
    "huge_boxes": some(0.3, set_box(28.0, 32.0)),
    "rare_class": some(0.95, rare),
    "images_without_object": some(0.4, without_object),
    "batches_without_object": batches(unweighted),
    "batches_with_one_object": batches(one_left),
    "nearly_a_batch_of_copies": batches(nearly_copies),
    "batches_of_flat_images": batches(flat_batch, 1),
    "black_images": some(0.1, fill(0.0)),
    "white_images": some(0.1, fill(255.0)),
    "hard_contrast": some(0.5, binary),
    "wrong_labels": some(0.2, other_label),
    "high_rate": settings(stages__0__learning_rate=(0.04, 0.05, 0.06)),
    "no_warmup": settings(stages__0__warmup_epochs=(0.0,), stages__0__schedule=("constant", "cosine")),
    "spike_clipping": settings(guard__spike__mode=("clip",), guard__spike__factor=(3.0, 5.0, 10.0)),
    "copies": copies,
    "half_precision": lambda rng: Setup(changes=HALF | {"training.loss_scale.initial": 2.0 ** int(rng.integers(8, 17))}, variant="half"),
    "dense_tiny_objects": some(0.3, many.tiny, **DENSE),
    "dense_covering_objects": some(0.3, many.covering, **DENSE),
    "dense_images_without_object": some(0.4, many.nothing_there, **DENSE),
    "dense_images_all_ignored": some(0.4, many.all_ignored, **DENSE),
    "dense_batches_without_object": batches(many.empty_batch, **DENSE),
    "dense_batches_all_ignored": batches(many.ignored_batch, **DENSE),
    "dense_first_boxes_without_size": lambda rng: Setup(start=many.inside_out, **DENSE),
    "dense_500_objects": lambda rng: Setup(changes=many.CHANGES | {"data.root": "crowded"}, variant="dense crowded"),
    "long_and_low": lambda rng: Setup(changes={STAGE + "epochs": EPOCHS + int(rng.integers(1, 4)), STAGE + "learning_rate": 0.001}),
}
