"""What an attacker would try first: script, formulas, paths, headers, rights, the network, code."""

from __future__ import annotations

import ast
import csv
import io
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from html import escape
from pathlib import Path

import torch

import dpfedls
from dpfedls.errors import InputError
from torture import folders
from torture.outcome import Outcome
from torture.process import command, forked, limit_memory
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
        cheap = (_tables, _rights, _source, _pinned)
        dear = (_strings, _pages, _paths, _headers, _pictures, _own_code, _network)
        for look in (*cheap, *dear) if cases > 1 else cheap:
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


def _strings(run: Path) -> Looks:
    """Script in texts: metrics, classes, losses, whose samples, what a note says."""
    for number, text in enumerate(HOSTILE):
        folder = run.parent / f"texts-{number}"
        answer = forked(lambda text=text, folder=folder: _trained_with(text, folder))
        raw = (folder / "report.html").read_text("utf-8") if not answer.code else ""
        bad = "it stands in the report as it is" if text in raw else None
        shown = (
            None if escape(text) in raw or escape(text, quote=False) in raw else "it is not shown"
        )
        yield f"texts that say {text}", "; ".join(answer.problems(0)) or bad or shown


def _trained_with(text: str, folder: Path) -> None:
    """A run every name of which is the text."""
    model = type(text, (torch.nn.Linear,), {})(4, 3)
    samples = [(torch.randn(3, 4), torch.randint(3, (3,))) for _ in range(20)]
    dpfedls.train(
        model=model,
        clients=samples,
        plan=dpfedls.PrivacyPlan(
            sampler=dpfedls.PoissonSampling(rate=0.5),
            num_clients=20,
            rounds=1,
            clip_norm=0.5,
            noise_multiplier=1.0,
            delta=0.01,
        ),
        metrics={text: lambda outputs, targets: 0.5},
        test=samples[0],
        test_from=text,
        folder=folder,
    )


def _pictures(run: Path) -> Looks:
    """Picture bombs: no memory is taken for what a header claims."""
    from dpfedls.tasks.svhn_images import _decode

    for width, height in ((2**14 - 1, 2**14 - 1), (2**24, 255), (1, 2**24)):
        path = run.parent / "sheet.webp"
        size = b"".join((side - 1).to_bytes(3, "little") for side in (width, height))
        chunk = b"VP8X" + (10).to_bytes(4, "little") + bytes(4) + size
        path.write_bytes(b"RIFF" + (4 + len(chunk)).to_bytes(4, "little") + b"WEBP" + chunk)

        def work(path=path) -> None:
            limit_memory(2**29)
            try:
                _decode(path)
            except InputError as error:
                print(f"dpfedls: {error}", file=sys.stderr)
                sys.exit(2)

        problems = forked(work).problems(2)
        yield f"a picture of {width} × {height} in {path.stat().st_size} bytes", "; ".join(problems)


def _own_code(run: Path) -> Looks:
    """Code named by a folder: it is run only with --trust."""
    folder, ran = shutil.copytree(run, run.parent / "sent"), run.parent / "ran"
    evil = folder / "evil.py"
    evil.write_text(f"open({str(ran)!r}, 'w')\ndef make(*a): raise SystemExit(9)\n", "utf-8")
    recipe = (folder / "recipe.toml").read_text("utf-8")
    places = [f"{evil}:make", "./evil.py:make", "evil:make"]
    for place in places:
        text = re.sub(r'(?m)^task = ".*"$', f'task = "{place}"', recipe)
        (folder / "recipe.toml").write_text(text, "utf-8")
        for words in (
            ("resume", folder),
            ("attack", folder),
            ("audit", folder),
            ("report", folder),
        ):

            def work(words=words) -> None:
                os.chdir(folder)
                sys.path.insert(0, str(folder))
                command(*words)()

            answer = forked(work)
            bad = "the code was run" if ran.is_file() else None
            yield f"{words[0]} of a folder that names {place}", bad or "; ".join(answer.problems())
            ran.unlink(missing_ok=True)


def _pinned(run: Path) -> Looks:
    """Dependencies: each by its version and by the hashes of its files."""
    text = Path(__file__).parents[1].joinpath("requirements.lock").read_text("utf-8")
    for entry in re.split(r"\n(?=\w)", text)[1:]:
        name = entry.split(" ")[0]
        exact = "==" in name and "--hash=sha256:" in entry
        yield f"the dependency {name}", None if exact else "it is not pinned by hash"


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
        words = ["unshare", "-rn", sys.executable, "-m", "dpfedls", "run", "synthetic", "--set"]
        words += ["plan.rounds=1", "--out", str(run.parent / "alone")]
        alone = subprocess.run(words, capture_output=True, text=True, check=False)
        yield "a run without a network", alone.stderr[-300:] if alone.returncode else None


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
