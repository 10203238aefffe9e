"""Reading settings: every mistake in a file or in --set is refused in one line, by file, line and key."""

import sys
from pathlib import Path

import pytest

from finite import settings
from finite.config import Checkpoint, Config, Data, Stage, Training, load
from finite.errors import UserError

STAGE = "{name: only, epochs: 2, learning_rate: 1e-3}"


def refused(tmp_path: Path, text: str | bytes, *overrides: str) -> list[str]:
    """The lines of the UserError that a file with this text (and overrides) leads to, without the folder's path."""
    path = tmp_path / "my.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UserError) as caught:
        load(path, overrides)
    return str(caught.value).replace(f"{tmp_path}/", "").split("\n")


def refused_set(*overrides: str) -> list[str]:
    with pytest.raises(UserError) as caught:
        load(None, overrides)
    return str(caught.value).split("\n")


# ---- mistakes in a file ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed: 1\ntraining:\n  batchsize: 8", "my.yaml:3: training.batchsize: unknown key; did you mean batch_size?"),
        ("batch_size: 8\n", "my.yaml:1: batch_size: unknown key; did you mean training.batch_size?"),
        ("lr: 1\n", "my.yaml:1: lr: unknown key; did you mean stages.0.learning_rate?"),
        ("guard: {zzz: 1}", "my.yaml:1: guard.zzz: unknown key; known here: check_every, rewind_after, "),
        (
            f"stages:\n- {STAGE}\n- name: b\n  epochs: 0\n  learning_rate: 1",
            "my.yaml:4: stages.1.epochs: 0 is out of range; must be 1 or more",
        ),
        (
            f"stages: [{STAGE[:-1]}, weights: {{clas: 1}}}}]",
            "my.yaml:1: stages.0.weights.clas: unknown key; did you mean class?",
        ),
        ("seed: 1\nruns: a\nseed: 1\n", "my.yaml:3: seed: given twice, first at my.yaml:1; keep one"),
        ("data:\n  root: a\n  root: b\n", "my.yaml:3: data.root: given twice, first at my.yaml:2; keep one"),
        ('seed: "32"', "my.yaml:1: seed: '32' is of the wrong type; must be a whole number (without quotes)"),
        ("seed: true", "my.yaml:1: seed: true is of the wrong type; must be a whole number"),
        ("seed: 3.0", "my.yaml:1: seed: 3.0 is of the wrong type; must be a whole number (write 3)"),
        ("seed: three", "my.yaml:1: seed: 'three' is of the wrong type; must be a whole number"),
        ("augment: {enabled: yes}", "my.yaml:1: augment.enabled: 'yes' is of the wrong type; must be true or false"),
        ("augment: {enabled: 1}", "my.yaml:1: augment.enabled: 1 is of the wrong type; must be true or false"),
        ("augment: {flip: true}", "my.yaml:1: augment.flip: true is of the wrong type; must be a number"),
        ("augment: {flip: [0.1, 1]}", "my.yaml:1: augment.flip: [0.1, 1] is of the wrong type; must be a number"),
        ("data: {root: 3}", "my.yaml:1: data.root: 3: must be a path (text)"),
        ("data: {root: ''}", "my.yaml:1: data.root: '': must be text, not empty"),
        ('data: {root: "a\\0b"}', "my.yaml:1: data.root: 'a\\x00b': must be text, not empty and without control"),
        ("data: {object: 'class:'}", "my.yaml:1: data.object: 'class:': must be largest, only or class:NAME"),
        ("training:\n", "my.yaml:1: training: is empty; must be a group of keys"),
        ("training: [1]\n", "my.yaml:1: training: [1] is of the wrong type; must be a group of keys"),
        ("stages: {a: 1}", "my.yaml:1: stages: {'a': 1} is of the wrong type; must be a list"),
        ("stages: []", "my.yaml:1: stages: []: at least one stage is needed"),
        (f"stages: [{STAGE}, {STAGE}]", "stages 0 and 1 are both named only; names must differ"),
        ("stages:\n- name: a\n  epochs: 1\n", "my.yaml:2: stages.0.learning_rate: is missing; give it a value"),
        (f"stages: [{STAGE.replace('only', 'all')}]", "my.yaml:1: stages.0.name: 'all': must be a word"),
        (f"stages: [{STAGE[:-1]}, warmup_epochs: 2}}]", "stages.0: warmup_epochs (2) must be below epochs (2)"),
        (f"stages: [{STAGE[:-1]}, freeze: ['']}}]", "my.yaml:1: stages.0.freeze.0: '': must be text, not empty"),
        (f"stages: [{STAGE[:-1]}, weights: {{}}}}]", "stages.0.weights: at least one term needs a weight above 0"),
        (f"stages: [{STAGE[:-1]}, weights: {{box: -1}}}}]", "0.weights.box: -1 is out of range; must be 0 or more"),
        ("training: {clip_norm: 0}", "my.yaml:1: training.clip_norm: 0 is out of range; must be above 0"),
        ("training: {batch_size: 1}", "my.yaml:1: training.batch_size: 1 is out of range; must be 2 or more"),
        ("training: {precision: O1}", "training.precision: 'O1' is not allowed; must be 'O0', 'O2' or 'O3'"),
        ("optimizer: {eps: 1e-60}", "my.yaml:1: optimizer.eps: 1e-60: is too small or too large for float32"),
        ("optimizer: {betas: [0.9]}", "my.yaml:1: optimizer.betas.1: is missing; give it a value"),
        ("augment: {scale: [2, 1]}", "my.yaml:1: augment.scale: [2, 1]: must be [low, high] with low no larger"),
        ("data: {split: [0.5, 0.2, 0.2]}", "my.yaml:1: data.split: [0.5, 0.2, 0.2]: the three shares must add up to 1"),
        ("data: {split: [1, 0, 0]}", "data.split: [1, 0, 0]: the shares of training and validation must be above 0"),
        ("data: {split: [0.5, 0.5, 0, 0]}", "my.yaml:1: data.split: [0.5, 0.5, 0, 0] has 4 items; must have 3"),
        ("seed: 99999999999", "my.yaml:1: seed: 99999999999 is out of range; must be 4294967295 or less"),
        ("seed: " + "9" * 5000, "my.yaml:1: seed: "),
        ("loss: {cap: " + "9" * 400 + "}", "my.yaml:1: loss.cap: "),
        ("? [a]\n: 3", "my.yaml:1: a key must be a name, not a list or a group"),
        ("1: 3", "my.yaml:1: 1: unknown key; known here: task, seed"),
        ("<<: {seed: 1}", "my.yaml:1: <<: unknown key"),
        ('"\\e[31mred": 1', "my.yaml:1: '\\x1b[31mred': unknown key"),
        ("seed: !!int abc", "my.yaml:1: seed: 'abc' cannot be read as int"),
        ("seed: !!str 3", "my.yaml:1: seed: '3' is of the wrong type; must be a whole number (without quotes)"),
        ("seed: !mine 3", "my.yaml:1: seed: tag !mine is not allowed; give a plain value"),
        ("runs: !!binary aGk=", "my.yaml:1: runs: tag !!binary is not allowed; give a plain value"),
    ],
)
def test_a_wrong_setting_is_named_by_line_and_key(tmp_path, text, message):
    lines = refused(tmp_path, text)
    assert len(lines) == 1
    assert message in lines[0]


