"""The pages in a real browser; ``make test-browser`` installs one and runs this."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib

import pytest

from dpfedls import PrivacyPlan
from dpfedls.pages.planner import planner_page
from dpfedls.runs import recipes, simulate
from dpfedls.runs.compare import compare

pytestmark = pytest.mark.skipif(
    "DPFEDLS_BROWSER" not in os.environ, reason="make test-browser runs it"
)
SCRIPT = "<script>document.title='owned'</script>"


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Debian's, if it is there; a container's root has no sandbox.
        chromium = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        yield chromium
        chromium.close()


@pytest.fixture
def visit(browser):
    """Open a page; at the end of the test it must have said nothing and asked for nothing."""
    opened = []

    def go(path, fragment="", **options):
        page = browser.new_page(**options)
        troubles = []
        page.on("console", lambda message: troubles.append(message.text))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("request", lambda r: troubles.append(r.url) if r.url[:4] == "http" else None)
        page.goto(f"{path.as_uri()}{fragment}")
        opened.append((page, troubles))
        return page

    yield go
    for page, troubles in opened:
        assert troubles == []
        page.close()


@pytest.fixture(scope="module")
def planner(tmp_path_factory):
    path = tmp_path_factory.mktemp("pages") / "planner.html"
    path.write_bytes(planner_page())
    return path


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """A run whose name is a script, another seed of it, and the two compared."""
    root = tmp_path_factory.mktemp("runs")
    settings = ["plan.num_clients=60", "plan.rounds=5", "plan.noise_multiplier=1.0"]
    name = SCRIPT.replace("/", "∕")  # a slash would be another folder
    for seed in (0, 1):
        recipe = recipes.read("synthetic", [*settings, f"seed={seed}"])
        simulate.start(recipe, root / f"{name}{seed}")
    compare([root / f"{name}0", root / f"{name}1"], root / "page.html")
    return root / f"{name}0" / "report.html", root / "page.html"


def settled(page):
    """Wait until what the sliders started has been computed."""
    page.wait_for_function("document.body.dataset.done === location.hash", timeout=20_000)
    return float(page.locator("#epsilon").get_attribute("data-value"))


def test_sliders_move_the_numbers(visit, planner):
    page = visit(planner)
    before = settled(page)
    shown = {
        name: page.locator(f"#{name}").text_content()
        for name in ("epsilon", "waste", "turns", "work", "noise-average", "known", "people")
    }
    assert page.locator("#recorded tr").count() >= 3
    assert "Examples, not a forecast" in page.locator("#recorded-note").text_content()
    page.locator("#noise-slider").focus()
    for _ in range(30):
        page.keyboard.press("ArrowRight")  # a keyboard is enough
    assert settled(page) < before  # more noise, less ε
    page.locator("#rounds-slider").fill("1000")
    page.locator("#cohort-slider").fill("900")
    page.locator("#clip-slider").fill("900")
    settled(page)
    for name, old in shown.items():
        assert page.locator(f"#{name}").text_content() != old, name
    assert page.locator("#rounds-chart polyline").count() == 1
    assert page.locator("#attack-chart polyline").count() == 2


def test_the_browser_shows_pythons_epsilon(visit, planner):
    for sampling in ("poisson", "fixed"):
        page = visit(planner, f"#sampling={sampling}&clients=975&cohort=195&rounds=100&noise=3.2")
        shown = settled(page)
        kind = {"poisson": {"rate": 0.2}, "fixed": {"cohort": 195}}[sampling]
        plan = recipes.decode(
            {
                "task": "synthetic-logistic",
                "local": {"epochs": 1},
                "plan": {
                    "sampler": {"kind": sampling, **kind},
                    "num_clients": 975,
                    "rounds": 100,
                    "clip_norm": 1.0,
                    "noise_multiplier": 3.2,
                },
            },
            "here",
            [],
        ).plan
        assert isinstance(plan, PrivacyPlan)
        assert shown == pytest.approx(plan.epsilon(), rel=1e-3)


def test_a_link_brings_the_plan_back_and_nonsense_is_put_right(visit, planner):
    page = visit(planner, "#sampling=fixed&clients=2000&cohort=100&rounds=200&noise=1.5&delta=1e-4")
    shown = settled(page)
    again = visit(planner, page.evaluate("location.hash"))
    assert settled(again) == shown
    assert again.locator("#rounds").input_value() == "200"
    wrong = visit(planner, "#clients=50&cohort=1e9&rounds=NaN&noise=-1&delta=<img onerror=x>")
    settled(wrong)
    assert wrong.locator("#clients").input_value() == "100"
    assert wrong.locator("#cohort").input_value() == "100"
    assert wrong.locator("#noise").input_value() == "1.2"
    wrong.locator("#delta").fill("0.009")
    wrong.locator("#delta").press("Tab")
    settled(wrong)
    wrong.locator("#clients").fill("5000")
    wrong.locator("#clients").press("Tab")
    settled(wrong)
    assert "a run refuses it" in wrong.locator("#warning").text_content()


def test_the_exported_recipe_runs_and_costs_what_the_page_says(visit, planner, tmp_path):
    page = visit(planner, "#clients=200&cohort=20&rounds=3&noise=1.1&clip=0.5&delta=0.001")
    shown = settled(page)
    with page.expect_download() as download:
        page.locator("#save-recipe").click()
    download.value.save_as(tmp_path / "plan.toml")
    assert download.value.suggested_filename == "plan.toml"
    text = (tmp_path / "plan.toml").read_text("utf-8")
    assert text == page.locator("#recipe").text_content()
    assert tomllib.loads(text)["plan"]["delta"] == 0.001
    for command in (
        ["run", "plan.toml", "--out", "r", "--json"],
        [*page.locator("#command").text_content().split()[1:], "--json"],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "dpfedls", *command],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        assert json.loads(done.stdout)["epsilon"] == pytest.approx(shown, rel=1e-3)


def test_a_script_in_a_runs_name_stays_text(visit, reports):
    for path in reports:
        page = visit(path)
        assert page.title() != "owned"
        assert page.locator("script").count() == 0
        assert SCRIPT.replace("/", "∕") in page.locator("body").text_content()


def test_reports_fit_every_width_and_keep_their_data(visit, reports, tmp_path):
    for path in reports:
        for width, scheme in ((1280, "light"), (390, "dark")):
            page = visit(path, viewport={"width": width, "height": 900}, color_scheme=scheme)
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            style = "getComputedStyle(document.body)"
            ink, paper = page.evaluate(f"[{style}.color, {style}.backgroundColor]")
            assert (sum(_rgb(paper)) > sum(_rgb(ink))) == (scheme == "light")
        with page.expect_download() as download:
            page.locator("a[download]").click()
        download.value.save_as(tmp_path / "data.csv")
        assert (tmp_path / "data.csv").read_text("utf-8").startswith("run,round,epsilon")


def test_a_keyboard_is_enough_for_a_report(visit, reports):
    page = visit(reports[1])
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.locator("summary").first.press("Enter")
    assert page.locator("details[open] .meaning").count() == 1


def test_the_planner_fits_every_width_and_prints(visit, planner):
    for width in (1280, 390):
        page = visit(planner, viewport={"width": width, "height": 900})
        settled(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert len(page.pdf()) > 10_000


def _rgb(colour):
    return [int(part) for part in colour[4:-1].split(",")]
