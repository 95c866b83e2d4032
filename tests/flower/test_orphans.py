"""Kill -9 on the owner of a federation ends all its processes; nobody else's are touched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

from dpfedls.flower.local import Federation
from dpfedls.flower.orphans import marked, new_mark, sweep, sweep_abandoned

SAFETY = 30  # seconds after which a test gives up waiting; nothing is ever measured by it

# As Flower does it: a process that starts another one in a session of its own.
PARTS = ["sh", "-c", "setsid sleep 1000 & sleep 1000"]

FEDERATION = f"""
import pathlib, sys, time
from dpfedls.flower.local import Federation
with Federation(pathlib.Path(sys.argv[1])) as federation:
    federation._spawn("node-0", {PARTS}, "node-0")
    while len(federation.left_behind()) < 3:
        time.sleep(0.05)
    print(federation._mark, federation._watchman.pid, flush=True)
    time.sleep(1000)
"""

PLAIN = f"""
import os, subprocess, time
from dpfedls.flower.orphans import MARK, marked, new_mark, watch_over
mark = new_mark()
watchman = watch_over(mark)
subprocess.Popen({PARTS}, env=os.environ | {{MARK: mark}})
while len(marked(mark)) < 3:
    time.sleep(0.05)
print(mark, watchman.pid, flush=True)
time.sleep(1000)
"""


@contextmanager
def owner(code, place):
    command = [sys.executable, "-c", code, str(place)]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    mark, watchman = running.stdout.readline().split()
    try:
        assert len(marked(mark)) == 3
        yield running, mark, int(watchman)
    finally:
        running.kill()
        running.communicate()
        sweep(mark)


def wait_until(reached):
    end = time.monotonic() + SAFETY
    while not reached():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def test_all_processes_end_with_their_owner(tmp_path):
    with owner(FEDERATION, tmp_path) as (running, mark, _):
        running.send_signal(signal.SIGKILL)
        wait_until(lambda: not marked(mark))


def test_the_next_start_ends_what_a_killed_watchman_left(tmp_path):
    with owner(PLAIN, tmp_path) as (running, mark, watchman):
        sweep_abandoned()  # its owner lives
        assert len(marked(mark)) == 3
        os.kill(watchman, signal.SIGKILL)
        running.send_signal(signal.SIGKILL)
        running.wait()
        assert len(marked(mark)) == 3
        with Federation(tmp_path):
            assert not marked(mark)


def test_a_mark_names_one_process_for_good():
    _, pid, started = new_mark().split("-")
    assert int(pid) == os.getpid()
    assert int(started) > 0
    assert new_mark() != new_mark()