@pytest.mark.parametrize("text", [".nan", ".NaN", ".inf", "-.inf", "1e400", "-1e999", "!!float nan"])
def test_nan_and_inf_are_refused_wherever_they_stand(tmp_path, text):
    said = f"{text.removeprefix('!!float ')} is not allowed; give a finite number"
    stage = f"{STAGE[:-1]}, warmup_epochs: {text}}}"
    assert refused(tmp_path, f"loss: {{cap: {text}}}") == [f"my.yaml:1: loss.cap: {said}"]
    assert refused(tmp_path, f"data:\n  root: {text}\n") == [f"my.yaml:2: data.root: {said}"]
    assert refused(tmp_path, f"stages: [{stage}]") == [f"my.yaml:1: stages.0.warmup_epochs: {said}"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "my.yaml: is empty; "),
        ("# nothing but this\n", "my.yaml: is empty; "),
        ("- a\n", "my.yaml:1: is no mapping; "),
        ("\n\njust words\n", "my.yaml:3: is no mapping; "),
        ("seed: 1\nruns: [a\nloss: b", "my.yaml:3:5: cannot be read as YAML: "),
        ("seed: 1\n\truns: 3", "my.yaml:2:1: cannot be read as YAML: found character '\\t'"),
        ("seed: 1\n---\nseed: 2\n", "my.yaml:2:1: cannot be read as YAML: but found another document"),
        ("seed: &a 1\nruns: *a\n", "my.yaml:2:7: cannot be read as YAML: alias *a is not supported"),
        ("seed: 1\nruns: a\x00b\n", "my.yaml:2: holds the character 0x0"),
        (b"seed: 1\nruns: \xff\n", "my.yaml:2: is not UTF-8 text; save the file as UTF-8"),
        ("seed: 1".encode("utf-16"), "my.yaml:1: is not UTF-8 text"),
        ("[" * 2000, "my.yaml: is nested too deeply"),
        (b"\x89PNG" * 300_000, "my.yaml: is 1200000 bytes long, too large for a settings file"),
    ],
)
def test_a_file_that_is_no_settings_file_is_refused_in_one_line(tmp_path, text, message):
    lines = refused(tmp_path, text)
    assert len(lines) == 1
    assert lines[0].startswith(message)


