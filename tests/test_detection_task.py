"""The detection task on small folders: which samples it takes, what it writes and remembers, and what it refuses."""

import json
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor
from PIL import Image

from finite.config import load
from finite.data.pipeline import Loader, check
from finite.errors import UserError
from finite.tasks import TASKS
from finite.tasks.base import Task
from finite.tasks.detection.task import DetectionTask, balanced, evenly

MODEL = ["model.image_size=32", "model.width=4", "model.box_channels=4", "model.box_hidden=8"]


def coco(root: Path, objects: list[list[tuple[str, tuple]]], classes=("cat", "dog"), first=0, split=None) -> Path:
    """A COCO folder: per image a list of (class, (x, y, width, height)); every image has bytes of its own."""
    root.mkdir(parents=True, exist_ok=True)
    images, annotations = [], []
    for number, marks in enumerate(objects, first):
        name = f"{number:03}.png"
        pixels = np.random.default_rng(number).integers(0, 255, (40, 60, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(root / name)
        images.append({"id": number, "file_name": name, "width": 60, "height": 40})
        for label, box in marks:
            annotations.append(
                {"id": len(annotations) + 1, "image_id": number, "category_id": classes.index(label) + 1, "bbox": list(box), "iscrowd": 0}
            )
    categories = [{"id": i, "name": name} for i, name in enumerate(classes, 1)]
    name = f"instances_{split}.json" if split else "annotations.json"
    (root / name).write_text(json.dumps({"images": images, "annotations": annotations, "categories": categories}))
    return root


def one(label, number):
    return [(label, (number % 20, number % 10, 10 + number % 17, 12 + number % 13))]


def animals(n=40):
    return [one("cat" if number % 2 else "dog", number) for number in range(n)]


def task_of(root, *settings):
    return DetectionTask(load(None, [f"data.root={root}", *MODEL, *settings]))


@pytest.fixture
def root(tmp_path):
    return coco(tmp_path / "animals", animals())


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


def test_every_image_is_in_one_split_and_the_split_is_written_down(root, folder):
    sources = task_of(root).data(folder)
    split = json.loads((folder / "split.json").read_text())
    names = ("train", "validation", "test")
    ids = [i for name in names for i in split[name]]
    assert len(ids) == len(set(ids)) == 40
    assert [list(getattr(sources, name).ids) for name in names] == [split[name] for name in names]
    assert sources.facts["images"] == {"train": 32, "validation": 4, "test": 4}
    assert sources.facts["classes"]["train"] == {"cat": 16, "dog": 16}
    assert json.loads((folder / "classes.json").read_text())["classes"] == ["cat", "dog"]


def test_the_data_folder_is_left_as_it_was(root, folder):
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in root.rglob("*")}
    task_of(root).data(folder)
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in root.rglob("*")} == before


def test_a_second_reading_gives_the_same_split_and_accepts_its_own_record(root, folder):
    first = task_of(root).data(folder)
    written = (folder / "split.json").stat().st_mtime_ns
    second = task_of(root).data(folder)
    assert list(first.train.ids) == list(second.train.ids)
    assert (folder / "split.json").stat().st_mtime_ns == written


def test_data_that_changed_under_a_run_is_refused(root, folder):
    task_of(root).data(folder)
    coco(root, animals(41))
    with pytest.raises(UserError, match="restore the data, or start a new run"):
        task_of(root).data(folder)


def test_only_training_samples_are_augmented(root, folder):
    sources = task_of(root).data(folder)
    plain = sources.train.row(0, 1, None)["image"]
    assert not np.array_equal(sources.train.row(0, 1, 0)["image"], plain)
    for source in (sources.validation, sources.test):
        assert np.array_equal(source.row(0, 1, 0)["image"], source.row(0, 1, None)["image"])
    still = task_of(root, "augment.enabled=false").data(folder)
    assert np.array_equal(still.train.row(0, 1, 0)["image"], plain)


