"""The arrows that imports may follow: from the command line towards the numbers."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import dpfedls

ROOT = Path(dpfedls.__file__).parent

# From the numbers up to the command line: a part may import its own layer and those above it here.
LAYERS = [
    {"errors", "component", "pages"},
    {"sampling", "parameters", "randomness"},
    {"privacy", "theory"},
    {"gaussian", "clipping"},
    {"denoising", "denoisers", "server", "stepping"},
    {"people", "local_sgd", "metrics", "engine", "simulation", "tasks"},
    {"auto"},
    {"runs", "flower", "adapters"},
    {"auditing", "paper"},
    {"commands"},
]
# Within a layer: who must not know whom.
STRANGERS = {
    "simulation": {"tasks"},
    "tasks": {"privacy", "simulation"},
    "privacy": {"theory"},
    "runs": {"flower"},
    "flower": {"simulation"},
    "auditing": {"paper"},
}


def imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dpfedls"):
            parts = (node.module or "").split(".")
            whole = {alias.name for alias in node.names} - {"__version__"}
            names |= {parts[1]} if len(parts) > 1 else whole
        elif isinstance(node, ast.Import):
            names |= {a.name.split(".")[1] for a in node.names if a.name.startswith("dpfedls.")}
    return names


def test_imports_point_one_way():
    height = {part: k for k, layer in enumerate(LAYERS) for part in layer}
    files = [path for path in ROOT.rglob("*.py") if path.parent != ROOT or path.name[0] != "_"]
    assert len(files) > 100
    for path in files:
        part = path.relative_to(ROOT).parts[0].removesuffix(".py")
        for other in imported(path):
            assert height[other] <= height[part], f"{path.relative_to(ROOT)} imports {other}"
            assert other not in STRANGERS.get(part, ()), f"{path.relative_to(ROOT)} knows {other}"


def test_privacy_imports_no_torch():
    for path in (ROOT / "privacy").rglob("*.py"):
        assert "torch" not in path.read_text(encoding="utf-8"), path


def test_public_names_are_all_there_and_importing_loads_nothing_heavy():
    code = (
        "import sys, dpfedls\n"
        "heavy = {'torch', 'numpy', 'scipy', 'dp_accounting', 'typer', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "for name in dpfedls.__all__: getattr(dpfedls, name)\n"
        "assert set(dir(dpfedls)) >= set(dpfedls.__all__)\n"
        "try: dpfedls.nothing\n"
        "except AttributeError: pass\n"
        "else: raise SystemExit(1)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_core_stays_small_enough_to_read():
    """The files beside __init__.py and what the promise is made of: an afternoon's reading.

    Functions fit a screen, so that lines are not saved where they are needed.
    """
    files = [path for path in ROOT.glob("*.py") if path.name != "__init__.py"]
    files += [ROOT / "privacy" / f"{name}.py" for name in ("plan", "event", "ledger", "statement")]
    assert len(files) > 12
    texts = [path.read_text("utf-8") for path in files]
    assert sum(len(text.splitlines()) for text in texts) <= 1700
    for node in (node for text in texts for node in ast.walk(ast.parse(text))):
        if isinstance(node, ast.FunctionDef) and node.name != "statement":  # which is a table
            assert (node.end_lineno or 0) - node.lineno < 45, node.name