def test_a_missing_file_or_a_folder_is_refused(tmp_path):
    for path in (tmp_path, tmp_path / "none.yaml"):
        with pytest.raises(UserError, match="no such settings file"):
            load(path)


def test_all_mistakes_are_reported_at_once_in_the_order_of_the_file(tmp_path):
    lines = refused(
        tmp_path,
        "stages:\n- name: a\n  epochs: -3\n  learning_rate: -1e-3\n  freezed: []\n"
        "runs: 5\nloss: {cap: .nan}\nseed: 1\nseed: 2\n",
        "guard.stop_after=x",
    )
    assert [line.partition(" ")[0] for line in lines] == [
        *(f"my.yaml:{number}:" for number in (3, 4, 5, 6, 7, 9)),
        "--set",
    ]


def unsafe(tag: str, marker: Path) -> str:
    return f'seed: 1\nloss:\n  cap: !!python/{tag} ["{marker}"]\n'


@pytest.mark.parametrize("tag", ["object/apply:os.mkdir", "object/new:os.mkdir", "tuple", "name:os.system"])
def test_python_tags_are_refused_by_name_and_line_and_run_nothing(tmp_path, tag):
    marker = tmp_path / "was_run"
    lines = refused(tmp_path, unsafe(tag, marker))
    assert lines == [f"my.yaml:3: loss.cap: tag !!python/{tag} is not allowed; give a plain value"]
    lines = refused_set(f'loss.cap=!!python/{tag} ["{marker}"]')
    assert lines == [f"--set loss.cap: tag !!python/{tag} is not allowed; give a plain value"]
    assert not marker.exists()


# ---- --set -----------------------------------------------------------------------------------------------------------


def test_overrides_win_over_the_file_and_the_last_one_counts(tmp_path):
    path = tmp_path / "my.yaml"
    path.write_text("training: {batch_size: 8, precision: O2}\n")
    config = load(path, ["training.batch_size=16", "training.batch_size=64"])
    assert config == Config(training=Training(batch_size=64, precision="O2"))
    assert path.read_text() == "training: {batch_size: 8, precision: O2}\n"


