"""Everything under examples/ runs as it stands, and so does the README's Python."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = {  # what each prints, and what must be true of its number
    "data_frame": (r"accuracy ([\d.]+) at", lambda accuracy: accuracy > 0.75),
    "frozen_backbone": (r"accuracy ([\d.]+) at", lambda accuracy: accuracy > 0.9),
    "own_logger": (r"accuracy ([\d.]+) at the end", lambda accuracy: accuracy > 0.9),
    "quickstart": (r"accuracy ([\d.]+) at", lambda accuracy: accuracy > 0.7),
    "regression": (r"'median error': ([\d.]+)", lambda error: error < 0.2),
    "transformer": (r"perplexity ([\d.]+) of 12", lambda perplexity: perplexity < 2),
}


def run(code: list[str], **where) -> str:
    done = subprocess.run([sys.executable, *code], capture_output=True, text=True, **where)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_example_is_known_and_short():
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == set(EXAMPLES)
    for path in (ROOT / "examples").rglob("*.py"):
        assert len(path.read_text("utf-8").splitlines()) <= 40, path


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_run_as_they_stand(name, tmp_path):
    pattern, right = EXAMPLES[name]
    printed = run([str(ROOT / "examples" / f"{name}.py")], cwd=tmp_path)
    assert right(float(re.search(pattern, printed)[1])), printed


def test_an_own_denoiser_in_a_recipe_ends_alike_after_kill_9(tmp_path):
    """Its memory is in the checkpoint: killed twice and resumed, the model has the same bytes."""
    shutil.copytree(ROOT / "examples" / "own_denoiser", tmp_path / "mine")
    recipe = str(tmp_path / "mine" / "recipe.toml")
    command = ["-m", "dpfedls", "run", recipe, "--out"]
    run([*command, "whole"], cwd=tmp_path)
    words, log = [*command, "cut"], tmp_path / "cut" / "rounds.jsonl"
    for after in (5, 14):
        process = subprocess.Popen([sys.executable, *words], cwd=tmp_path)
        while process.poll() is None and not _rounds(log) >= after:
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.wait()
        words = ["-m", "dpfedls", "resume", "cut", "--trust"]
    done = subprocess.run(
        [sys.executable, *words[:-1]], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "if it is yours, say so with --trust" in done.stderr
    run(words, cwd=tmp_path)
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "cut")]
    assert models[0] == models[1]
    assert "kalman.py:Kalman" in (tmp_path / "cut" / "report.html").read_text("utf-8")
    assert "sha256" in (tmp_path / "cut" / "notes.json").read_text("utf-8")


def _rounds(log: Path) -> int:
    return len(log.read_bytes().splitlines()) if log.is_file() else 0


def test_the_readmes_python_runs_as_written(tmp_path):
    text = (ROOT / "README.md").read_text("utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", text, re.S)
    printed = run(["-c", block], cwd=tmp_path)
    assert printed.strip() in text, "README shows what it prints"
    assert (tmp_path / "runs" / "mine" / "report.html").is_file()
    assert len([line for line in block.splitlines() if line.strip()]) < 15
