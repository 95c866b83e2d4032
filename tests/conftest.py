from __future__ import annotations

import os
import sys
from pathlib import Path

# One thread here and in every process that a test starts: pytest runs on both cores already, and
# two threads that wait for each other on a busy core take twice the time.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import hypothesis
import pytest
import torch

from dpfedls.commands import main as cli
from dpfedls.privacy import statement
from dpfedls.tasks import own

# Derandomised: a property test that fails, fails every time and for everyone.
hypothesis.settings.register_profile("dpfedls", deadline=None, derandomize=True, max_examples=60)
hypothesis.settings.load_profile("dpfedls")


# Files that take half a minute or more, those that mostly wait before those that compute. A worker
# takes whole files in this order, then all others, so that none is left alone with a long one.
LONG = (
    "flower/test_federation.py",
    "audit/test_planted_bugs.py",
    "engine/test_compiled.py",
    "test_examples.py",
    "engine/test_ranks.py",
    "engine/test_conformance.py",
    "privacy/test_accountants.py",
    "flower/test_strategy.py",
    "paper/test_figures.py",
    "tasks/test_tasks.py",
    "runs/test_verify.py",
    "flower/test_replies.py",
    "auto/test_train_by_epsilon.py",
    "flower/test_app.py",
    "runs/test_side_by_side.py",
    "runs/test_run.py",
    "audit/test_audit_own.py",
    "audit/test_audited_votes.py",
    "audit/test_audit_command.py",
    "test_torture.py",
    "test_docs.py",
    "test_cli.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first. Coverage is of the core: audit, flower and paper drive whole systems, reach
    no line that the others miss, and would take a third longer with every line counted."""
    places = {Path(__file__).parent / name: place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: places.get(item.path, len(LONG)))
    for item in items:
        if item.path.parent.name in ("audit", "flower", "paper"):
            item.add_marker("no_cover")


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)  # also where the environment says otherwise


@pytest.fixture(autouse=True, scope="session")
def _packages_looked_up_once():
    """Which packages are installed is asked with every recipe and every statement, and takes a
    tenth of the time; it changes only where a test adds a folder to the path."""

    def once(real):
        kept = {}

        def look_up(*words, **named):
            key = (*sys.path, *words, *sorted(named.items()))
            if key not in kept:
                kept[key] = real(*words, **named)
            return kept[key]

        return look_up

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(own, "entry_points", once(own.entry_points))
        patch.setattr(statement, "version", once(statement.version))
        yield


@pytest.fixture
def data_folder() -> Path:
    """Where the real data sets are. Named but absent is a failure, not a reason to skip."""
    name = os.environ.get("DPFEDLS_DATA")
    if not name:
        pytest.skip("DPFEDLS_DATA does not name a folder with the real data sets")
    assert Path(name).is_dir(), f"DPFEDLS_DATA = {name} is not a folder"
    return Path(name)


@pytest.fixture
def dpfedls(capsys, monkeypatch, tmp_path):
    """Call the command line in this process: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["dpfedls", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capsys.readouterr()
        return ended.value.code, captured.out, captured.err

    return call
