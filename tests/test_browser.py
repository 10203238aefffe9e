"""Real trainings in the real MindInsight, and report.html, looked at with a real browser: numbers equal those of the history.

Needs Chromium and MindInsight's own environment. With --browser (as in .ci/run) the environment is made, and what would be
skipped fails.
"""

import json
import os
from pathlib import Path
import shutil
import signal
import socket
import subprocess
import sys
import time
from urllib.parse import quote
from urllib.request import ProxyHandler, Request, build_opener

from PIL import Image
import pytest
from recorded_run import REFUSED, STEPS
from small_run import draw_set, small_config

from finite import job
from finite.config import Config
from finite.monitor import dashboard, dashboard_setup, report
from finite.monitor.console import Console
from finite.monitor.history import History
from finite.run import RunFolder, TrainOptions

ROOT = Path(__file__).resolve().parents[1]
CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def or_skip(request, reason: str) -> None:
    (pytest.fail if request.config.getoption("--browser") else pytest.skip)(reason)


@pytest.fixture(scope="module")
def browser(request):
    program = next((path for name in CHROMIUM if (path := shutil.which(name))), None)
    if program is None:
        or_skip(request, f"needs Chromium (tried: {', '.join(CHROMIUM)})")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        options = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        opened = playwright.chromium.launch(executable_path=program, args=options)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def environment(request):
    if not request.config.getoption("--browser") and not (ROOT / ".venv-mindinsight" / "installed").exists():
        or_skip(request, "needs .venv-mindinsight, which `make dashboard` makes")
    return dashboard_setup.environment(ROOT, print)


@pytest.fixture(scope="module")
def trained(three_refused):
    """A run of the detection task beside the run of 3,000 steps: two stages, trained, scored and exported."""
    base = three_refused.path.parent
    values = small_config(draw_set(base.parent / "data", {"train": 24, "validation": 9, "test": 11})).model_dump(mode="json")
    stages = {stage["name"]: stage | {"epochs": 2, "warmup_epochs": 0.0} for stage in values["stages"]}
    values |= {"runs": str(base), "stages": [stages["classification"], stages["joint"]],
               "summary": values["summary"] | {"every_steps": 1}}
    console = Console(plain=True)
    job.run(Config.model_validate(values), TrainOptions(run="trained"), console)
    console.close()
    return RunFolder.open(base / "trained")


@pytest.fixture(scope="module")
def server(environment, trained):
    """MindInsight over both runs: its port."""
    with socket.socket() as probe:
        probe.bind((dashboard.HOST, 0))
        port = probe.getsockname()[1]
    base, first = dashboard.check_runs(trained.path, pytest.fail)
    started = dashboard.start(environment, base, port)
    yield port
    began = time.monotonic()
    dashboard.end(started.pid)
    assert time.monotonic() - began < 3 and not dashboard.members(started.pid)


@pytest.fixture(scope="module")
def ask(server):
    """GET (or POST a body) from MindInsight's REST API."""
    opener = build_opener(ProxyHandler({}))

    def get(path: str, body: dict | None = None, raw: bool = False):
        data = None if body is None else json.dumps(body).encode()
        address = f"http://{dashboard.HOST}:{server}/v1/mindinsight/{path}"
        with opener.open(Request(address, data, {"Content-Type": "application/json"}), timeout=60) as answer:
            found = answer.read()
        return found if raw else json.loads(found)

    return get


def job_id(run: RunFolder) -> str:
    return quote(f"./{run.path.name}", safe="")


def curve(ask, run: RunFolder, tag: str, last: int) -> dict[int, float]:
    """A scalar's points once the step `last` is in (it loads in the background)."""
    deadline = time.monotonic() + 90
    while True:
        try:
            found = ask(f"datavisual/scalar/metadata?train_id={job_id(run)}&tag={quote(tag + '/scalar', safe='')}")["metadatas"]
        except OSError:
            found = []  # not known yet
        points = {p["step"]: p["value"] for p in found}
        if last in points:
            return points
        assert time.monotonic() < deadline, f"{tag}: step {last} never came, {len(points)} points"
        time.sleep(0.5)


