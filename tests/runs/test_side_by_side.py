"""Runs in processes of their own: the same answers, told failures, nothing left behind."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from dpfedls import InputError
from dpfedls.runs.side_by_side import Job, ProcessLost, SideBySide

SAFETY = 60  # seconds after which a test gives up waiting; nothing is ever measured by it


@dataclass(frozen=True)
class Act(Job):
    """A job that trains nothing, so that its process need not load torch."""

    what: str
    folder: Path


class Odd(Exception):
    """Cannot be made again from its arguments, as pickle does it; nor known everywhere."""

    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


def act(job, watch):
    watch(os.getpid())
    if job.what == "refuse":
        raise InputError("a wrong setting")
    if job.what == "break":
        raise Odd("this", "that")
    if job.what == "full":
        raise OSError(errno.ENOSPC, "no space", "somewhere")
    if job.what == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if job.what == "sleep":
        time.sleep(1000)
    if job.what == "meet":  # ends only if another job runs at the same time
        job.folder.mkdir(exist_ok=True)
        (job.folder / job.name).touch()
        wait_until(lambda: len(list(job.folder.glob("*-meet"))) == 2)
    return os.getpid()


def acts(folder, *what):
    recipe = SimpleNamespace(device="elsewhere")
    return [Act(f"{k}-{name}", recipe, name, folder) for k, name in enumerate(what)]


def wait_until(reached):
    end = time.monotonic() + SAFETY
    while not reached():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def is_gone(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


def test_jobs_meet_and_those_that_fail_do_not_stop_the_others(tmp_path):
    seen = {}
    jobs = acts(tmp_path, "meet", "meet", "refuse", "die", "break", "full", "answer", "answer")

    def watch(job, pid):
        seen[job.name] = pid

    with SideBySide(2) as runs:
        found = {job.name: outcome for job, outcome in runs.outcomes(act, jobs, watch)}
        # Two meet again: there is another process in place of the one that died.
        more = acts(tmp_path / "more", "meet", "meet")
        again = {outcome for _, outcome in runs.outcomes(act, more, lambda *_: None)}
    assert seen.keys() == {job.name for job in jobs}
    assert os.getpid() not in seen.values()
    assert (type(found["2-refuse"]), str(found["2-refuse"])) == (InputError, "a wrong setting")
    assert isinstance(found["3-die"], ProcessLost)
    assert "killed by signal 9; if memory ran out, use fewer --jobs" in str(found["3-die"])
    assert repr(found["4-break"]) == "RuntimeError('Odd: this and that')"
    assert "in act\n" in found["4-break"].__notes__[0]  # where it was raised
    full = found["5-full"]
    assert (type(full), full.errno, full.filename) == (OSError, errno.ENOSPC, "somewhere")
    assert [found[name] == seen[name] for name in ("0-meet", "1-meet", "6-answer")] == [True] * 3
    pids = set(seen.values())
    assert again & pids  # the other one is used again
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids | again)


@pytest.mark.parametrize("jobs", [None, 1])
def test_one_at_a_time_is_in_this_process(tmp_path, jobs):
    with SideBySide(jobs) as runs:
        jobs = acts(tmp_path, "answer", "break")
        found = [outcome for _, outcome in runs.outcomes(act, jobs, lambda *_: None)]
    assert found[0] == os.getpid()
    assert isinstance(found[1], Odd)


def test_what_cannot_be_sent_is_refused_in_one_line(tmp_path):
    jobs = acts(tmp_path, "answer", "answer")
    with (
        SideBySide(2) as runs,
        pytest.raises(InputError, match=r"0-answer cannot be sent to .* leave --jobs out") as said,
    ):
        list(runs.outcomes(lambda job, watch: None, jobs, print))
    assert "\n" not in str(said.value)


def test_no_process_outlives_the_one_that_started_it(tmp_path):
    """Not even where that one is killed, and can do nothing about it."""
    code = (
        "import sys, pathlib; from test_side_by_side import *\n"
        "if __name__ == '__main__':\n"
        "    with SideBySide(2) as runs:\n"
        "        jobs = acts(pathlib.Path(), 'sleep', 'sleep')\n"
        "        list(runs.outcomes(act, jobs, lambda job, _: print(job.name, flush=True)))\n"
    )
    script = tmp_path / "script.py"
    script.write_text(code)
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    owner = subprocess.Popen(
        [sys.executable, script],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": path},
        start_new_session=True,
    )
    try:
        assert owner.stdout is not None
        began = sorted(owner.stdout.readline() for _ in range(2))
        assert began == [b"0-sleep\n", b"1-sleep\n"]
        owner.kill()
        owner.wait()
        wait_until(lambda: is_gone(owner.pid))
    finally:
        if not is_gone(owner.pid):
            os.killpg(owner.pid, signal.SIGKILL)


OWN_TASK = """
import os
import time
from pathlib import Path
import torch
import dpfedls
from dpfedls.tasks.synthetic import make as synthetic

