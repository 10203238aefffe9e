"""Figures of the dense head on cases whose answers are known by hand; crowds, difficult objects, merging, confusion."""

import contextlib
import io

import numpy as np
import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from finite.tasks.detection.dense.metrics import DenseMetrics, merit

CLASSES = ["cat", "dog"]
SQUARE = (10, 10, 50, 50)


def batch(*images, places=4):
    """Fields of images; an image is a list of (label, box corners, ignored)."""
    fields = {"labels": np.zeros((len(images), places), np.int32), "boxes": np.zeros((len(images), places, 4), np.float32),
              "ignored": np.zeros((len(images), places), np.int32), "present": np.zeros((len(images), places), np.float32)}
    for row, objects in enumerate(images):
        for place, (label, (x0, y0, x1, y1), *ignored) in enumerate(objects):
            fields["labels"][row, place], fields["present"][row, place] = label, 1
            fields["boxes"][row, place] = ((x0 + x1) / 2, (y0 + y1) / 2, x1 - x0, y1 - y0)
            fields["ignored"][row, place] = ignored[0] if ignored else 0
    return fields


def found(*images, most=5):
    """Outputs of images; an image is a list of (label, box corners, score), best first."""
    outputs = {"labels": np.full((len(images), most), -1, np.int32), "boxes": np.zeros((len(images), most, 4), np.float32),
               "scores": np.zeros((len(images), most), np.float32)}
    for row, objects in enumerate(images):
        for place, (label, box, score) in enumerate(objects):
            outputs["labels"][row, place], outputs["boxes"][row, place], outputs["scores"][row, place] = label, box, score
    return outputs


def figures(outputs, fields, use=None):
    metrics = DenseMetrics(CLASSES, 0.25)
    metrics.update(outputs, fields, np.ones(len(fields["labels"])) if use is None else np.array(use))
    return metrics.compute()


def shifted(box, dx):
    return (box[0] + dx, box[1], box[2] + dx, box[3])


@pytest.mark.parametrize("dx, map50, map", [(0, 1.0, 1.0), (10, 1.0, 0.2 + 0.0), (20, 0.0, 0.0)])
def test_one_object_shifted(dx, map50, map):
    # 40 px wide and shifted by 10: IoU 30 / 50 = 0.6, found at 0.5, 0.55 and (0.6 itself) of the ten thresholds
    result = figures(found([(0, shifted(SQUARE, dx), 0.9)]), batch([(0, SQUARE)]))
    assert result["map50"] == pytest.approx(map50)
    assert result["map"] == pytest.approx(0.3 if dx == 10 else map)
    assert result["per_class"]["cat"]["map50"] == pytest.approx(map50) and result["per_class"]["dog"]["map50"] is None


def test_false_alarm_before_the_object_halves_the_precision_and_behind_it_costs_nothing():
    far = (60, 60, 90, 90)
    before = figures(found([(0, far, 0.9), (0, SQUARE, 0.8)]), batch([(0, SQUARE)]))
    behind = figures(found([(0, SQUARE, 0.9), (0, far, 0.8)]), batch([(0, SQUARE)]))
    assert before["map50"] == pytest.approx(0.5) and behind["map50"] == pytest.approx(1.0)
    assert before["recall"] == behind["recall"] == 1.0


def test_one_of_two_objects_found():
    # Precision 1 up to recall 0.5: of pycocotools' 101 points 0, 0.01, ... 0.5 count, which are 51
    result = figures(found([(0, SQUARE, 0.9)]), batch([(0, SQUARE), (0, (60, 60, 90, 90))]))
    assert result["map50"] == pytest.approx(51 / 101) and result["recall"] == 0.5
    assert result["confusion"] == [[1, 0, 1], [0, 0, 0], [0, 0, 0]]


def test_difficult_object_counts_neither_way_and_takes_one_find_by_iou():
    truth = batch([(0, SQUARE), (0, (60, 60, 90, 90), 1)])
    assert figures(found([(0, SQUARE, 0.9)]), truth)["map50"] == pytest.approx(1.0)  # missing it costs nothing
    twice = [(0, (60, 60, 90, 90), 0.95), (0, (60, 60, 90, 90), 0.94), (0, SQUARE, 0.9)]
    assert figures(found(twice[:1] + twice[2:]), truth)["map50"] == pytest.approx(1.0)  # finding it neither
    assert figures(found(twice), truth)["map50"] == pytest.approx(0.5)  # a double of it is a false alarm, as in VOC
    inside = [(0, (60, 60, 72, 72), 0.95), (0, SQUARE, 0.9)]
    assert figures(found(inside), truth)["map50"] == pytest.approx(0.5)  # and so is a part of it


def test_crowd_takes_any_number_of_finds_that_lie_inside():
    truth = batch([(0, SQUARE), (0, (60, 60, 90, 90), 2)])
    inside = [(0, (60, 60, 72, 72), 0.95), (0, (75, 75, 88, 88), 0.94), (0, SQUARE, 0.9)]
    result = figures(found(inside), truth)
    assert result["map50"] == pytest.approx(1.0) and result["objects"] == 1
    assert result["confusion"] == [[1, 0, 0], [0, 0, 0], [0, 0, 0]]


def test_wrong_class_is_told_by_the_confusion_and_background_is_the_last():
    result = figures(found([(1, SQUARE, 0.9), (0, (60, 60, 90, 90), 0.3), (0, (70, 0, 90, 9), 0.2)]), batch([(0, SQUARE)]))
    assert result["confusion"] == [[0, 1, 0], [0, 0, 0], [1, 0, 0]]  # the last find lies below the working threshold
    assert result["map50"] == 0.0