def test_balanced_classes_count_the_same_in_training_and_nothing_is_weighted_elsewhere(tmp_path, folder):
    root = coco(tmp_path / "rare", [one("cat" if number % 4 else "dog", number) for number in range(40)])
    sources = task_of(root, "loss.class_weights=balanced").data(folder)
    rows = [sources.train.row(i, 1, None) for i in range(len(sources.train))]
    total = {label: sum(float(row["class_weight"]) for row in rows if row["label"] == label) for label in (0, 1)}
    assert total[0] == pytest.approx(total[1]) and sum(total.values()) == pytest.approx(len(rows))
    assert {float(row["class_weight"]) for row in rows} != {1.0}
    assert float(sources.test.row(0, 1, None)["class_weight"]) == 1
    assert all(check(batch, sources.train.fields) == [] for batch in Loader(sources.train, 8, seed=1).epoch(0))


def test_balanced_weights_by_hand():
    assert balanced([30, 10]) == [40 / 60, 2.0]
    assert balanced([6, 0, 3]) == [0.75, 1.0, 1.5]  # a class without samples shares nothing out


def test_statistics_come_from_the_unaugmented_training_split(root, folder):
    task = task_of(root)
    sources = task.data(folder)
    rows = [sources.train.row(i, 1, None) for i in range(len(sources.train))]
    boxes = np.array([row["box"] for row in rows])
    images = np.array([row["image"] for row in rows])
    network = task.network()
    np.testing.assert_allclose(network.box_mean.asnumpy(), boxes.mean(0), rtol=1e-5)
    np.testing.assert_allclose(network.box_std.asnumpy(), boxes.std(0), rtol=1e-4)
    np.testing.assert_allclose(network.input_mean.asnumpy(), images.mean((0, 2, 3)), rtol=1e-4)
    np.testing.assert_allclose(network.input_std.asnumpy(), images.std((0, 2, 3)), rtol=1e-4)
    assert sources.facts["box"]["mean"] == network.box_mean.asnumpy().tolist()


def test_a_coordinate_that_never_varies_is_named(tmp_path, folder):
    root = coco(tmp_path / "same", [[("cat", (10, 5 + i % 9, 20, 10 + i))] for i in range(12)])
    task = task_of(root)
    facts = task.data(folder).facts
    assert facts["box"]["floored"] == ["center_x", "width"]
    assert any("center_x, width" in note for note in facts["notes"])
    assert (task.network().box_std.asnumpy() >= 1).all()


def test_what_the_object_rule_leaves_out_is_counted(tmp_path, folder):
    marks = animals(20) + [one("cat", 1) + one("dog", 22)] * 3
    root = coco(tmp_path / "mixed", marks)
    facts = task_of(root, "data.object=only").data(folder).facts
    assert facts["left_out"] == {"more than one object": 3}
    assert sum(facts["images"].values()) == 20


def test_one_class_rule_trains_on_that_class_alone(root, folder):
    task = task_of(root, "data.object=class:dog")
    facts = task.data(folder).facts
    assert task.classes == ["dog"] and task.network().classes == 1
    assert facts["left_out"] == {"no object of class dog": 20}


def test_images_without_object_weigh_nothing_unless_background_is_a_class(tmp_path, folder):
    root = coco(tmp_path / "empty", [*animals(20), [], [], [], []])
    sources = task_of(root).data(folder)
    empty = [i for i in range(len(sources.train)) if sources.train.row(i, 1, None)["box_weight"] == 0]
    assert empty and all(sources.train.row(i, 1, None)["class_weight"] == 0 for i in empty)
    assert any("data.background" in note for note in sources.facts["notes"])
    task = task_of(root, "data.background=true")
    (folder / "split.json").unlink()
    assert task.data(folder).facts["notes"] and task.classes == ["cat", "dog", "background"]


def test_a_separate_test_folder_is_the_whole_test_split(root, tmp_path, folder):
    other = coco(tmp_path / "other", animals(10), first=100)
    sources = task_of(root, f"data.test={other}").data(folder)
    assert sorted(sources.test.ids) == [f"{n}.png" for n in range(100, 110)]
    assert len(sources.train) + len(sources.validation) == 40


def test_test_images_of_unknown_classes_are_left_out_and_counted(root, tmp_path, folder):
    marks = [*animals(10), one("fox", 1), one("fox", 2)]
    other = coco(tmp_path / "other", marks, classes=("fox", "cat", "dog"), first=100)
    sources = task_of(root, f"data.test={other}").data(folder)
    assert len(sources.test) == 10
    assert sources.facts["left_out"] == {"class fox is not among the trained ones": 2}
    row = [sources.test.row(i, 1, None)["label"] for i in range(10)]
    assert sorted(row) == [0] * 5 + [1] * 5  # by name, not by the number in the other file