@pytest.mark.parametrize("key", ["stages.2.epochs", "stages.joint.epochs"])
def test_a_stage_is_named_by_position_or_name(key):
    before, after = Config().stages, load(None, [f"{key}=77"]).stages
    assert after[:2] == before[:2]
    assert after[2] == before[2].model_copy(update={"epochs": 77})


def test_a_list_or_group_can_be_replaced_and_then_refined():
    config = load(None, [f"stages=[{STAGE}]", "stages.only.epochs=5", "checkpoint={keep: 7}"])
    assert config.stages == (Stage(name="only", epochs=5, learning_rate=1e-3),)
    assert config.checkpoint == Checkpoint(keep=7)


def test_values_of_overrides_are_yaml():
    config = load(None, ["data.test=", "data.object=class:White cell", "augment.scale=[0.5, 2]", "data.root='a #1'"])
    assert config.data == Data(test=None, object="class:White cell", root=Path("a #1"))
    assert config.augment.scale == (0.5, 2.0)


def test_an_override_mends_the_file(tmp_path):
    path = tmp_path / "my.yaml"
    path.write_text("training:\n  batch_size: 0\n")
    assert load(path, ["training.batch_size=4"]).training.batch_size == 4


@pytest.mark.parametrize("override", ["loss.cap=-1", "loss={cap: -1}"])
def test_a_mistake_in_an_override_is_not_blamed_on_the_file(tmp_path, override):
    lines = refused(tmp_path, "loss:\n  cap: 2\n", override)
    assert len(lines) == 1
    assert lines[0].startswith("--set loss")
    assert "my.yaml" not in lines[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("training.batchsize=3", "--set training.batchsize: unknown key; did you mean batch_size?"),
        ("trainin.batch_size=3", "--set trainin.batch_size: trainin: unknown key; did you mean training?"),
        ("batch_size=3", "--set batch_size: unknown key; did you mean training.batch_size?"),
        ("seed=-1", "--set seed: -1 is out of range; must be 0 or more"),
        ("seed='3'", "--set seed: '3' is of the wrong type; must be a whole number (without quotes)"),
        ("seed=.nan", "--set seed: .nan is not allowed; give a finite number"),
        ("seed", "--set seed: write KEY=VALUE, such as training.batch_size=16"),
        ("=3", "--set =3: write KEY=VALUE"),
        ("a..b=3", "--set a..b=3: write KEY=VALUE"),
        ("seed.x=3", "--set seed.x: seed is a single value and has no x"),
        ("stages.3.epochs=1", "--set stages.3.epochs: no item 3 in stages; stages has 3: classification, regression"),
        ("stages.clasification.epochs=1", "no item clasification in stages; did you mean classification?"),
        ("stages.-1.epochs=1", "--set stages.-1.epochs: no item -1 in stages"),
        ("stages.0.lr=1", "--set stages.0.lr: unknown key; did you mean learning_rate?"),
        ("stages=[]", "--set stages: []: at least one stage is needed"),
        ("loss={cap: 1, cap: 2}", "--set loss: loss.cap: given twice"),
        ("data.root=@x", "--set data.root: '@x' is not YAML"),
        ("data.root=photos #1", "--set data.root: what follows # would be lost; put quotes around the value"),
        ("data.root=#1", "--set data.root: what follows # would be lost; put quotes around the value"),
        ("data.root=" + "[" * 2000, "--set data.root: "),
        ("data.root=\udcff", "--set data.root: '\\udcff' is not YAML"),
    ],
)
def test_a_wrong_override_is_named(text, message):
    lines = refused_set(text)
    assert len(lines) == 1
    assert message in lines[0]


def test_nesting_is_refused_however_deep_python_may_recurse(tmp_path):
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(100_000)  # as other libraries do
    try:
        (tmp_path / "my.yaml").write_text("a: " + "[" * 2000 + "]" * 2000)
        with pytest.raises(UserError, match="nested too deeply"):
            settings.read(tmp_path / "my.yaml")
    finally:
        sys.setrecursionlimit(before)
