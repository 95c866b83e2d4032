"""The arrows that imports may follow: from the command line towards the numbers."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import dpfedls

ROOT = Path(dpfedls.__file__).parent

# Each part may import itself and the parts named; everything may import errors and component.
ALLOWED = {
    "cli": {"commands"},
    "commands": {
        *("experiments", "privacy", "sampling", "audit", "theory", "flower", "reproduce"),
        *("workers",),
    },
    "experiments": {
        *("simulation", "server", "tasks", "privacy", "denoising", "local_update", "randomness"),
        *("evaluation", "parameters", "sampling", "clients", "workers"),
    },
    "flower": {
        *("experiments", "server", "tasks", "privacy", "local_update", "randomness", "fastest"),
        *("evaluation", "parameters", "sampling", "clients", "clipping", "modules"),
    },
    "audit": {
        *("experiments", "simulation", "server", "tasks", "privacy", "denoising", "local_update"),
        *("randomness", "parameters", "sampling", "clients", "clipping", "gaussian", "modules"),
    },
    "reproduce": {
        *("experiments", "simulation", "server", "tasks", "privacy", "denoising", "local_update"),
        *("randomness", "evaluation", "parameters", "sampling", "clients", "theory"),
    },
    "simulation": {
        *("clients", "clipping", "denoising", "evaluation", "fastest", "local_update", "modules"),
        *("parameters", "privacy", "randomness", "sampling", "server", "threads", "workers"),
    },
    "fastest": {"clients", "compiled", "local_update", "parameters", "threads"},
    "compiled": {
        *("chains", "clients", "jit", "local_update", "parameters", "recurrence", "sampling"),
        *("threads",),
    },
    "jit": set(),
    "workers": {"parameters", "sampling"},
    "server": {"denoising", "gaussian", "parameters", "privacy", "randomness"},
    "denoising": {"gaussian", "parameters"},
    "gaussian": {"parameters", "privacy", "randomness"},
    "evaluation": {"clients", "local_update"},
    "local_update": {
        *("batching", "chains", "clients", "kernels", "parameters", "randomness", "sampling"),
        *("threads",),
    },
    "chains": {"batching", "parameters"},
    "batching": {"kernels", "recurrence"},
    "recurrence": {"kernels"},
    "kernels": set(),
    "modules": {"clients"},
    "clipping": {"parameters"},
    "tasks": {"clients", "denoising", "jit", "randomness", "recurrence", "threads"},
    "privacy": {"sampling"},
    "theory": set(),
    "clients": set(),
    "parameters": set(),
    "randomness": set(),
    "sampling": set(),
    "threads": set(),
    "component": set(),
    "errors": set(),
    "__main__": {"cli"},
    "__init__": {
        "clients",
        "denoising",
        "errors",
        "gaussian",
        "local_update",
        "modules",
        "privacy",
        "sampling",
        "simulation",
        "theory",
    },
}


def imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dpfedls"):
            parts = (node.module or "").split(".")
            names |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {a.name.split(".")[1] for a in node.names if a.name.startswith("dpfedls.")}
    return names


def test_imports_follow_the_arrows():
    files = list(ROOT.rglob("*.py"))
    assert len(files) > 30
    for path in files:
        part = path.relative_to(ROOT).parts[0].removesuffix(".py")
        extra = imported(path) - ALLOWED[part] - {part, "errors", "component"}
        assert not extra, f"{path.relative_to(ROOT)} imports {sorted(extra)} against the arrows"


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
