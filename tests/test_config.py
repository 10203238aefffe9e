"""Settings: defaults and config.yaml agree, good values are read as meant, dump loads back equal."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from finite.config import Checkpoint, Config, Data, LossScale, Optimizer, Stage, Training, WaveformConfig, dump, load, validated
from finite.errors import UserError

ROOT = Path(__file__).parents[1]
CASES = Path(__file__).parents[2] / "shared" / "cases" / "make_cases.py"
DEFAULT_FILE, WAVEFORM_FILE = ROOT / "config.yaml", ROOT / "examples" / "waveform.yaml"
STAGE = "{name: only, epochs: 2, learning_rate: 1e-3}"


def leaves(value: object, key: str = "") -> list[str]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else []
    found = [leaf for name, inner in items for leaf in leaves(inner, f"{key}.{name}")]
    return found or [key]


# ---- the default file ------------------------------------------------------------------------------------------------


def test_default_file_is_the_schema_default():
    assert load(DEFAULT_FILE) == Config() == load(None)


def test_default_file_shows_every_key():
    shown = yaml.safe_load(DEFAULT_FILE.read_text())
    assert leaves(shown) == leaves(Config().model_dump(mode="json"))


def test_the_waveform_example_is_its_schemas_default_and_shows_every_key():
    assert load(WAVEFORM_FILE) == WaveformConfig() == load(None, ["task=waveform"])
    assert leaves(yaml.safe_load(WAVEFORM_FILE.read_text())) == leaves(WaveformConfig().model_dump(mode="json"))


def test_the_task_chooses_the_schema(tmp_path):
    path = tmp_path / "my.yaml"
    path.write_text("task: waveform\ndata:\n  length: 2048\n")
    config = load(path)
    assert isinstance(config, WaveformConfig) and config.data.length == 2048 and config.stages[0].name == "waveform"
    (tmp_path / "again.yaml").write_text(dump(config))
    assert load(tmp_path / "again.yaml") == config == validated(config.model_dump(mode="json"))
    for text, told in (("task: sound", "task: 'sound' is not allowed; must be detection or waveform"),
                       ("task: waveform\nmodel:\n  backbone: small", "model.backbone: unknown key"),
                       ("data:\n  length: 2048", "data.length: unknown key"),
                       ("task: waveform\nstages:\n- {name: a, epochs: 1, learning_rate: 0.1, weights: {box: 1}}", "weights.box: unknown key")):
        path.write_text(text)
        with pytest.raises(UserError, match=re.escape(told)):
            load(path)


@pytest.mark.parametrize("file", [DEFAULT_FILE, WAVEFORM_FILE], ids=lambda path: path.stem)
def test_every_line_of_the_default_file_has_exactly_one_comment(file):
    lines = [line for line in file.read_text().splitlines() if line and not line.startswith("#")]
    assert len(lines) > 80
    for line in lines:
        assert re.fullmatch(r"[^#]*\S  # \S[^#]*", line), line
        assert len(line) <= 120, line


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda path: path.stem)
def test_examples_are_read_and_say_what_they_reach_and_how_long_they_take(path):
    config = load(path)
    head = [line for line in path.read_text().splitlines() if line.startswith("#")]
    assert any(re.search(r"Reaches .*\d\.\d\d.* in .*\d+ s", line) for line in head), "no line says what it reaches"
    assert f"--config examples/{path.name}" in " ".join(head)
    assert path.stem.split("-")[0] in config.data.root.parts or config == WaveformConfig()


def test_published_values_are_the_defaults():
    config = Config()
    assert config.stages[1].weights["box"] == 0.5  # joint has 3.0, measured better; config.yaml says so
    assert (config.loss.cap, config.training.clip_norm) == (10.0, 1.0)
    assert config.training.loss_scale == LossScale(initial=2**16, factor=2, window=1000)


def test_settings_do_not_import_mindspore():
    code = "import sys, finite.config; finite.config.load(None); sys.exit('mindspore' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    assert subprocess.run([sys.executable, "-c", code], env=environment).returncode == 0


# ---- good values -----------------------------------------------------------------------------------------------------


def test_a_file_may_leave_keys_out(tmp_path):
    path = tmp_path / "my.yaml"
    path.write_text("training:\n  batch_size: 8\n")
    assert load(path) == Config(training=Training(batch_size=8))


def test_a_list_in_the_file_replaces_the_default_list(tmp_path):
    path = tmp_path / "my.yaml"
    path.write_text(f"stages: [{STAGE}]\n")
    assert load(path).stages == (Stage(name="only", epochs=2, learning_rate=0.001),)


@pytest.mark.parametrize("text", ["1e-3", "1E-3", "1.0e-3", ".001", "0.001", "+1e-03", "!!float 1e-3"])
def test_every_spelling_of_a_number_is_read(text):
    assert load(None, [f"stages.0.learning_rate={text}"]).stages[0].learning_rate == 0.001


def test_off_is_a_word_and_not_false(tmp_path):
    path = tmp_path / "my.yaml"
    path.write_text("guard:\n  spike:\n    mode: off\n")
    assert load(path).guard.spike.mode == "off"


def test_byte_order_mark_and_windows_line_ends_are_fine(tmp_path):
    path = tmp_path / "my.yaml"
    path.write_bytes(b"\xef\xbb\xbfseed: 3\r\ndevice: GPU\r\n")
    assert load(path) == Config(seed=3, device="GPU")


def test_a_term_left_out_of_the_weights_is_off():
    stage = load(None, ["stages.2.weights={box: 2}"]).stages[2]
    assert list(stage.weights.items()) == [("class", 0.0), ("box", 2.0)]


def test_loaded_settings_cannot_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        load(None).training.batch_size = 4


@pytest.mark.parametrize("name", ["照片/猫", "a b", "é#1", "no\u3000break"])
def test_paths_may_hold_any_letters(name, tmp_path):
    path = tmp_path / "my.yaml"
    path.write_text(f'data: {{root: "{name}"}}', encoding="utf-8")
    assert load(path).data.root == Path(name)


@pytest.mark.parametrize("task, override, words", [
    ("waveform", "loss.resolutions=[{fft: 64, hop: 1000000, window: 32}]", "hop (1000000) must not be longer than window (32)"),
    ("waveform", "loss.resolutions=[{fft: 64, hop: 1, window: 1}]", "window: 1 is out of range; must be 2 or more"),
    ("waveform", "loss.resolutions=[]", "at least one resolution is needed"),
    ("waveform", "data.threads=9007199254740992", "data.threads: 9007199254740992 is out of range; must be 256 or less"),
    ("detection", "data.threads=9007199254740992", "data.threads: 9007199254740992 is out of range; must be 256 or less"),
    ("detection", "training.average=0.9999999999999999", "is 1 in float32"),
])
def test_numbers_that_only_the_run_would_have_met_are_refused_where_they_are_read(task, override, words):
    with pytest.raises(UserError) as caught:
        load(None, [f"task={task}", override])
    assert words in str(caught.value) and "\n" not in str(caught.value)


# ---- dump ------------------------------------------------------------------------------------------------------------

positive = st.floats(1e-30, 1e30)
share = st.just(0.0) | st.floats(1e-30, 0.999)
beta = st.floats(1e-30, 0.999)
text = st.text(st.characters(exclude_categories=("Cc", "Cs")), min_size=1)
paths = text.map(Path).filter(lambda path: not str(path).startswith("~"))
class_names = text.filter(lambda name: not name[0].isspace()).map("class:{}".format)
stage = st.builds(
    Stage,
    name=st.from_regex(r"[A-Za-z][A-Za-z0-9_-]*", fullmatch=True).filter(lambda name: name != "all"),
    epochs=st.integers(1, 10**6),
    learning_rate=positive,
    schedule=st.sampled_from(["cosine", "constant"]),
    warmup_epochs=share,
    freeze=st.lists(text, max_size=3).map(tuple),
    weights=st.fixed_dictionaries({"class": positive}, optional={"box": positive}),
)
configs = st.builds(
    Config,
    seed=st.integers(0, 2**32 - 1),
    runs=paths,
    data=st.builds(
        Data,
        root=paths,
        test=st.none() | paths,
        object=st.sampled_from(["largest", "only"]) | class_names,
        background=st.booleans(),
    ),
    optimizer=st.builds(Optimizer, betas=st.tuples(beta, beta), eps=positive),
    stages=st.lists(stage, min_size=1, max_size=3, unique_by=lambda one: one.name).map(tuple),
    checkpoint=st.builds(Checkpoint, keep=st.integers(0, 10**6)),
)


@settings(max_examples=60, deadline=None)
@given(config=configs)
def test_dump_loads_back_equal(config, tmp_path_factory):
    path = tmp_path_factory.mktemp("dump") / "config.yaml"
    path.write_text(dump(config), encoding="utf-8")
    assert load(path) == config


ODD_WORDS = ["1e-3", "off", "null", "0o17", "2024-01-01", "1:30", "yes", ".nan", "=", "<<", "'", "a: b"]


@pytest.mark.parametrize("name", ODD_WORDS)
def test_dump_quotes_text_that_looks_like_something_else(name, tmp_path):
    config = Config(runs=Path(name))
    (tmp_path / "c.yaml").write_text(dump(config))
    assert load(tmp_path / "c.yaml") == config
    assert yaml.safe_load(dump(config))["runs"] == name  # for other programs, which read YAML 1.1


def test_dump_writes_every_key():
    assert leaves(yaml.safe_load(dump(Config()))) == leaves(Config().model_dump(mode="json"))


# ---- collected cases -------------------------------------------------------------------------------------------------

ROLES = {
    "format": "data.format",
    "epochs": "stages.0.epochs",
    "batch_size": "training.batch_size",
    "lr": "stages.0.learning_rate",
    "seed": "seed",
    "lerning_rate": "stages.0.lerning_rate",
}


def renamed(text: str) -> str:
    """A case's flat settings under our keys; values stay text, so that tags and odd values stay as written."""
    entries = re.findall(r"^(\w+):((?: .*)?\n(?:- .*\n)*)", text, re.M)
    flat = {key: value.rstrip().replace("\n- ", "\n      - ") for key, value in entries}
    flat.setdefault("lr", " 0.001")
    stage = [f"    {ROLES[key].split('.')[-1]}:{flat[key]}" for key in flat if "stages" in ROLES.get(key, "")]
    return "\n".join(
        [
            f"seed:{flat['seed']}",
            f"data:\n  format:{flat['format']}",
            f"training:\n  batch_size:{flat['batch_size']}",
            "stages:\n  - name: only",
            *stage,
        ]
    )


@pytest.mark.skipif(not CASES.is_file(), reason="the collection of faulty inputs is not beside the project")
@pytest.mark.parametrize("case", ["config_values", "config_unsafe"])
def test_collected_cases_lead_to_what_they_expect(case, tmp_path, monkeypatch):
    subprocess.run([sys.executable, CASES, tmp_path, case], check=True, capture_output=True)
    monkeypatch.chdir(tmp_path)
    expected = json.loads((tmp_path / case / "expected.json").read_text())["expect"]
    for one in expected["configs"]:
        text = (tmp_path / case / "data" / "configs" / one["file"]).read_text()
        path = tmp_path / one["file"]
        path.write_text(renamed(text))
        if one["exit"] == "ok":
            assert load(path).training.batch_size == 4
            continue
        with pytest.raises(UserError) as caught:
            load(path)
        message = str(caught.value)
        assert "\n" not in message
        for words in one["error_mentions"]:
            options = [words] if isinstance(words, str) else words
            assert any(ROLES.get(word, word) in message for word in options), (one["file"], message)
    assert not (tmp_path / "yaml_tag_was_run").exists()
