"""Splits and names beside YOLO labels: a folder or list that is named is that one, or is said not to be there."""

import pytest
from small_sets import boxes, picture

from finite.data.audit_show import sentences
from finite.data.yolo import read

ROW = "0 0.5 0.5 0.5 0.4\n"
ROBOFLOW = "train: ../train/images\nval: ../valid/images\ntest: ../test/images\nnames: [cat]\n"


def made(root, *folders, yaml=ROBOFLOW, name="data.yaml"):
    """A set with a picture in each folder, called like its position; labels beside `images` or the picture."""
    for position, folder in enumerate(folders):
        image = root / folder / f"p{position}.png"
        picture(image, seed=position)
        label = root / folder.replace("images", "labels") / f"p{position}.txt"
        label.parent.mkdir(parents=True, exist_ok=True)
        label.write_text(ROW)
    if yaml is not None:
        (root / name).write_text(yaml)
    return root


def splits(found):
    return {split: [record.id for record in records] for split, records in found.splits.items()}


def missing(found):
    return [f.reason for f in found.findings if f.kind == "missing_split"]


@pytest.mark.parametrize(
    ("folders", "words"),
    [
        (["train/images", "valid/images", "test/images"], []),
        (["train/images", "val/images", "test/images"], ["names val: ../valid/images, which is not there; those in val are"]),
        (["training/images", "valid/images", "test/images"], ["names train: ../train/images, which is not there; those in"]),
        (["images/train", "images/val", "images/test"], ["names train", "names val", "names test"]),
        (["train/images", "validation", "test/images"], ["names val: ../valid/images, which is not there; those in validation"]),
    ],
)
def test_a_split_folder_that_is_not_there_is_said_and_no_other_split_takes_its_place(tmp_path, folders, words):
    found = read(made(tmp_path, *folders))
    assert splits(found) == {
        split: [f"{folder}/p{position}.png"]
        for position, (split, folder) in enumerate(zip(("train", "validation", "test"), folders))
    }
    assert len(missing(found)) == len(words) and all(word in text for word, text in zip(words, missing(found)))
    assert not any("LEAK" in f.reason for f in found.findings)


def test_an_export_without_a_test_folder_is_no_leak_and_says_so_in_one_line_of_the_training(tmp_path):
    found = read(made(tmp_path, "train/images", "valid/images"))
    assert splits(found) == {"train": ["train/images/p0.png"], "validation": ["valid/images/p1.png"]}
    assert sentences(found.findings) == [
        "missing split (note, 1 in all): data.yaml: names test: ../test/images, which is not there; none is taken"
    ]


@pytest.mark.parametrize(
    ("yaml", "folders", "wanted"),
    [  # a name that is not there leads to no folder that another split names, or that speaks of another split
        ("train: foo/images\nval: bar/images", ["bar/images"], {"validation": [0]}),
        ("train: foo/images\nval: bar/images", ["foo/images", "bar/images"], {"train": [0], "validation": [1]}),
        ("train: /x/proj/images\nval: /x/proj/held", ["test/images", "held"], {"validation": [1], "test": [0]}),
        ("train: images/train\nval: images/test", ["images/train", "images/val"], {"train": [0], "validation": [1]}),
        # the folders of another machine may be called anything
        ("train: /srv/dev/test/imgs_a\nval: /srv/dev/test/imgs_b", ["imgs_a", "imgs_b"], {"train": [0], "validation": [1]}),
        ("train: /test/images/train\nval: /test/images/val", ["images/train", "images/val"], {"train": [0], "validation": [1]}),
        # a word in a longer name is no split, and the set's own folder may be named
        ("train: my_test_set/pics/a\nval: my_test_set/pics/b", ["pics/a", "pics/b"], {"train": [0], "validation": [1]}),
        ("train: ../test/pics/a\nval: ../test/pics/b", ["pics/a", "pics/b"], {"train": [0], "validation": [1]}),
        # several entries of one split, one of them absent
        ("train: pics/a\nval: [pics/b, valid/x]", ["pics/a", "pics/b", "val"], {"train": [0], "validation": [1, 2]}),
        # two that fit as well: neither is guessed
        ("train: images/a\nval: images/v", ["x/images/a", "y/images/a", "images/v"], {"validation": [2], "train": [0, 1]}),
        # two folders of one split: neither is guessed
        ("train: t/images\nval: valid/images", ["t/images", "val/images", "validation/images"], {"train": [0]}),
        ("train: images\nval: held/val", ["images", "images/val"], {"train": [0, 1]}),
    ],
)
def test_a_shortened_path_never_leads_into_another_split(tmp_path, yaml, folders, wanted):
    found = read(made(tmp_path / "test", *folders, yaml=f"{yaml}\nnames: [cat]\n"))
    assert splits(found) == {split: [f"{folders[i]}/p{i}.png" for i in members] for split, members in wanted.items()}
    assert not any("LEAK" in f.reason for f in found.findings)