@pytest.fixture(scope="module")
def lines(trained):
    return {line["step"]: line for line in History(trained.history).read() if line["kind"] == "step"}


# ---- the REST API ----------------------------------------------------------------------------------------------------


def test_scalars_equal_the_history(ask, trained, lines):
    last = max(lines)
    for tag, value in (("loss/total", lambda l: l["total"]), ("loss/class/raw", lambda l: l["terms"]["class"]["raw"]),
                       ("loss/box/weighted", lambda l: l["terms"]["box"]["weighted"]), ("norm/all", lambda l: l["grad_norm"]),
                       ("norm/box_head", lambda l: l["part_norms"]["box_head"]), ("optimizer/learning_rate", lambda l: l["rate"]),
                       ("position/stage", lambda l: {"classification": 1, "joint": 2}[l["stage"]])):  # fmt: skip
        assert curve(ask, trained, tag, last) == pytest.approx({s: value(line) for s, line in lines.items()}, rel=1e-5), tag
    epochs = [line for line in History(trained.history).read() if line["kind"] == "epoch"]
    assert curve(ask, trained, "validation/mean_iou", last) == pytest.approx(
        {line["step"]: line["validation"]["mean_iou"] for line in epochs}, rel=1e-5)  # fmt: skip


def test_three_refused_steps_of_3000_are_exactly_three(ask, three_refused):
    points = curve(ask, three_refused, "total/refused", STEPS)
    assert len(points) <= 1000 and max(points) == STEPS and points[STEPS] == max(points.values()) == 3
    for step, value in points.items():
        assert value == sum(1 for bad in REFUSED if bad <= step)


def test_histograms_count_every_weight(ask, trained, lines):
    plugins = ask(f"datavisual/plugins?train_id={job_id(trained)}")["plugins"]
    assert len(set().union(*map(set, plugins.values()))) < 300
    for kind in ("gradient", "weight", "update"):
        tag = f"{kind}/classifier.dense.weight/histogram"
        assert tag in plugins["histogram"]
        found = ask(f"datavisual/histograms?train_id={job_id(trained)}&tag={quote(tag, safe='')}")["histograms"]
        assert found[0]["step"] in lines and sum(bucket[2] for bucket in found[0]["buckets"]) == pytest.approx(2 * 6 * 8 * 2, rel=0.1)  # it bins anew


def test_pictures_after_the_first_and_the_last_epoch(ask, trained):
    ends = [line["step"] for line in History(trained.history).read() if line["kind"] == "epoch"]
    for name in ("training/input", "validation/best", "validation/worst", "validation/random"):
        tag = quote(f"{name}/image", safe="")
        found = ask(f"datavisual/image/metadata?train_id={job_id(trained)}&tag={tag}")["metadatas"]
        steps = [picture["step"] for picture in found]
        assert steps[0] == ends[0] and steps[-1] == ends[-1] and set(steps) <= set(ends) and found[0]["width"] > 300
        picture = ask(f"datavisual/image/single-image?train_id={job_id(trained)}&tag={tag}&step={ends[-1]}", raw=True)
        assert picture.startswith(b"\xff\xd8")  # JPEG


def test_the_graph_of_the_step_and_of_the_data(ask, trained):
    nodes = ask(f"datavisual/graphs/nodes?train_id={job_id(trained)}")["nodes"]
    assert {"Default", "Gradients"} <= {node["name"] for node in nodes}
    graph, kinds = ask(f"datasets/dataset_graph?train_id={job_id(trained)}")["dataset_graph"], []
    while graph:
        kinds.append(graph["op_type"])
        last, graph = graph, next(iter(graph["children"]), None)
    assert kinds == ["Batch", "Map", "Shuffle", "ImageFolder"] and last["images"] == 24