def test_a_test_folder_without_a_known_class_is_refused_by_names(root, tmp_path, folder):
    other = coco(tmp_path / "other", [one("fox", 1)], classes=("fox",))
    with pytest.raises(UserError, match="(?s)fox.*cat, dog"):
        task_of(root, f"data.test={other}").data(folder)


def test_training_images_are_not_accepted_as_test_images(root, folder):
    with pytest.raises(UserError, match="40 images .* lie in .* too"):
        task_of(root, f"data.test={root}").data(folder)


def test_another_folder_is_scored_whole(root, tmp_path, folder):
    task = task_of(root)
    task.data(folder)
    source, facts = task.source(coco(tmp_path / "other", animals(10), first=100, split="train"))
    assert len(source) == facts["images"] == 10


def restored(head, tmp_path, *settings):
    (tmp_path / "runs").mkdir(exist_ok=True)
    config = load(None, [f"model.head={head}", *MODEL, f"runs={tmp_path / 'runs'}", *settings])
    return TASKS[config.kind].restore(config, {"classes": ["cat", "dog"]})


@pytest.mark.parametrize("head", ["single", "dense"])
def test_a_folder_to_score_that_the_user_must_decide_about_is_refused_with_the_reason(head, tmp_path):
    """As a training on it would be: each of these was once scored, or refused without its reason."""
    twice = coco(tmp_path / "twice", animals(6))
    document = json.loads((twice / "annotations.json").read_text())
    document["categories"].append({"id": 1, "name": "tiger"})
    (twice / "annotations.json").write_text(json.dumps(document))
    corners = coco(tmp_path / "corners", [[("cat", (30 + n % 9, 20, 55, 38))] for n in range(30)])  # xmin, ymin, xmax, ymax
    task = restored(head, tmp_path)
    for root, reason in ((twice, "category id 1 is 'cat' and 'tiger'"), (corners, "left, top, right, bottom")):
        with pytest.raises(UserError, match=reason):
            task.source(root)
    with pytest.raises(UserError, match="nothing to score"):
        task.source(coco(tmp_path / "empty", [[], []]))


@pytest.mark.parametrize("head", ["single", "dense"])
def test_what_is_wrong_with_a_folder_to_score_is_told_and_what_training_sets_aside_is_not_scored(head, tmp_path):
    root = coco(tmp_path / "other", [*animals(6), [("cat", (3, 3, 1.2, 1.5))], one("dog", 7)])
    (root / "007.png").write_bytes(b"no picture")
    source, facts = restored(head, tmp_path).source(root)
    boxes = [source.row(i, 1, None) for i in range(len(source))]
    assert facts["findings"]["too_small"] == facts["findings"]["unreadable_image"] == 1
    assert any(note.startswith("too small (object set aside") for note in facts["notes"])
    assert any("007.png" in note for note in facts["notes"])
    assert "007.png" not in source.ids
    learnt = [row["box_weight"] for row in boxes] if head == "single" else [sum((row["present"] > 0) & (row["ignored"] == 0)) for row in boxes]
    assert sum(learnt) == 6 and facts["classes"] == {"cat": 3, "dog": 3}


def test_a_folder_without_a_single_object_is_refused(tmp_path, folder):
    root = coco(tmp_path / "empty", [[], [], [], []])
    with pytest.raises(UserError, match="nothing to train on"):
        task_of(root).data(folder)


def test_a_class_without_training_images_is_mentioned(tmp_path, folder):
    root = coco(tmp_path / "animals", animals(), classes=("cat", "dog", "emu"))
    assert any("emu" in note for note in task_of(root).data(folder).facts["notes"])