@pytest.mark.parametrize("entry", [".", "./", "..", "../", "/"])
def test_an_entry_without_a_name_is_the_whole_set(tmp_path, entry):
    found = read(made(tmp_path, ".", "more", yaml=f"train: {entry}\nval: {entry}\nnames: [cat]\n"))
    assert splits(found) == {"all": ["more/p1.png", "p0.png"]} and missing(found) == []
    (tmp_path / "data.yaml").write_text(f"train: {entry}\nval: valid\nnames: [cat]\n")
    found = read(tmp_path)
    assert splits(found) == {"train": ["more/p1.png", "p0.png"]} and len(missing(found)) == 1


@pytest.mark.parametrize(
    ("path", "entries"),
    [
        *((path, "train: images/train\nval: images/val") for path in ("A", "./A", "/srv/test/A", "..\\sets\\A")),
        ("A", "train: [images/train]\nval: [images/val]"),
        ("test/A", "train: [train.txt]\nval: val.txt"),
    ],
)
def test_the_path_of_a_yaml_says_which_of_two_sets_is_meant(tmp_path, path, entries):
    folders = [f"{name}/images/{split}" for name in "AB" for split in ("train", "val")]
    made(tmp_path, *folders, yaml=f"path: {path}\n{entries}\nnames: [cat]\n")
    for position, folder in enumerate(folders):
        name, _, split = folder.split("/")
        (tmp_path / name / f"{split}.txt").write_text(f"images/{split}/p{position}.png\n")
    found = read(tmp_path)
    assert splits(found) == {"train": ["A/images/train/p0.png"], "validation": ["A/images/val/p1.png"]}
    assert missing(found) == []


def test_the_path_of_another_machine_is_no_hindrance(tmp_path):
    yaml = "path: ../datasets/test/mine\ntrain: pics/a\nval: pics/b\nnames: [cat]\n"
    found = read(made(tmp_path, "pics/a", "pics/b", yaml=yaml))
    assert splits(found) == {"train": ["pics/a/p0.png"], "validation": ["pics/b/p1.png"]} and missing(found) == []


def test_the_folder_around_the_yaml_is_no_other_split(tmp_path):
    made(tmp_path, "test/pics", "test/held", yaml=None)
    (tmp_path / "test/data.yaml").write_text("names: [cat]\ntrain: pics\nval: held\n")
    found = read(tmp_path)
    assert splits(found) == {"train": ["test/pics/p0.png"], "validation": ["test/held/p1.png"]} and missing(found) == []


def test_folders_above_the_set_are_those_of_another_disk(tmp_path):
    yaml = "train: dev/mydata/pics/a\nval: test/mydata/pics/b\nnames: [cat]\n"
    found = read(made(tmp_path / "mydata", "pics/a", "pics/b", yaml=yaml))
    assert splits(found) == {"train": ["pics/a/p0.png"], "validation": ["pics/b/p1.png"]} and missing(found) == []


@pytest.mark.parametrize(
    ("yaml", "folders", "ends", "wanted"),
    [  # what the sentence says is what happens
        ("train: t/x", ["a/train", "b/train"], "those in a/train and b/train are taken", {"train": [0, 1]}),
        ("train: x/a", ["u/a", "v/a"], "u/a and v/a could be meant; the set is taken as undivided", {"all": [0, 1]}),
        ("train: x/a", ["u/a", "v/a", "val"], "u/a and v/a could be meant; the pictures of no split are taken",
         {"train": [0, 1], "validation": [2]}),
        ("train: x/a", ["val", "val/b"], "which is not there; none is taken", {"validation": [1, 0]}),
        ("train: x/a\nval: v", ["p/a", "q/a", "v"], "p/a and q/a could be meant; the pictures of no split are taken",
         {"train": [0, 1], "validation": [2]}),
        ("train: a\nval: v", ["a", "p/val", "q/val"], "p/val and q/val could be meant; none is taken", {"train": [0]}),
        ("train: a\nval: v", ["a", "b"], "v, which is not there; none is taken", {"train": [0]}),
        ("train: a\nval: v", ["a", "val"], "those in val are taken", {"train": [0], "validation": [1]}),
    ],
)
def test_the_sentence_on_an_absent_split_ends_with_what_is_done(tmp_path, yaml, folders, ends, wanted):
    found = read(made(tmp_path, *folders, yaml=f"{yaml}\nnames: [cat]\n"))
    assert [text.endswith(ends) for text in missing(found)] == [True], missing(found)
    assert splits(found) == {split: [f"{folders[i]}/p{i}.png" for i in members] for split, members in wanted.items()}


