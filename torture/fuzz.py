"""Command lines, recipes and files that nobody would write: one line and an exit code, always."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import shutil
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from flwr.app import Message, RecordDict
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st

from dpfedls.clipping import Bound
from dpfedls.flower.exchange import Post
from dpfedls.flower.incoming import Limit
from dpfedls.flower.replies import Refused, Request, make_reply, read_update
from torture import folders
from torture.outcome import Outcome
from torture.process import command, forked
from torture.replies import LAYOUT, NODE, NORM, PEOPLE, ROUND, within
from torture.unprivileged import become_nobody
from torture.watched import watch_noise
from torture.wire import WiredGrid

_SECONDS = 60  # after which an example hangs, on a busy machine too
_NUMBERS = (
    st.sampled_from(["0", "1", "-1", "2", "0.5", "1e-320", "1e308", "-1e308", "nan", "inf", "-inf"])
    | st.sampled_from(["0x7fffffff", "99999999999999999999", "1_0", "٣", "''"])
    | st.floats().map(repr)
)
_WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=30)
_KEYS = st.sampled_from(
    [
        *("plan.rounds", "plan.num_clients", "plan.clip_norm", "plan.noise_multiplier"),
        *("plan.delta", "plan.sampler.rate", "plan.sampler.kind", "plan.clipping", "mode", "seed"),
        *("local.epochs", "local.batch_size", "local.learning_rate", "local.steps", "task"),
        *("local.projection", "denoiser.kind", "denoiser.strength", "server_rate", "schedule"),
        *("averaging", "evaluate_every", "calibrate.epsilon", "population", "nodes", "engine"),
    ]
)
_VALUES = _NUMBERS | _WORDS | st.sampled_from(['"x"', "[" * 500, "{}", "[]", "true", "{a=1}", '"'])
_OPTIONS = st.sampled_from(
    [
        *("--epsilon", "--delta", "--clients", "--rate", "--rounds", "--noise-multiplier"),
        *("--clip-norm", "--accountant", "--sampling", "--cohort", "--json", "--case", "--dim"),
        *("--lipschitz", "--strength", "--local-steps", "--cohort-at-most", "--rounds-at-most"),
    ]
)
_CHOICES = st.sampled_from(
    ["poisson", "fixed", "pld", "rdp", "closed-form", "paper", "convex", "non-convex"]
)
_COMMANDS = st.sampled_from(
    [
        *(("privacy", "epsilon"), ("privacy", "noise"), ("privacy", "rounds"), ("theory",)),
        *(("privacy", "verify"), ("privacy", "statement"), ("report",), ("recipes",), ()),
        *(("privacy", "plan"), ("privacy", "total"), ("resume",), ("attack",), ("planner",)),
    ]
)
_TRAIN = ("run", "synthetic", "--set", "plan.rounds=1", "--set", "plan.num_clients=40")
_LONG = (
    "rounds",
    "clients",
    "epochs",
    "steps",
)  # large numbers of these are allowed, and take long
_SPLICES = st.lists(
    st.tuples(st.integers(0, 2**16), st.integers(0, 64), st.binary(max_size=64)),
    min_size=1,
    max_size=4,
)


def fuzz(cases: int, seed: int) -> Outcome:
    """A third recipes and command lines, two thirds decoders, in a process without any rights."""
    shares = {_recipes: 5, _command_lines: 5, _files: 7, _ledgers: 7, _replies: 6}  # of 30
    counts = {trial: max(1, cases * share // 30) for trial, share in shares.items()}
    user = "nobody" if os.geteuid() == 0 else "the user who ran it"
    found = Outcome(
        cases=sum(counts.values()),
        note="a third recipes and command lines, the rest checkpoints, logs, statements, models, "
        f"ledgers and replies in pieces; as {user}",
    )
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        place.chmod(0o755)
        watch_noise(place / "noise")
        forked(folders.started(place / "run", "simulation", 2))
        for path in (place / "run").rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)
        here = place / "here"
        here.mkdir()

        def work() -> None:
            become_nobody(here)
            watch_noise(here / "noise")
            for trial, count in counts.items():
                for problem in dict.fromkeys(trial(count, seed, place / "run")):
                    print(problem)

        answer = forked(work, limit=1800)
        found.violations += answer.out.splitlines()
        if answer.code:
            found.violations.append(f"it ended early: {answer.err[-300:]}")
    return found


def _examples(
    count: int, seed: int, strategy: st.SearchStrategy[Any], attempt: Callable[[Any], str | None]
) -> list[str]:
    """What is wrong with so many examples; each may take some seconds."""
    problems: list[str] = []

    @seeded(seed)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def try_(example: Any) -> None:
        signal.alarm(_SECONDS)
        try:
            problem = attempt(example)
        except BaseException as error:
            problem = f"{type(error).__name__}: {error}"
        finally:
            signal.alarm(0)
        if problem:
            problems.append(" ".join(f"{example!r:.160}: {problem:.300}".split()))

    def too_long(*_: object) -> None:
        raise TimeoutError(f"no answer within {_SECONDS} seconds")

    signal.signal(signal.SIGALRM, too_long)
    try_()
    return problems


def _recipes(count: int, seed: int, run: Path) -> list[str]:
    from dpfedls.errors import InputError
    from dpfedls.runs import recipes

    def attempt(pairs: list[tuple[str, str]]) -> str | None:
        try:
            recipes.read("synthetic", [f"{key}={value}" for key, value in pairs])
        except InputError as error:
            return "more than one line" if "\n" in str(error) else None
        return None

    pairs = st.tuples(_KEYS | _WORDS, _VALUES)
    return _examples(count, seed, st.lists(pairs, min_size=1, max_size=4), attempt)


def _command_lines(count: int, seed: int, run: Path) -> list[str]:
    options = st.tuples(_OPTIONS, _NUMBERS | _CHOICES | _WORDS) | st.tuples(
        _WORDS | st.just(str(run))
    )
    settings = st.tuples(_KEYS.filter(lambda key: not key.endswith(_LONG)), _VALUES)
    train = settings.map(lambda pair: ("--set", "=".join(pair)))
    words = st.tuples(_COMMANDS, st.lists(options, max_size=7))
    words |= st.tuples(st.just(_TRAIN), st.lists(train, min_size=1, max_size=2))

    def attempt(example: tuple[tuple[str, ...], list[tuple[str, ...]]]) -> str | None:
        name, more = example
        shutil.rmtree("runs", ignore_errors=True)
        return _answered([*name, *(word for some in more for word in some)])

    return _examples(count, seed, words, attempt)


def _answered(words: list[str]) -> str | None:
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    code: object = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            command(*words)()
        except SystemExit as end:
            code = end.code
    if code not in (0, 1, 2, 3):
        return f"exit code {code}"
    if code == 2 and words and err.getvalue().count("\n") > 1:
        return f"{err.getvalue()!r} is more than one line"
    return None


def _files(count: int, seed: int, run: Path) -> list[str]:
    """Checkpoint, log, statement, model and recipe of a folder, each with bytes replaced."""
    from dpfedls.errors import InputError
    from dpfedls.runs.checkpoint import Checkpoint
    from dpfedls.runs.folder import read_recipe, read_rounds
    from dpfedls.runs.model_file import trained_vector
    from dpfedls.runs.verify import read_statement

    readers: dict[str, Callable[[Path], object]] = {
        "checkpoint/state.safetensors": Checkpoint.load,
        "rounds.jsonl": read_rounds,
        "privacy.json": read_statement,
        "recipe.toml": read_recipe,
        "model.safetensors": lambda folder: trained_vector(folder / "model.safetensors"),
    }
    place = Path.cwd()
    (place / "checkpoint").mkdir(exist_ok=True)

    def attempt(example: tuple[str, list[tuple[int, int, bytes]]]) -> str | None:
        name, splices = example
        raw = _spliced((run / name).read_bytes(), splices)
        (place / name).write_bytes(raw)
        try:
            readers[name](place)
        except InputError as error:
            return "more than one line" if "\n" in str(error) else None
        return None

    return _examples(count, seed, st.tuples(st.sampled_from(sorted(readers)), _SPLICES), attempt)


def _ledgers(count: int, seed: int, run: Path) -> list[str]:
    from dpfedls.privacy.account import read_ledger

    path, raw = Path.cwd() / "ledger.sqlite", (run / "ledger.sqlite").read_bytes()
    honest = len(read_ledger(run / "ledger.sqlite").entries)

    def attempt(splices: list[tuple[int, int, bytes]]) -> str | None:
        path.write_bytes(_spliced(raw, splices))
        found = read_ledger(path)
        if any("\n" in problem for problem in found.problems):
            return "more than one line"
        if not found.problems and len(found.entries) < honest:
            return f"{len(found.entries)} payments of {honest}, and nothing said"
        return None

    return _examples(count, seed, _SPLICES, attempt)


def _replies(count: int, seed: int, run: Path) -> list[str]:
    """Pieces of a reply with bytes replaced, one of them named twice or missing: never an error."""
    grid = WiredGrid([NODE], lambda message: RecordDict())
    honest = torch.full((LAYOUT.dim,), 0.01, dtype=torch.float64)
    limit, bound = Limit.of_update(LAYOUT), Bound(NORM, 0.0, 0.5)
    logging.disable()

    def attempt(changes: list[tuple[int, list[tuple[int, int, bytes]]]]) -> str | None:
        question = Message(RecordDict(), dst_node_id=NODE, message_type="train")
        question.metadata.__dict__["_message_id"] = "question"
        reply = Message(make_reply(honest, LAYOUT, ROUND), reply_to=question)
        reply.metadata.__dict__["_src_node_id"] = NODE
        pieces = grid.wire.upload(reply)
        for which, splices in changes:
            piece = pieces[which % len(pieces)]
            grid.wire.objects[piece] = _spliced(grid.wire.objects[piece], splices)
        post = Post(limit)
        post.waiting = {"question": NODE}
        for made in post.arrived(grid):
            try:
                total = read_update(made, Request(NODE, ROUND, PEOPLE), LAYOUT, bound)
            except Refused as refused:
                if "\n" in str(refused):
                    return "more than one line"
            else:
                if not within(total, bound):
                    return f"it moves the sum by {float(total.norm()):.4g}"
        grid.wire.objects.clear()
        return None

    change = st.tuples(st.integers(0, 20), _SPLICES)
    return _examples(count, seed, st.lists(change, min_size=1, max_size=3), attempt)


def _spliced(raw: bytes, splices: list[tuple[int, int, bytes]]) -> bytes:
    for at, removed, added in splices:
        at %= len(raw) + 1
        raw = raw[:at] + added + raw[at + removed :]
    return raw
