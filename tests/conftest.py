from __future__ import annotations

import os
import sys
from pathlib import Path

import hypothesis
import pytest
import torch

from dpfedls.commands import main as cli

# Derandomised: a property test that fails, fails every time and for everyone.
hypothesis.settings.register_profile("dpfedls", deadline=None, derandomize=True, max_examples=60)
hypothesis.settings.load_profile("dpfedls")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Coverage is of the core. These drive whole systems, reach no line that the others miss, and
    would take a third longer with every line counted."""
    for item in items:
        if item.path.parent.name in ("audit", "flower", "paper"):
            item.add_marker("no_cover")


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)  # pytest runs on both cores already


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
