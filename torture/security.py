"""What an attacker would try first: script, formulas, paths, headers, rights, the network, code."""

from __future__ import annotations

import ast
import csv
import io
import json
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import dpfedls
from torture import folders
from torture.outcome import Outcome
from torture.process import command, forked
from torture.watched import watch_noise

HOSTILE = ("<img src=x onerror=alert(1)>", '"><svg onload=alert(1)>', "<script>alert(1)")
FORMULAS = ("=1+1", "+1", "-1", "@SUM(1)")
_FORBIDDEN = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
_CALLS = {"eval", "exec", "compile", "torch.load", "os.system"}


def security(cases: int, seed: int) -> Outcome:
    """Each once; where few cases are asked for, those that start many processes are left out."""
    found, tried = Outcome(), []
    with tempfile.TemporaryDirectory() as name:
        run = Path(name) / "run"
        watch_noise(Path(name) / "noise")
        forked(folders.started(run, "deployed", 2))
        looks = (_pages, _tables, _rights, _source, _paths, _headers, _network)
        for look in looks if cases > 1 else looks[:4]:
            tried.append((look.__doc__ or "").split(":")[0].lower())
            for case, problem in look(run):
                found.add(case, [problem] if problem else [])
    found.note = ", ".join(tried)
    return found


Looks = Iterator[tuple[str, str | None]]


def _pages(run: Path) -> Looks:
    """Script in names: nothing that a page shows becomes part of the page."""
    for name in HOSTILE:
        folder = shutil.copytree(run, run.parent / name)
        page = run.parent / "page.html"
        answer = forked(command("report", folder, run, "--out", page))
        raw = page.read_text("utf-8") if page.is_file() else ""
        bad = "the name stands in the page as it is" if name in raw else None
        yield f"a run named {name}", bad or "; ".join(answer.problems(0)) or None
        page.unlink(missing_ok=True)


def _tables(run: Path) -> Looks:
    """Formulas in CSV: no cell of text begins as a formula does."""
    from dpfedls.runs.curves import as_csv
    from dpfedls.runs.folder import read_rounds

    for name in FORMULAS:
        rows = list(csv.reader(io.StringIO(as_csv({name: read_rounds(run)}))))
        yield f"a run named {name}", "the cell is a formula" if rows[1][0] == name else None


def _paths(run: Path) -> Looks:
    """Paths in names: nothing is written outside the folder that was named."""
    outside = run.parent / "outside"
    for name in ("../outside", f"{outside}", "../../outside", "a/../../outside", "..", "."):
        setting = f"population={json.dumps(name)}"
        words = ("run", "synthetic", "--set", setting, "--set", "plan.rounds=1")
        answer = forked(command(*words, "--out", run.parent / "inside" / "run"))
        escaped = list(run.parent.glob("outside*"))
        bad = f"{escaped[0]} was written" if escaped else None
        yield f"a population named {name}", bad or "; ".join(answer.problems()) or None
        shutil.rmtree(run.parent / "inside", ignore_errors=True)


def _headers(run: Path) -> Looks:
    """Header bombs: lengths that no file has are not believed."""
    for name in ("model.safetensors", "checkpoint/state.safetensors"):
        for length in (2**63, 2**40, 2**31):
            folder = shutil.copytree(run, run.parent / "bomb")
            (folder / name).write_bytes(length.to_bytes(8, "little") + b"{" * 1000)
            verdict = folders.verified(folder)
            bad = "taken for valid" if verdict.valid else None
            for words in (("resume", folder), ("attack", folder)):
                bad = bad or "; ".join(forked(command(*words)).problems()) or None
            yield f"{name} with a header of {length} bytes", bad
            shutil.rmtree(folder)


def _rights(run: Path) -> Looks:
    """Rights: ledger and keys are for their owner alone."""
    from dpfedls.flower.credentials import write_node_key

    key = run.parent / "node.key"
    write_node_key(key)
    for path in (run / "ledger.sqlite", key):
        mode = stat.S_IMODE(path.stat().st_mode)
        yield f"{path.name}", None if mode == 0o600 else f"mode {mode:o}"


def _network(run: Path) -> Looks:
    """The network: a run asks for no connection, and needs no network to be there."""

    def watched() -> None:
        def hook(event: str, details: tuple[object, ...]) -> None:
            if event in ("socket.connect", "socket.getaddrinfo", "socket.bind"):
                raise RuntimeError(f"{event} {details!r}")

        sys.addaudithook(hook)
        folders.started(run.parent / "watched", "deployed", 2)()

    yield "a run that may not connect", "; ".join(forked(watched).problems(0)) or None
    if shutil.which("unshare") is None:
        return
    able = subprocess.run(["unshare", "-rn", "true"], capture_output=True, check=False)
    if able.returncode == 0:
        words = ["unshare", "-rn", sys.executable, "-m", "dpfedls", "privacy", "verify", str(run)]
        alone = subprocess.run(words, capture_output=True, text=True, check=False)
        yield "verify without a network", alone.stderr[-300:] or None if alone.returncode else None


def _source(run: Path) -> Looks:
    """Source: no pickle, no eval, no shell."""
    package = Path(dpfedls.__file__).parent
    for path in sorted(package.rglob("*.py")):
        bad = [what for node in ast.walk(ast.parse(path.read_bytes())) for what in _runs_code(node)]
        yield str(path.relative_to(package)), f"uses {', '.join(bad)}" if bad else None


def _runs_code(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        names = [getattr(node, "module", None) or "", *(alias.name for alias in node.names)]
        yield from (name for name in names if name.partition(".")[0] in _FORBIDDEN)
    if isinstance(node, ast.Call):
        name = ast.unparse(node.func)
        if name in _CALLS:
            yield name
        for word in node.keywords:
            if word.arg in ("shell", "allow_pickle") and ast.unparse(word.value) == "True":
                yield f"{name} with {word.arg}"
