"""Filters and server optimisers with memory, in the automatic plan and in the paper's.

    python benchmarks/filters.py run                    all cells: runs what is missing
    python benchmarks/filters.py table                  the tables of docs/results/rules.md

All of it is post-processing: every row of a column has the same plan, ε and seeds. What did not
earn its place in the library is written out here. Every run is a line of
docs/results/filters.jsonl: stop it and go on at will.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import replace as changed
from pathlib import Path
from typing import Any, Literal

import beyond_rows
import torch
from msgspec.structs import replace
from torch import Tensor, nn

from dpfedls import AdaptiveSmoothing, Identity, Momentum
from dpfedls.denoisers.chain import chain
from dpfedls.denoising import AnyCallable, Memory
from dpfedls.gaussian import Release
from dpfedls.parameters import Layout, Vector
from dpfedls.randomness import SeededStreams
from dpfedls.runs import recipes
from dpfedls.runs.fitting import ready
from dpfedls.runs.simulate import simulate
from dpfedls.stepping import NoiseRate
from dpfedls.tasks.task import Task, make_task

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "filters.jsonl"


@dataclass(frozen=True)
class Adam:
    """Adam whose second moment is that of the signal: the noise's variance is taken out.

    Directions are scaled so that noise keeps its size, and the server rate its meaning.
    """

    first: float = 0.9
    second: float = 0.99

    def start(self, layout: Layout) -> Memory:
        return {"mean": torch.zeros(layout.dim), "square": torch.zeros(layout.dim)}

    def __call__(self, release: Release, memory: Memory) -> tuple[Vector, Memory]:
        noise = release.noise_stddev**2
        mean = release.value.lerp(memory["mean"], self.first)
        square = (release.value.square() - noise).lerp(memory["square"], self.second)
        signal = square / (1 - self.second ** (release.round + 1))
        # A tenth of the noise: the standard deviation of a second moment over 100 rounds.
        gain = signal.clamp(min=0.1 * noise).rsqrt()
        return mean * gain / gain.square().mean().sqrt(), {"mean": mean, "square": square}


@dataclass(frozen=True)
class LookAhead:
    """DiSK with one gradient: clients start ahead by as much as the filter is behind."""

    gain: float = 0.7

    def start(self, layout: Layout) -> Memory:
        return {"filtered": torch.zeros(layout.dim), "move": torch.zeros(layout.dim)}

    def __call__(self, release: Release, memory: Memory) -> tuple[Vector, Memory]:
        filtered = memory["filtered"].lerp(release.value, self.gain)
        return filtered, {"filtered": filtered, "move": release.step * filtered}

    def ahead(self, params: Vector, memory: Memory) -> Vector:
        return params + (1 - self.gain) / self.gain * memory["move"]


@dataclass(frozen=True)
class Wiener:
    """Shrink the sum of all releases by signal ÷ (signal + noise), group by group.

    Of the noise that this saves half, in logarithms, is spent on a longer step, as in smoothing.
    """

    group: Literal["tensor", "unit", "input", "weight", "frequency"]

    def start(self, layout: Layout) -> Memory:
        return {
            "total": torch.zeros(layout.dim),
            "shrunk": torch.zeros(layout.dim),
            "noise": torch.zeros(()),
        }

    def __call__(self, release: Release, memory: Memory) -> tuple[Vector, Memory]:
        total = memory["total"] + release.step * release.value
        noise = memory["noise"] + (release.step * release.noise_stddev) ** 2
        tensors = release.layout.split(total).values()
        shrunk = torch.cat([self._shrunk(tensor, float(noise)).reshape(-1) for tensor in tensors])
        direction = (shrunk - memory["shrunk"]) / release.step
        return direction, {"total": total, "shrunk": shrunk, "noise": noise}

    def _shrunk(self, tensor: Tensor, noise: float) -> Tensor:
        if tensor.dim() < 2:
            return tensor
        if self.group == "frequency":
            for axis in range(1, tensor.dim()):
                tensor = _by_frequency(tensor, axis, noise)
            return tensor
        axes = {"tensor": tuple(range(tensor.dim())), "unit": tuple(range(1, tensor.dim()))}
        axes |= {"input": (0,)}
        power = tensor.square()
        if self.group != "weight":
            power = power.mean(dim=axes[self.group], keepdim=True)
        return tensor * _gain(power, noise)


def _gain(power: Tensor, noise: float) -> Tensor:
    gain = (1 - noise / power).clamp(min=0)
    return gain * max(float(gain.square().mean()), 0.01) ** -0.25


def _by_frequency(tensor: Tensor, axis: int, noise: float) -> Tensor:
    """The cosine transform along an axis; its power is a mean over rows and near frequencies."""
    size = tensor.shape[axis]
    if size < 8:
        return tensor
    rows = tensor.movedim(axis, -1)
    spectrum = torch.fft.rfft(torch.cat([rows, rows.flip(-1)], dim=-1))
    power = spectrum.abs().square().reshape(-1, size + 1).mean(dim=0) / (2 * size)
    power[0] /= 2
    power[size] = power[size - 1]
    half = min(max(1, math.ceil(64 * size / tensor.numel())), size // 2) // 2
    if half:
        ends = [power[1 : half + 1].flip(0), power, power[-half - 1 : -1].flip(0)]
        power = torch.cat(ends).unfold(0, 2 * half + 1, 1).mean(dim=-1)
    kept = torch.fft.irfft(spectrum * _gain(power, noise), 2 * size)[..., :size]
    return kept.movedim(-1, axis)


FALLING, CONSTANT = {"schedule": "linear"}, {"schedule": "constant"}
PLAIN = Identity()
METHODS: dict[str, tuple[AnyCallable, dict[str, Any]]] = {
    "falling rate": (PLAIN, FALLING),
    "constant rate": (PLAIN, CONSTANT),
    "constant rate, last tenth averaged": (PLAIN, CONSTANT | {"window": 10}),
    "constant rate, last third averaged": (PLAIN, CONSTANT | {"window": 3}),
    "falling rate, last tenth averaged": (PLAIN, FALLING | {"window": 10}),
    "momentum 0.9 (low-pass of first order)": (Momentum(decay=0.9), FALLING),
    "low-pass of second order (0.8 twice)": (
        chain(Momentum(decay=0.8), Momentum(decay=0.8)),
        FALLING,
    ),
    "Adam, noise taken out": (Adam(), FALLING),
    "look-ahead, gain 0.7": (LookAhead(), FALLING),
    "Wiener on the total by tensor": (Wiener("tensor"), FALLING),
    "Wiener by unit": (Wiener("unit"), FALLING),
    "Wiener by input": (Wiener("input"), FALLING),
    "Wiener by weight": (Wiener("weight"), FALLING),
    "Wiener by frequency, no other smoothing": (Wiener("frequency"), FALLING),
}
FACTORS = (0.5, 2.0)  # other server rates than the plan's
TUNED = (
    "falling rate",
    "constant rate, last tenth averaged",
    "momentum 0.9 (low-pass of first order)",
    "Wiener by frequency, no other smoothing",
)


def digits_mlp(num_clients: int, streams: SeededStreams) -> Task:
    """200 people of 7 digits and an MLP."""
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    for weight in model.parameters():
        bound = 1 / math.sqrt(64 if len(weight) == 32 else 32)
        nn.init.uniform_(weight, -bound, bound, generator=generator)
    return changed(make_task("digits-logistic", num_clients, streams), model=model)


@dataclass(frozen=True)
class Cell:
    """A column of a table."""

    task: str
    epsilon: float
    seeds: int
    plan: Literal["automatic", "paper"] = "automatic"
    smoothing: bool = True

    @property
    def title(self) -> str:
        """Above the column."""
        return f"{self.task}, ε {self.epsilon:g}" + ", no smoothing" * (not self.smoothing)


DIGITS, MLP, MNIST, WRITERS = "digits-logistic", "digits-mlp", "mnist-logistic", "mnist-writers"
CELLS = [
    Cell(DIGITS, 0.5, 7),
    Cell(MNIST, 1.0, 3),
    Cell(DIGITS, 1.0, 5),
    Cell(MLP, 0.5, 3),
    Cell(MNIST, 0.5, 3),
    Cell(DIGITS, 4.0, 3),
    Cell(DIGITS, 1.0, 3, "paper", smoothing=False),
    Cell(MNIST, 1.0, 3, "paper", smoothing=False),
    Cell(MLP, 1.0, 3),
    Cell(MNIST, 1.0, 3, smoothing=False),
    Cell(WRITERS, 0.5, 3),
    Cell(WRITERS, 1.0, 3),
    Cell(MLP, 4.0, 3),
    Cell(MNIST, 4.0, 3),
]


@functools.cache
def _recipe(cell: Cell) -> recipes.Recipe:
    known = DIGITS if cell.task == MLP else cell.task
    make: Callable[..., recipes.Recipe] = beyond_rows.automatic
    recipe = make(known, cell.epsilon) if cell.plan == "automatic" else None
    recipe = recipe or beyond_rows.paper(known, cell.epsilon, 0.0)
    if cell.task == MLP:
        recipe = replace(recipe, task=f"{Path(__file__)}:digits_mlp")
    return replace(recipe.resolved(), evaluate_every=10**6)


@functools.lru_cache(maxsize=8)
def _task(name: str, people: int, seed: int) -> Task:
    return make_task(name, people, SeededStreams(seed))


def trained(cell: Cell, method: str, factor: float, seed: int) -> dict[str, Any]:
    """One run, in memory."""
    denoiser, settings = METHODS[method]
    recipe = replace(_recipe(cell), seed=seed)
    task = _task(recipe.task, recipe.plan.num_clients, seed)
    window, schedule = settings.get("window"), settings["schedule"]
    averaging = 1 - window / recipe.plan.rounds if window else 0.0
    chosen = {key: why for key, why in recipe.chosen.items() if key != "schedule"}  # it is given
    recipe = replace(recipe, schedule=schedule, averaging=averaging, chosen=chosen)
    if cell.plan == "automatic":
        recipe = ready(replace(recipe, server_rate="auto"), task)
    rate = recipe.server_rate
    assert not isinstance(rate, str)
    rate = (
        replace(rate, noise=rate.noise * factor) if isinstance(rate, NoiseRate) else rate * factor
    )
    if cell.smoothing and "no other" not in method:
        before = isinstance(denoiser, Wiener)  # of the total; others filter what is smoothed
        pair = (denoiser, AdaptiveSmoothing()) if before else (AdaptiveSmoothing(), denoiser)
        denoiser = chain(*pair)
    start = time.process_time()
    accuracy = simulate(replace(recipe, server_rate=rate), task, denoiser, None).accuracy
    return {"accuracy": accuracy, "seconds": round(time.process_time() - start, 1)}


Key = tuple[str, float, str, bool, str, float, int]


def _key(cell: Cell, method: str, factor: float, seed: int) -> Key:
    return (cell.task, cell.epsilon, cell.plan, cell.smoothing, method, factor, seed)


NAMES = ("task", "epsilon", "plan", "smoothing", "method", "factor", "seed")


def _kept() -> dict[Key, float]:
    lines = RESULTS.read_text("utf-8").splitlines() if RESULTS.is_file() else []
    rows = [json.loads(line) for line in lines]
    return {tuple(row[name] for name in NAMES): row["accuracy"] for row in rows}  # pyright: ignore


def wanted(cell: Cell) -> list[tuple[str, float]]:
    """Methods and factors of the server rate that a column has."""
    rows = [(method, 1.0) for method in METHODS]
    if cell.epsilon == 1.0 and cell.plan == "automatic" and cell.smoothing:
        rows += [(method, factor) for method in TUNED for factor in FACTORS]
    if cell.plan == "paper":
        rows += [(method, factor) for method in ("falling rate",) for factor in (2.0,)]
    return rows


def run() -> None:
    """Whatever is missing."""
    kept = _kept()
    for cell in CELLS:
        for seed in range(cell.seeds):
            for method, factor in wanted(cell):
                key = _key(cell, method, factor, seed)
                if key in kept:
                    continue
                row = dict(zip(NAMES, key, strict=True)) | trained(cell, method, factor, seed)
                with RESULTS.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
        print(cell.title, cell.plan, file=sys.stderr, flush=True)


def table(cells: list[Cell]) -> str:
    """Difference to the falling rate (the first row: its accuracy), mean ± standard error."""
    kept = _kept()
    lines = [f"| | {' | '.join(cell.title for cell in cells)} |", "|---|" + "---|" * len(cells)]
    rows = list(dict.fromkeys(row for cell in cells for row in wanted(cell)))
    rows.sort(key=lambda row: list(METHODS).index(row[0]))
    for method, factor in rows:
        shown = [_shown(kept, cell, method, factor) for cell in cells]
        name = method + (f", rate × {factor:g}" if factor != 1 else "")
        if any(text != "–" for text in shown):
            lines.append(f"| {name} | {' | '.join(shown)} |")
    return "\n".join(lines)


def _shown(kept: dict[Key, float], cell: Cell, method: str, factor: float) -> str:
    base = [kept.get(_key(cell, "falling rate", 1.0, seed)) for seed in range(cell.seeds)]
    found = [kept.get(_key(cell, method, factor, seed)) for seed in range(cell.seeds)]
    pairs = [(100 * f, 100 * b) for f, b in zip(found, base, strict=True) if f and b]
    if not pairs:
        return "–"
    if (method, factor) == ("falling rate", 1.0):
        return f"{statistics.mean(b for _, b in pairs):.2f}"
    apart = [f - b for f, b in pairs]
    error = statistics.stdev(apart) / math.sqrt(len(apart)) if len(apart) > 1 else math.nan
    return f"{statistics.mean(apart):+.2f} ± {error:.2f}"


def main() -> None:
    """Run what is missing, or print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", choices=["run", "table"])
    if parser.parse_args().what == "run":
        run()
    for plan in ("automatic", "paper"):
        begun = {key[:4] for key in _kept() if key[-1] > 0}  # one seed has no error to show
        cells = [cell for cell in CELLS if cell.plan == plan]
        cells = [c for c in cells if (c.task, c.epsilon, c.plan, c.smoothing) in begun]
        if cells:
            print(table(cells), end="\n\n")


if __name__ == "__main__":
    main()