def test_lineage_compares_runs_by_what_they_were_trained_with_and_reached(ask, trained):
    found = {run["summary_dir"]: run["model_lineage"] for run in ask("lineagemgr/lineages", {})["object"]}
    told, metrics = found["./trained"], json.loads(trained.metrics.read_text())
    assert (told["batch_size"], told["epoch"], told["optimizer"]) == (4, 4, "adam")
    assert told["learning_rate"] == pytest.approx(0.003) and told["train_dataset_count"] == 24 and told["test_dataset_count"] == 11
    assert told["metric"]["test_mean_iou"] == pytest.approx(metrics["mean_iou"]) and "validation_top1" in told["metric"]
    assert told["user_defined"]["seed"] == 1 and told["user_defined"]["steps_skipped"] == 0


def test_the_tool_prints_the_address_and_ends_within_three_seconds_of_ctrl_c(environment, trained):
    with socket.socket() as probe:
        probe.bind((dashboard.HOST, 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-u", str(ROOT / "tools" / "dashboard.py"), str(trained.path.parent), "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as tool:
        said = [tool.stdout.readline().strip() for _ in range(4)]
        assert said[0] == f"trained: {dashboard.url(port, trained.path)}" and said[-1] == "Ctrl-C ends it", said
        assert f"ssh -L {port}:127.0.0.1:{port}" in said[2] and dashboard.answers(port)
        again = subprocess.run(command, capture_output=True, text=True)
        assert again.returncode == 2 and "taken by another program" in again.stderr and len(again.stderr.splitlines()) == 1
        began = time.monotonic()
        tool.send_signal(signal.SIGINT)
        assert tool.wait(10) == 0 and time.monotonic() - began < 3 and not dashboard.answers(port)


# ---- the pages -------------------------------------------------------------------------------------------------------


@pytest.fixture
def look(browser, tmp_path_factory):
    """Opens an address, waits for a text, takes a screenshot; fails when a request failed or a script raised."""
    folder = tmp_path_factory.getbasetemp() / "screenshots"
    folder.mkdir(exist_ok=True)
    pages = []

    def show(address: str, name: str, text: str, patience: float = 2.0, **options):
        page = browser.new_page(**({"viewport": {"width": 1400, "height": 950}} | options))
        trouble: list[str] = []
        page.on("requestfailed", lambda r: trouble.append(f"{r.url} failed: {r.failure}"))
        page.on("response", lambda r: r.status >= 400 and trouble.append(f"{r.url}: {r.status}"))
        page.on("pageerror", lambda error: trouble.append(f"script: {error}"))
        page.on("console", lambda said: said.type == "error" and trouble.append(f"console: {said.text}"))
        page.asked, page.folder = [], folder
        page.on("request", lambda r: page.asked.append(r.url))
        pages.append((page, trouble))
        page.goto(address)
        page.get_by_text(text).filter(visible=True).first.wait_for(timeout=60_000)
        page.wait_for_timeout(1e3 * patience)  # charts are drawn after their data came
        path = folder / f"{name}.png"
        page.screenshot(path=path, full_page="report" in name)
        assert len(Image.open(path).convert("RGB").resize((300, 200)).getcolors(10**6)) > 20  # not a blank page
        return page

    yield show
    for page, trouble in pages:
        page.close()
        assert trouble == []


@pytest.mark.parametrize("name, place, text", [
    ("dashboard", "training-dashboard?id={id}", "Training Dashboard"), ("scalar", "scalar?train_id={id}", "loss/total/scalar"),
    ("histogram", "histogram?train_id={id}", "gradient/backbone"), ("image", "image?train_id={id}", "validation/worst/image"),
    ("graph", "graph?train_id={id}", "Computational Graph"), ("data", "data-map?train_id={id}", "Letterbox")])  # fmt: skip
def test_the_pages_of_a_run(look, server, trained, ask, lines, name, place, text):
    curve(ask, trained, "loss/total", max(lines))
    page = look(f"http://{dashboard.HOST}:{server}/#/train-manage/{place.format(id=job_id(trained))}", f"mindinsight-{name}", text)
    if name == "dashboard":
        assert page.url == dashboard.url(server, trained.path)
        for title in ("Computational Graph", "Data Graph", "Parameter Distribution", "Training Scalar Information"):
            assert page.get_by_text(title).first.is_visible()


def test_the_page_of_all_runs(look, server, trained):
    page = look(dashboard.url(server), "mindinsight-lineage", "./trained")
    assert page.get_by_text("Model Lineage").first.is_visible()


def test_the_refused_steps_on_the_page(look, server, three_refused, ask):
    """The page gets the numbers that it draws, and a picture of it is taken to be looked at."""
    curve(ask, three_refused, "total/refused", STEPS)
    page = look(f"http://{dashboard.HOST}:{server}/#/train-manage/scalar?train_id={job_id(three_refused)}", "mindinsight-curves", "norm/all")
    tags = ask(f"datavisual/plugins?train_id={job_id(three_refused)}")["plugins"]["scalar"]
    with page.expect_response(lambda answer: "total%2Frefused" in answer.url) as given:
        page.locator(".el-pager li", has_text=str(tags.index("total/refused/scalar") // 6 + 1)).first.click()  # six charts a page
    drawn = [point["value"] for point in given.value.json()["metadatas"]]
    assert drawn[-1] == max(drawn) == 3 and sorted(set(drawn)) == [0, 1, 2, 3]
    page.get_by_text("total/refused/scalar").filter(visible=True).first.wait_for()
    page.wait_for_timeout(2000)
    page.screenshot(path=page.folder / "mindinsight-refused.png")


@pytest.mark.parametrize("name, options", [
    ("light", {}), ("dark", {"color_scheme": "dark"}), ("phone", {"viewport": {"width": 390, "height": 844}})])  # fmt: skip
def test_the_report(look, trained, lines, name, options):
    path = trained.path / "report.html"
    page = look(path.as_uri(), f"report-{name}", "Configuration and versions", 0.3, **options)
    assert page.asked == [path.as_uri()]  # nothing else, from nowhere
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    metrics = json.loads(trained.metrics.read_text())
    tiles = dict(zip(page.locator(".tiles dt").all_inner_texts(), page.locator(".tiles dd").all_inner_texts()))
    assert tiles["top-1"] == f"{metrics['top1']:.3f}" and tiles["healthy steps"] == str(len(lines)) and tiles["skipped steps"] == "0"
    cells = page.locator(".confusion tbody td").all_inner_texts()
    assert [int(cell or 0) for cell in cells] == [n for row in metrics["confusion"] for n in row]
    assert page.locator(".sheets img").evaluate_all("images => images.filter(i => i.naturalWidth > 300).length") == 3
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (dark != "rgb(255, 255, 255)") == (name == "dark")


def test_the_report_is_read_by_keyboard(look, trained, lines):
    page = look((trained.path / "report.html").as_uri(), "report-keyboard", "Curves", 0.2)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.closest('.chart') !== null"):
            break
    page.keyboard.press("End")
    last = max(lines)
    assert f"step {last}: total {lines[last]['total']:.3f}" in page.locator(".chart output").first.inner_text()
    page.keyboard.press("ArrowLeft")
    assert f"step {last - 1}: total" in page.locator(".chart output").first.inner_text()


def test_the_report_prints_everything(look, trained, tmp_path):
    page = look((trained.path / "report.html").as_uri(), "report-print", "Curves", 0.2)
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details:not([open])").count() == 0
    page.emulate_media(media="print", color_scheme="dark")
    assert page.locator("nav").is_hidden() and page.evaluate("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    page.pdf(path=tmp_path / "report.pdf", format="A4")
    assert os.path.getsize(tmp_path / "report.pdf") > 50_000


def test_the_report_of_3000_steps_shows_exactly_three(look, three_refused):
    path = report.write(three_refused)
    page = look(path.as_uri(), "report-refused", "What went wrong", 0.2)
    tiles = dict(zip(page.locator(".tiles dt").all_inner_texts(), page.locator(".tiles dd").all_inner_texts()))
    assert tiles["skipped steps"] == "3" and tiles["healthy steps"] == str(STEPS - 3)
    assert page.locator("ol.events li b").all_inner_texts() == [f"step {step}" for step in REFUSED]
    assert page.locator(".chart").first.locator("g.mark").count() == 3