def test_a_task_comes_back_from_a_checkpoint_without_data(root, folder):
    task = task_of(root)
    task.data(folder)
    state = json.loads(json.dumps(task.state()))
    again = DetectionTask.restore(load(None, ["data.root=/nowhere", *MODEL]), state)
    assert again.classes == ["cat", "dog"] and again.numbers == {"cat": 1, "dog": 2} and again.state() == task.state()
    shapes = [(p.name, p.shape) for p in task.network().get_parameters()]
    assert [(p.name, p.shape) for p in again.network().get_parameters()] == shapes


def test_a_restored_task_refuses_data_of_other_classes(tmp_path, folder):
    root = coco(tmp_path / "animals", animals(), classes=("dog", "cat"))
    task = DetectionTask.restore(load(None, [f"data.root={root}", *MODEL]), {"classes": ["cat", "emu"]})
    with pytest.raises(UserError, match="cat, emu"):
        task.data(folder)


def test_the_classes_must_be_known_before_a_network():
    with pytest.raises(RuntimeError, match="data"):
        DetectionTask(load(None, MODEL)).network()


def test_the_score_follows_what_was_trained():
    task = DetectionTask(load(None, MODEL))
    figures = {"top1": 0.9, "mean_iou": 0.7, "localization": 0.6}
    assert [task.score(figures, terms) for terms in ({"class"}, {"box"}, {"class", "box"})] == [0.9, 0.7, 0.6]
    assert np.isnan(task.score({**figures, "localization": None}, {"class", "box"}))


def test_a_batch_goes_all_the_way_to_figures_and_pictures(root, folder):
    task: Task = task_of(root)
    sources = task.data(folder)
    batch = next(iter(Loader(sources.validation, 3, 1).epoch(None)))
    network = task.network()
    values, weights, points = task.terms_cell(network)(*(Tensor(batch.arrays[f.name]) for f in sources.train.fields))
    assert len(values) == len(weights) == len(task.terms) and len(points) == len(task.points)
    outputs = task.predictor(network)(batch.arrays)
    metrics = task.metrics()
    metrics.update(outputs, batch.arrays, batch.use)
    assert metrics.compute()["images"] == 3
    pictures = task.show(outputs, batch.arrays, ["one", "two"])
    assert len(pictures) == 2 and all(picture.width == 288 for picture in pictures)


def test_pictures_show_faults_and_rows_without_object(root, folder):
    task = task_of(root)
    batch = next(iter(Loader(task.data(folder).validation, 2, 1).epoch(None))).arrays
    outputs = {"probabilities": np.full((2, 2), np.nan, np.float32), "boxes": np.full((2, 4), np.nan, np.float32)}
    batch["class_weight"][1] = batch["box_weight"][1] = 0
    assert len(task.show(outputs, batch, ["one", "two"])) == 2


def test_the_predictor_sees_weights_assigned_after_it_was_compiled(root, folder):
    task = task_of(root)
    batch = next(iter(Loader(task.data(folder).validation, 2, 1).epoch(None))).arrays
    network = task.network()
    predict = task.predictor(network)
    predict(batch)
    ms.ops.assign(network.classifier.dense.bias, Tensor(np.array([50, 0], np.float32)))
    np.testing.assert_allclose(predict(batch)["probabilities"], [[1, 0]] * 2, atol=1e-6)


def test_prediction_leaves_running_statistics_alone(root, folder):
    task = task_of(root)
    batch = next(iter(Loader(task.data(folder).validation, 2, 1).epoch(None))).arrays
    network = task.network()
    before = {p.name: p.asnumpy().copy() for p in network.get_parameters()}
    task.predictor(network)(batch)
    assert all(np.array_equal(before[p.name], p.asnumpy()) for p in network.get_parameters())


def test_evenly_spaced_numbers():
    assert evenly(5, 10) == [0, 1, 2, 3, 4]
    assert evenly(101, 3) == [0, 50, 100]
    assert evenly(1, 3) == [0]


def test_cards_keep_their_own_test_folder(shared, folder):
    root, test = shared / "data/cards/train", shared / "data/cards/test"
    sources = task_of(root, f"data.test={test}", "data.object=only").data(folder)
    assert sources.facts["format"] == "voc"
    assert sources.facts["classes"]["test"].keys() == {"ace", "jack", "king", "nine", "queen", "ten"}
    assert len(sources.test) > 0 and not any(sources.facts["findings"].get(kind) for kind in ("unreadable_image", "missing_image"))
