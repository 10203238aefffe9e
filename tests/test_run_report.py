"""report.html: the right numbers, every bad step, nothing from the network, nothing unescaped; runs side by side."""

import base64
from html.parser import HTMLParser
import io
import json
import math
import re

from PIL import Image
import pytest
from small_history import CLASSES, add_incident, add_pictures, make_history, step_line

from finite import cli
from finite.config import Config
from finite.errors import UserError
from finite.monitor import report, report_charts as charts
from finite.monitor.report_data import read
from finite.run import RunFolder, write_json


class Page(HTMLParser):
    """Tags with attributes, and text by the tag that it is in."""

    def __init__(self, text: str):
        super().__init__()
        self.tags, self.texts, self.open = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in ("meta", "link", "img", "path", "rect", "circle", "line"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag in self.open:
            assert self.open[-1] == tag, f"</{tag}> closes <{self.open[-1]}>"
            self.open.pop()

    def handle_data(self, data):
        self.texts.append((self.open[-1] if self.open else "", data))


def write(run) -> tuple[str, Page]:
    text = report.write(run).read_text()
    page = Page(text)
    assert page.open == []  # everything that was opened is closed
    return text, page


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    run = make_history(tmp_path_factory.mktemp("report") / "one", 60, (7, 31, 55), epochs=6)
    add_incident(run, 31)
    add_pictures(run)
    return run


def test_the_page_tells_how_many_steps_were_refused_and_which(run):
    text, _ = write(run)
    assert "<dt>skipped steps</dt><dd>3</dd>" in text and "<dt>healthy steps</dt><dd>57</dd>" in text
    assert "<dt>incidents</dt><dd>3</dd>" in text  # two of them got no folder
    assert "3 steps skipped, 0 overflow, 57 healthy; 3 attempts refused, 0 of them run again" in text
    assert re.findall(r"<b>step (\d+)</b> \(\w+\) refused", text) == ["7", "31", "55"]


def test_the_figures_are_those_of_the_newest_validation_then_those_of_the_test(run, tmp_path):
    text, _ = write(run)
    assert "Results (validation split)" in text and f"<dt>top-1</dt><dd>{6 / 7:.3f}</dd>" in text
    done = make_history(tmp_path / "done", 12, epochs=3)
    found = read(done).epochs[0]["validation"]
    add_pictures(done)
    write_json(done.metrics, {"split": "test", **found, "top1": 0.125, "training_seconds": 3.5, "checkpoint": {"step": 9}})
    text, _ = write(done)
    assert "Results (test split)" in text and "<dt>top-1</dt><dd>0.125</dd>" in text and "checkpoint of step 9" in text
    assert "training seconds" not in text
    sizes = [Image.open(io.BytesIO(base64.b64decode(data))).size for data in re.findall(r"base64,([^']+)'", text)]
    assert sizes == [(300, 200)] * 3  # of the test split, as it says


def test_the_page_asks_the_network_for_nothing(run):
    text, page = write(run)
    for tag, attributes in page.tags:
        for name in ("src", "href", "action", "data", "poster", "srcset"):
            value = attributes.get(name) or ""
            assert value.startswith(("data:", "#")) or not value, (tag, value)
    assert "url(" not in text and "@import" not in text and "default-src 'none'" in text
    assert len([tag for tag, _ in page.tags if tag == "img"]) == 4


def test_text_from_data_is_escaped(run):
    text, _ = write(run)
    assert "odd&lt;name&gt;.png" in text and "<name>" not in text
    assert f"<th scope='row'>{CLASSES[1].replace('&', '&amp;').replace('<', '&lt;').replace('>', '&gt;')}</th>" in text
    assert "photos &lt;1&gt;" in text and "a note &amp; more" in text


def test_incidents_are_cards_with_cause_and_deed_and_samples_in_quarantine_are_listed(run):
    _, page = write(run)
    words = " ".join(text for _, text in page.texts)
    for told in ("Step 31: bad term", "the logarithm of a width of 0", "refused, run again without the sample", "box_head.box",
                 "odd<name>.png (labels.csv:17)", "Samples in quarantine", "box: width 0", "class 0.5305, box inf", "incidents/step-000031"):  # fmt: skip
        assert told in words, told
    assert sum(1 for tag, a in page.tags if tag == "article") == 1
    assert [a["alt"] for tag, a in page.tags if tag == "img"][3:] == ["the samples with their targets"]


def test_a_damaged_incident_is_a_card_that_says_so(tmp_path):
    run = make_history(tmp_path / "run", 6, epochs=1)
    (run.incidents / "step-000004").mkdir(parents=True)
    (run.incidents / "step-000004" / "incident.json").write_text('{"step": 4, ')
    (run.incidents / "step-000005").mkdir()  # being written
    text, page = write(run)
    assert "Step 4: incident.json can&#x27;t be read" in text and sum(1 for tag, _ in page.tags if tag == "article") == 1


def test_a_rerun_counts_as_refused_and_as_healthy_as_in_metrics_json(tmp_path):
    run = make_history(tmp_path / "run", 10, epochs=1)
    with run.history.open("a") as file:
        for line in ({"kind": "event", "stage": "joint", "epoch": 2, "step": 11, "event": "refused", "text": "bad input"},
                     step_line(11, "joint", 2)):  # fmt: skip
            file.write(json.dumps(line) + "\n")
    assert read(run).counts() == {"healthy": 11, "overflow": 0, "skipped": 0, "refused": 1}


def test_a_run_that_has_just_begun_has_a_page(tmp_path):
    run = RunFolder.create(tmp_path, "run")
    run.config.write_text("seed: 3\n")
    text, _ = write(run)
    assert "Training has not begun" in text and "Nothing is scored yet" in text


def test_a_run_that_was_altered_is_one_line(tmp_path):
    run = make_history(tmp_path / "run", 4, epochs=1)
    run.history.write_text('{"kind": "step"\n')
    with pytest.raises(UserError, match="history.jsonl:1: not JSON"):
        report.write(run)
    said = []
    report.try_write(run, Config(), said.append)  # in a training it is a line, and the training goes on
    assert len(said) == 1 and "report.html was not written" in said[0]


# ---- curves ----------------------------------------------------------------------------------------------------------


def test_no_single_step_is_lost_in_a_long_curve():
    steps, values = list(range(1, 30001)), [1.0 + (s % 5) for s in range(1, 30001)]
    values[12344], values[20000], values[25000] = 50.0, -50.0, math.nan
    kept, shown = charts.thin(steps, values)
    assert len(kept) <= charts.POINTS * 1.3 and kept == sorted(set(kept)) and (kept[0], kept[-1]) == (1, 30000)
    found = dict(zip(kept, shown))
    assert found[12345] == 50.0 and found[20001] == -50.0 and math.isnan(found[25001])


def test_a_value_that_is_not_finite_is_a_gap_with_a_mark():
    curve = charts.Curve("total", [1, 2, 3, 4, 5], [1.0, 2.0, math.nan, 2.0, 1.0])
    drawn = charts.draw(charts.Chart("loss", [curve]))
    line = re.search(r"<path class='c0' d='(M[^']*)'/><text class='gap'", drawn)[1]
    assert line.count("M") == 2 and "step 3: total is nan" in drawn
    assert charts.draw(charts.Chart("loss", [charts.Curve("total", [1, 2], [math.nan, None])])) == ""


def test_a_long_curve_has_its_moving_mean_over_it_without_what_is_not_finite():
    values = [1.0 + (s % 2) for s in range(600)]
    values[300] = math.nan
    curve = charts.Curve("total", list(range(1, 601)), values)
    steps, means, width = charts.smooth(curve)
    assert width == 10 and steps[0] == 1 and all(abs(mean - 1.5) < 0.11 for mean in means)
    assert charts.smooth(charts.Curve("x", list(range(600)), [math.nan] * 600))[1] == [None] * len(steps)
    drawn = re.findall(r"<path class='(c0[^']*)' d='M", charts.draw(charts.Chart("loss", [curve])))
    assert drawn == ["c0 faint", "c0", "c0"]  # each value, the mean, the legend
    assert "mean over 10 steps" in charts.draw(charts.Chart("loss", [curve]))
    assert "mean over" not in charts.draw(charts.Chart("rate", [curve], exact=True))


def test_stages_and_what_happened_stand_in_every_chart(run):
    text, page = write(run)
    figures = text.split("<figure class='chart'>")[1:]
    assert len(figures) == 6
    for figure in figures:
        assert figure.count("class='band") == 3 and figure.count("<g class='mark'>") == 3
    data = json.loads(re.search(r"<script type='application/json'>(.*?)</script>", figures[0])[1])
    assert [c["name"] for c in data["curves"]] == ["total", "class (weighted)", "box (weighted)"]
    assert data["curves"][0]["texts"][6] == "nan" and [step for step, _ in data["marks"]] == [7, 31, 55]


@pytest.mark.parametrize("low, high", [(0, 1), (3, 3), (-1e-9, 1e-9), (0.1, 12345), (-5, 0)])
def test_axes_have_a_few_round_numbers_around_the_values(low, high):
    ticks = charts.nice(low, high)
    assert 2 <= len(ticks) <= 8 and ticks[0] <= low + 1e-12 and ticks[-1] >= high - 1e-12


# ---- several runs ----------------------------------------------------------------------------------------------------


def test_runs_are_compared_side_by_side(tmp_path, capsys):
    one = make_history(tmp_path / "a" / "same", 12, (3,), epochs=3)
    config = Config.model_validate({"seed": 9, "training": {"batch_size": 8}})
    two = make_history(tmp_path / "b" / "same", 12, epochs=3, config=config)
    assert cli.main(["report", str(one.path), str(two.path), "--out", str(tmp_path / "c.html")]) == 0
    text = (tmp_path / "c.html").read_text()
    assert Page(text).open == []
    assert "same (1)" in text and "same (2)" in text
    rows = re.findall(r"<tr><td>([^<]*)</td><td>([^<]*)</td><td>([^<]*)</td></tr>", text)
    assert ("seed", "1", "9") in rows and ("training.batch_size", "32", "8") in rows and len(rows) == 2
    assert (one.path / "report.html").exists() and (two.path / "report.html").exists()
    assert capsys.readouterr().out.count("written: ") == 3


def test_the_verb_explains_what_is_no_run(tmp_path, capsys):
    assert cli.main(["report", str(tmp_path / "missing")]) == 2
    assert "no such run folder" in capsys.readouterr().err
    run = make_history(tmp_path / "run", 4, epochs=1)
    assert cli.main(["report", str(run.path), "--out", "x.html"]) == 2
    assert "comparison of several runs" in capsys.readouterr().err
