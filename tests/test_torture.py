"""The short form of ``make torture``, and that it would see what it looks for."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT))

from torture import folders, invariants, page, places  # noqa: E402
from torture.outcome import Outcome  # noqa: E402
from torture.together import together  # noqa: E402

from dpfedls.runs import recipes  # noqa: E402
from dpfedls.runs import simulate as runs  # noqa: E402

# Kills, damaged folders, failing disks and federations take longest, and have tests of their own:
# tests/runs, tests/flower.
SHORT = ("failpoint", "power", "fuzz", "replies", "soak", "security", "noise", "scale")


@pytest.fixture(scope="module")
def outcomes():
    """One process for all kinds: importing costs more than the cases do."""
    words = [sys.executable, "-m", "torture", *SHORT, "--scale", "0.001", "--json"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("kind", SHORT)
def test_no_violation(outcomes, kind):
    assert outcomes[kind]["cases"] >= 1
    assert outcomes[kind]["violations"] == []


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory):
    place = tmp_path_factory.mktemp("runs")
    for name, rounds in (("short", 1), ("long", 3)):
        runs.start(recipes.read("synthetic", folders.settings("deployed", rounds)), place / name)
    return place


def test_an_unpaid_round_is_seen(two_runs, tmp_path):
    """Else no violation would mean nothing."""
    noise, folder = tmp_path / "noise", shutil.copytree(two_runs / "long", tmp_path / "run")
    assert folders.released(folder) == 3
    assert len(folders.paid(folder)) == 3
    assert invariants.at_any_moment(folder, noise, "deployed") == []
    shutil.copy(two_runs / "short" / "ledger.sqlite", folder)
    (problem,) = invariants.at_any_moment(folder, noise, "deployed")
    assert problem == "round 2 is shown and was never paid for"


def test_noise_before_payment_and_a_key_used_twice_are_seen(two_runs, tmp_path):
    noise = tmp_path / "noise"
    noise.write_text("noise\n" * 4 + "ab\n" * 2)
    problems = invariants.at_any_moment(two_runs / "long", noise, "deployed")
    assert problems == [
        "noise was drawn 4 times for 3 payments",
        "a key of the noise was used twice",
    ]


def test_whoever_is_killed_takes_its_children_along():
    """A killed torture leaves no process behind: here a child that would sleep for ten minutes."""
    code = (
        "import os, signal, time\n"
        "from torture.process import start\n"
        "print(start(lambda: time.sleep(600)), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    # The child holds the other end of the pipe, which is read until all ends are closed.
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, check=False, timeout=60)
    assert done.stdout.strip().isdigit()


def test_folders_of_those_who_are_no_more_are_removed(tmp_path):
    with subprocess.Popen(["true"]) as ended:
        pass
    (tmp_path / f"torture-{ended.pid}").mkdir()
    (tmp_path / f"torture-{os.getppid()}").mkdir()
    assert places.own(tmp_path).is_dir()
    left = {int(path.name.removeprefix("torture-")) for path in tmp_path.iterdir()}
    assert left == {os.getppid(), os.getpid()}


def test_a_kind_that_dies_is_a_violation(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def work(name):
        if name == "dies":
            os._exit(1)
        return Outcome(2, [], "well")

    found = dict(together(["dies", "lives"], work, 2))
    assert found["dies"].violations == ["it died: no outcome was written"]
    assert (found["lives"].cases, found["lives"].violations) == (2, [])


def test_the_page_keeps_the_rows_of_kinds_that_were_not_run(tmp_path):
    path = tmp_path / "page.md"
    path.write_text(f"before\n{page.BEGIN}\n{page.END}\nafter\n")
    page.rewrite(path, {"kill": Outcome(3, [], "a"), "disk": Outcome(4, [], "b")})
    page.rewrite(path, {"disk": Outcome(5, ["broken"], "c")})
    before, *table, after = path.read_text().splitlines()
    assert (before, after) == ("before", "after")
    assert [line.split(" | ")[:3] for line in table if "cores" in line] == [
        ["| kill", "3", "0"],
        ["| disk", "5", "1"],
    ]