def test_sizes_are_those_of_coco_in_input_pixels():
    result = figures(found([(0, (0, 0, 20, 20), 0.9)]), batch([(0, (0, 0, 20, 20)), (0, (0, 0, 60, 60)), (1, (0, 0, 120, 120))]))
    assert {name: (part["objects"], round(part["map50"], 9)) for name, part in result["per_size"].items()} == \
        {"small": (1, 1.0), "medium": (1, 0.0), "large": (1, 0.0)}  # fmt: skip


def test_nothing_there_and_nothing_found_is_no_figure_and_a_false_alarm_in_an_empty_image_counts():
    assert figures(found([]), batch([]))["map50"] is None
    result = figures(found([(0, SQUARE, 0.9)], [(0, SQUARE, 0.8)]), batch([], [(0, SQUARE)]))
    assert result["map50"] == pytest.approx(0.5) and result["images"] == 2


def test_rows_out_of_use_and_answers_that_are_not_finite():
    outputs, fields = found([(0, SQUARE, 0.9)], [(0, SQUARE, 0.9)], [(0, SQUARE, 0.9)]), batch([(0, SQUARE)], [(0, SQUARE)], [(0, SQUARE)])
    outputs["labels"][1] = -2
    result = figures(outputs, fields, [1, 1, 0])
    assert (result["images"], result["nonfinite"], result["recall"]) == (2, 1, 0.5)


def test_merging_gives_what_one_pass_gives():
    rng = np.random.default_rng(3)
    images = [[(int(rng.integers(2)), tuple(map(int, (x, y, x + 20, y + 20)))) for x, y in rng.integers(0, 100, (3, 2))] for _ in range(6)]
    answers = [[(label, shifted(box, int(rng.integers(-8, 8))), float(rng.uniform(0.1, 1))) for label, box in objects] for objects in images]
    whole = DenseMetrics(CLASSES, 0.25)
    whole.update(found(*answers), batch(*images), np.ones(6))
    parts = [DenseMetrics(CLASSES, 0.25) for _ in range(2)]
    for part, rows in zip(parts, (slice(0, 2), slice(2, 6))):
        part.update(found(*answers[rows]), batch(*images[rows]), np.ones(len(images[rows])))
    parts[0].merge(parts[1])
    assert parts[0].compute() == whole.compute()
    with pytest.raises(ValueError, match="other classes"):
        whole.merge(DenseMetrics(["cat"], 0.25))


def plain_coco(truths, answers) -> np.ndarray:
    """What pycocotools itself says (its first 12 figures, with its own settings) of images of (label, box, ignored) and (label, box,
    score), written as its users write them: no code of ours but the corners' subtraction."""
    notes = [{"id": n, "image_id": image, "category_id": label, "bbox": [x0, y0, x1 - x0, y1 - y0], "area": (x1 - x0) * (y1 - y0),
              "iscrowd": int(bool(ignored))}
             for n, (image, (label, (x0, y0, x1, y1), ignored)) in enumerate(((i, o) for i, objects in enumerate(truths) for o in objects), 1)]
    results = [{"image_id": image, "category_id": label, "bbox": [x0, y0, x1 - x0, y1 - y0], "score": score}
               for image, objects in enumerate(answers) for label, (x0, y0, x1, y1), score in objects]
    truth = COCO()
    truth.dataset = {"images": [{"id": i} for i in range(len(truths))], "annotations": notes, "categories": [{"id": 0}, {"id": 1}]}
    with contextlib.redirect_stdout(io.StringIO()):
        truth.createIndex()
        evaluation = COCOeval(truth, truth.loadRes(results), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return evaluation.stats


def test_crowds_and_sizes_are_judged_as_pycocotools_judges_them():
    rng, truths, answers = np.random.default_rng(7), [], []
    for _ in range(12):
        sides = rng.integers(10, 130, (5, 2))
        corner = rng.integers(0, 100, (5, 2))
        objects = [(int(rng.integers(2)), (*map(float, c), *map(float, c + s)), 2 * int(rng.random() < 0.3)) for c, s in zip(corner, sides)]
        scores = rng.permutation(1000)[:12] / 1000 + 0.0005  # no two alike
        near = [(label, tuple(map(float, np.add(box, rng.integers(-4, 5, 4))))) for label, box, _ in objects for _ in (0, 1)]
        near += [(int(rng.integers(2)), (5.0, 5.0, 25.0, 30.0)) for _ in range(2)]
        truths.append(objects)
        answers.append(sorted(((label, box, float(score)) for (label, box), score in zip(near, scores)), key=lambda o: -o[2]))
    result, stats = figures(found(*answers, most=12), batch(*truths, places=5)), plain_coco(truths, answers)
    assert sum(ignored == 2 for objects in truths for _, _, ignored in objects) > 8 and 0.2 < stats[0] < 0.9
    mine = [result["map"], result["map50"], *(result["per_size"][name]["map"] for name in ("small", "medium", "large"))]
    assert mine == pytest.approx([stats[0], stats[1], *stats[3:6]], abs=1e-6)


def test_merit_is_the_share_of_right_objects():
    fields = batch([(0, SQUARE), (1, (60, 60, 90, 90))], [], [(0, SQUARE)])
    outputs = found([(0, SQUARE, 0.9), (0, (60, 60, 90, 90), 0.8)], [], [(0, SQUARE, 0.9)])
    outputs["labels"][2] = -2
    assert merit(outputs, fields, 0.25).tolist() == [pytest.approx(1 / 3), 1.0, -1.0]