@pytest.mark.parametrize(
    ("folders", "said", "wanted"),
    [
        (["test/images", "test/images"], "one undivided set", {"all": [0, 1]}),
        (["test/images/train", "test/images/val"], "by the folders' names", {"train": [0], "validation": [1]}),
    ],
)
def test_splits_of_the_same_pictures_are_divided_by_folders_or_not_at_all(tmp_path, folders, said, wanted):
    made(tmp_path, *folders, yaml=None)
    (tmp_path / "test/data.yaml").write_text("names: [cat]\ntrain: images\nval: images\n")
    found = read(tmp_path)
    assert splits(found) == {split: [f"{folders[i]}/p{i}.png" for i in members] for split, members in wanted.items()}
    assert [f.reason.endswith(said) for f in found.findings] == [True]


def test_lists_that_serve_for_absent_entries_are_named(tmp_path):
    made(tmp_path, "a", "b", yaml="train: x/y\nval: x/z\nnames: [cat]\n")
    (tmp_path / "train.txt").write_text("a/p0.png\n")
    found = read(tmp_path)
    assert splits(found) == {"train": ["a/p0.png"]}
    assert [text.split("; ")[1] for text in missing(found)] == ["those in the list train.txt are taken", "none is taken"]


def test_the_folder_beside_the_yaml_is_the_one_it_names(tmp_path):
    made(tmp_path, "images/train", "set/images/train", "set/images/val", yaml=None)
    (tmp_path / "set/data.yaml").write_text("names: [cat]\ntrain: images/train\nval: images/val\n")
    found = read(tmp_path)
    assert splits(found) == {"train": ["set/images/train/p1.png"], "validation": ["set/images/val/p2.png"]}


@pytest.mark.parametrize("entry", ["{}/list.txt", "../data/{}/list.txt", "D:\\me\\{}\\list.txt"])
def test_lists_of_one_name_are_told_apart_by_their_folders(tmp_path, entry):
    yaml = f"train: {entry.format('train')}\nval: {entry.format('val')}\nnames: [cat]\n"
    made(tmp_path, "images", "images", "images", yaml=yaml)
    for split, line in (("train", "images/p0.png"), ("val", "images/p1.png"), ("test", "images/p2.png")):
        (tmp_path / split).mkdir()
        (tmp_path / split / "list.txt").write_text(line)
    found = read(tmp_path)
    assert splits(found) == {"train": ["images/p0.png"], "validation": ["images/p1.png"]} and missing(found) == []
    (tmp_path / "val/list.txt").unlink()
    found = read(tmp_path)
    assert splits(found) == {"train": ["images/p0.png"]} and len(missing(found)) == 1
    assert not any("LEAK" in f.reason for f in found.findings)


@pytest.mark.parametrize(
    ("files", "read_one"),
    [
        ({"args.yaml": "[a]", "data.yaml": "[cat]"}, "data.yaml"),
        ({"args.yaml": "[a]", "my.yaml": "[cat]\ntrain: images\nval: images"}, "my.yaml"),
        ({"args.yaml": "[a]", "sub/data.yaml": "[cat]"}, "sub/data.yaml"),
        ({"data.yaml": "[cat]", "a/data.yaml": "[a]"}, "data.yaml"),
    ],
)
def test_of_several_yaml_files_the_data_yaml_is_read_and_named(tmp_path, files, read_one):
    made(tmp_path, "images", yaml=None)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"names: {text}\n")
    found = read(tmp_path)
    assert boxes(found)["images/p0.png"][0][0] == "cat" and found.classes == ["cat"]
    (text,) = [f.reason for f in found.findings if f.kind == "several_files"]
    assert all(name in text for name in files if name != read_one)
    assert [f.file for f in found.findings if f.kind == "several_files"] == [read_one]


def test_equal_yaml_files_are_not_worth_a_word(tmp_path):
    made(tmp_path, "images", yaml="names: [cat]\n")
    (tmp_path / "copy.yaml").write_text("names: {0: cat}\nauthor: me\n")
    (tmp_path / "data.yaml").write_text("names: [cat]\ntrain: images\n")
    assert not any(f.kind == "several_files" for f in read(tmp_path).findings)


@pytest.mark.parametrize(("count", "said"), [("5", True), ("3", False), ("three", False)])
def test_a_class_count_that_is_not_that_of_the_names_is_said(tmp_path, count, said):
    found = read(made(tmp_path, "images", yaml=f"nc: {count}\nnames: [cat, dog, cow]\n"))
    texts = [f.reason for f in found.findings if f.kind == "class_count"]
    assert bool(texts) == said and all("nc is 5" in text and "3" in text for text in texts)
    assert found.classes == ["cat", "dog", "cow"]
