"""Files are replaced whole, under names nobody can plant; a failing disk is one line."""

from __future__ import annotations

import os
import resource
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager

import pytest

from dpfedls import InputError
from dpfedls.privacy.durable import alone_in, append, is_temporary, write_whole
from dpfedls.privacy.hash_chain import open_to_write
from dpfedls.runs import recipes
from dpfedls.runs import simulate as runs
from dpfedls.runs.folder import RunFolder
from dpfedls.runs.verify import verify

SMALL = ["plan.num_clients=60", "plan.rounds=3", "plan.noise_multiplier=1.0"]


def test_only_regular_files_are_replaced(tmp_path):
    """``report --out /dev/null`` put a file in the place of the device."""
    kept = tmp_path / "kept"
    kept.write_bytes(b"kept")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(kept)
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    before = {path.name: path.lstat() for path in tmp_path.iterdir()}
    for name in ("pipe", "link", "dangling", ""):
        with pytest.raises(InputError, match="nothing was touched"):
            write_whole(tmp_path / name, b"new")
    assert {path.name: path.lstat() for path in tmp_path.iterdir()} == before
    assert kept.read_bytes() == b"kept"


def test_a_planted_link_is_not_followed(tmp_path):
    """Under the name that the temporary file used to have, and under that of a log."""
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    (tmp_path / "report.html.part").symlink_to(victim)
    (tmp_path / "rounds.jsonl").symlink_to(victim)
    write_whole(tmp_path / "report.html", b"page")
    with pytest.raises(OSError, match="symbolic links"):
        append(tmp_path / "rounds.jsonl", b"line")
    assert victim.read_bytes() == b"mine"
    assert (tmp_path / "report.html").read_bytes() == b"page"


def test_nothing_is_left_behind(tmp_path):
    path = tmp_path / "file"
    for content in (b"old", b"new"):
        write_whole(path, content)
    with small_files(2), pytest.raises(OSError, match=str(path)):
        write_whole(path, b"longer")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert path.read_bytes() == b"new"
    assert is_temporary(tmp_path / f".file.{'a' * 16}.part")
    assert not is_temporary(path)
    assert not is_temporary(tmp_path / "mine.part")


def test_of_two_runs_that_begin_at_once_in_a_folder_one_is_refused(tmp_path):
    """One found the folder free, waits for the other, and must look again before it writes."""
    folder = tmp_path / "run"
    folder.mkdir()
    first, second = (recipes.read("synthetic", [*SMALL, f"seed={seed}"]) for seed in (1, 2))
    with ThreadPoolExecutor(1) as thread:
        with alone_in(folder):
            late = thread.submit(RunFolder, folder, second)
            wait([late], timeout=0.3)
            assert not late.done()
            write_whole(folder / "recipe.toml", recipes.encode(first).encode())
        with pytest.raises(InputError, match="holds the run of another recipe"):
            late.result(timeout=60)
    assert recipes.read(str(folder / "recipe.toml")) == first
    assert not (folder / "ledger.sqlite").exists()


def test_a_ledger_is_for_its_owner_alone(tmp_path):
    runs.start(recipes.read("synthetic", SMALL), tmp_path / "run")
    assert stat.S_IMODE((tmp_path / "run" / "ledger.sqlite").stat().st_mode) == 0o600
    write_whole(tmp_path / "secret", b"", 0o600)
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600


@contextmanager
def small_files(most):
    """The kernel refuses to let any file grow beyond ``most`` bytes."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


@pytest.mark.parametrize("most", [100, 3000, 12_000, 40_000])
def test_a_disk_that_fails_anywhere_names_the_file_and_the_run_goes_on(most, tmp_path):
    folder, recipe = tmp_path / "run", recipes.read("synthetic", SMALL)
    with small_files(most), pytest.raises(OSError, match=r"too large|Input/output") as error:
        runs.start(recipe, folder)
    assert str(error.value.filename).startswith(str(folder))
    runs.resume(folder) if (folder / "recipe.toml").exists() else runs.start(recipe, folder)
    assert verify(folder)["valid"], verify(folder)["problems"]


def test_a_file_that_cannot_be_made_beside_a_ledger_is_a_failing_disk_and_no_damage(tmp_path):
    (tmp_path / "ledger.sqlite-journal").mkdir()
    with pytest.raises(OSError, match=r"Input/output error.*ledger\.sqlite"):
        open_to_write(tmp_path / "ledger.sqlite", wait=0, alone=True)


def test_the_command_says_it_in_one_line(tmp_path):
    settings = [part for setting in SMALL for part in ("--set", setting)]
    code = (
        "import resource\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (12000, resource.RLIM_INFINITY))\n"
        "from dpfedls.commands.main import main\n"
        "main()\n"
    )
    command = [sys.executable, "-c", code, "run", "synthetic", *settings]
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "run")], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert not done.stdout
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert f"{tmp_path / 'run' / 'ledger.sqlite'}: Input/output error; " in lines[0]
    assert "bytes are free there" in lines[0]


def test_an_answer_that_cannot_be_written_is_said_too():
    command = [sys.executable, "-m", "dpfedls", "recipes"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr == (
        "dpfedls: standard output: No space left on device; the answer could not be written\n"
    )