calls = 0  # the first one is before the first round

def threads(outputs, targets):
    global calls
    calls += 1
    while calls > 3 and Path(__file__).with_name("hold").exists():
        Path(__file__).with_name(f"held-{os.getpid()}").touch()
        time.sleep(0.02)
    return torch.full(targets.shape, float(torch.get_num_threads()))

def make(num_clients, streams):
    task = synthetic(num_clients, streams)
    metrics = {"accuracy": dpfedls.metrics.accuracy, "threads": threads}
    return dpfedls.Task(task.data, task.model, task.test, task.validation, metrics=metrics)
"""
SETTINGS = ["task=./mine.py:make", "plan.num_clients=20", "plan.rounds=4", "engine=looped"]
SMALL = [word for setting in SETTINGS for word in ("--set", setting)]


@pytest.fixture
def own_task(tmp_path):
    (tmp_path / "mine.py").write_text(OWN_TASK)


def test_tune_with_several_jobs_gives_the_same_digits(dpfedls, own_task):
    call = ["tune", "synthetic", *SMALL, "--seeds", 2, "--grid", "server_rate=1e39,0.5,1", "--json"]
    answers = {jobs: dpfedls(*call, "--jobs", jobs) for jobs in (1, 2)}
    code, out, err = answers[2]
    assert code == 0, err
    assert out == answers[1][1]
    bad, *good = json.loads(out)["trials"]
    assert "seed 0: the model of round 1 is not finite" in bad["failed"][0]
    assert [trial["metrics"]["threads"]["mean"] for trial in good] == [1, 1]


def test_ctrl_c_ends_a_sweep_with_all_its_processes_and_nothing_is_lost(
    dpfedls, own_task, tmp_path, caplog
):
    grid = ["--grid", "plan.clip_norm=0.3,0.6", "--seeds", "1", "--out", "s", "--jobs", "2"]
    call = ["sweep", "synthetic", *SMALL, "--set", "evaluate_every=1", *grid]
    (tmp_path / "hold").touch()
    # What a job in the background started would ignore Ctrl-C, as its shell told it to.
    listen = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    main = listen + "import runpy; runpy.run_module('dpfedls', run_name='__main__')"
    command = [sys.executable, "-c", main, *call]
    running = subprocess.Popen(
        command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True
    )

    def logs():
        return [log.read_text().splitlines()[:2] for log in tmp_path.glob("s/*/rounds.jsonl")]

    try:
        # Both evaluate their third round: one that still trains it would be paid for and not kept.
        reached = lambda: len(list(tmp_path.glob("held-*"))) == 2  # noqa: E731
        wait_until(lambda: reached() or running.poll() is not None)
        before = logs()
        assert [len(lines) for lines in before] == [2, 2]
        os.killpg(running.pid, signal.SIGINT)  # as a terminal does
        _, err = running.communicate(timeout=SAFETY)
        assert running.returncode == 1
        assert err.endswith("dpfedls: stopped; the same command goes on from here\n")
        assert "Traceback" not in err
        wait_until(lambda: is_gone(running.pid))
    finally:
        if not is_gone(running.pid):
            os.killpg(running.pid, signal.SIGKILL)
    (tmp_path / "hold").unlink()
    code, _, err = dpfedls(*call[:-2])
    assert code == 0, err
    assert logs() == before  # with the seconds each round took: none was made again
    assert "lost" not in caplog.text
