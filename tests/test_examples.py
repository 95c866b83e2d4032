from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def run(code: list[str]) -> str:
    done = subprocess.run([sys.executable, *code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_examples_run_as_they_stand(path):
    printed = run([str(path)])
    accuracy = float(re.match(r"accuracy ([\d.]+)", printed)[1])
    assert accuracy > 0.5


def test_the_readmes_python_runs_as_written():
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.S)
    assert len(blocks) == 1
    assert "accuracy" in run(["-c", blocks[0]])
    statements = [line for line in blocks[0].splitlines() if line.strip()]
    assert len(statements) < 15
