"""Training curves: loss and accuracy on clients' and validation samples, by smoothing strength."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dpfedls.paper import kept
from dpfedls.paper.cells import Cell, Run, run_cells
from dpfedls.paper.figures.lines import (
    by_round,
    drawn,
    final,
    fluctuation,
    mean,
    of_seeds,
    seeds_of,
)
from dpfedls.paper.item import Item, Options, wanted
from dpfedls.paper.style import (
    band,
    few_rounds,
    grid,
    head,
    legend_below,
    look,
    publish,
    require_matplotlib,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

QUANTITIES = {
    "training_loss": "training loss",
    "validation_loss": "validation loss",
    "training_accuracy": "training, % right",
    "validation_accuracy": "validation, % right",
}


class Row(NamedTuple):
    """One way of sampling: its recipe with settings, and the ε that the paper gives it."""

    sampling: str
    cell: Cell
    published_epsilon: float


class Curves(NamedTuple):
    """One figure."""

    model: str
    rows: tuple[Row, ...]
    strengths: tuple[float, ...]
    paper: str  # what it says about its own curves


_BETTER_LATE = """DP-Fed-LS converges more slowly than DP-Fed{} and generalises better at the later
stage"""

FIGURES = {
    "mnist-curves": Curves(
        "logistic regression",
        (
            Row("uniform", Cell("mnist-logistic-fixed"), 7.0),
            Row("Poisson", Cell("mnist-logistic"), 7.0),
        ),
        (0.0, 1.0, 2.0, 3.0),
        _BETTER_LATE.format(""),
    ),
    "svhn-curves": Curves(
        "CNN",
        (
            Row(
                "uniform",
                Cell(
                    "svhn-cnn",
                    ("plan.sampler={kind='fixed', cohort=100}", "plan.noise_multiplier=1.5"),
                ),
                5.23,
            ),
            Row("Poisson", Cell("svhn-cnn", ("plan.noise_multiplier=1.0",)), 5.07),
        ),
        (0.0, 0.5, 1.0, 1.5),
        _BETTER_LATE.format(", especially under uniform sampling,"),
    ),
    "shakespeare-curves": Curves(
        "LSTM",
        (
            Row(
                "uniform",
                Cell(
                    "shakespeare-lstm",
                    ("plan.sampler={kind='fixed', cohort=195}", "plan.noise_multiplier=1.0"),
                ),
                27.24,
            ),
            Row("Poisson", Cell("shakespeare-lstm", ("plan.noise_multiplier=1.0",)), 14.04),
        ),
        (0.0, 0.5, 1.0, 1.5),
        "curves fluctuate more than on IID data, and those of DP-Fed-LS are smoother",
    ),
}


def mnist(options: Options) -> Item:
    """Item ``mnist-curves``."""
    return make("mnist-curves", options)


def svhn(options: Options) -> Item:
    """Item ``svhn-curves``."""
    return make("svhn-curves", options)


def shakespeare(options: Options) -> Item:
    """Item ``shakespeare-curves``."""
    return make("shakespeare-curves", options)


def make(item: str, options: Options) -> Item:
    """Run every strength with both ways of sampling; draw four quantities of each."""
    require_matplotlib()
    began = time.perf_counter()
    figure = FIGURES[item]
    every = [(row, strength) for row in figure.rows for strength in figure.strengths]
    places = wanted(every, lambda place: (place[0].sampling, f"σ = {place[1]:g}"), options)
    runs = run_cells([_cell(row.cell, strength) for row, strength in places], options)
    made = zip(places, runs, strict=True)
    record = kept.record(
        item,
        options,
        [(_line(*place, own), own) for place, own in made if own],
        labels=("sampling", "strength"),
        by_seed=list(QUANTITIES),
        places=[(row.sampling, strength) for row, strength in every],
    )
    lines = record.lines
    return publish(
        item,
        options,
        title=record.title(f"Training curves: {figure.model} on $data"),
        caption=_caption(lines, figure.paper),
        height=height({"lines": lines}),
        draw=draw,
        data={"lines": lines},
        cells=[_last(line) for line in lines],
        runs=record.runs,
        earlier=record.earlier,
        began=began,
    )


def _line(row: Row, strength: float, runs: list[Run]) -> dict[str, Any]:
    return {
        "sampling": row.sampling,
        "strength": strength,
        "noise_multiplier": runs[0].summary["noise_multiplier"],
        "published_epsilon": row.published_epsilon,
        "epsilon_as_added": runs[0].summary["epsilon"],
        "seeds": seeds_of(runs),
        **by_round(runs, list(QUANTITIES)),
    }


def _cell(base: Cell, strength: float) -> Cell:
    return Cell(base.recipe, (*base.settings, f"denoiser.strength={strength:g}", "diagnose=true"))


def _last(line: dict[str, Any]) -> dict[str, Any]:
    """The line's end: each quantity after the last round, accuracies in per cent."""
    facts = {k: v for k, v in line.items() if k not in ("seeds", "rounds", *QUANTITIES)}
    for quantity in QUANTITIES:
        facts[f"{quantity}_mean"], facts[f"{quantity}_std"] = final(line, quantity)
    return facts


def height(data: dict[str, Any]) -> float:
    """Inches: a row for each way of sampling."""
    return 3.9 if len({line["sampling"] for line in data["lines"]}) > 1 else 2.3


def draw(figure: Figure, data: dict[str, Any]) -> None:
    """A row for each way of sampling, a column for each quantity; insets show the last third."""
    samplings = list(dict.fromkeys(line["sampling"] for line in data["lines"]))
    axes = grid(figure, len(samplings), len(QUANTITIES), sharex=True, sharey="col")
    places = [(sampling, quantity) for sampling in samplings for quantity in QUANTITIES]
    for number, (sampling, quantity) in enumerate(places):
        own = [line for line in data["lines"] if line["sampling"] == sampling]
        head(axes[number], number, QUANTITIES[quantity])
        _lines(axes[number], own, quantity)
    for panel, (sampling, quantity) in zip(axes, places, strict=True):  # once limits are settled
        _inset(panel, [line for line in data["lines"] if line["sampling"] == sampling], quantity)
    for panel, sampling in zip(axes[:: len(QUANTITIES)], samplings, strict=True):
        panel.set_ylabel(f"{sampling} sampling")
    for panel in axes[-len(QUANTITIES) :]:
        panel.set_xlabel("round")
        few_rounds(panel.xaxis)
    legend_below(figure, axes[0], 4)


def _lines(panel: Axes, lines: list[dict[str, Any]], quantity: str) -> None:
    for line in lines:
        looks = {**look(line["strength"]), "linewidth": 1.1}
        band(panel, line["rounds"], drawn(line, quantity), label=_name(line["strength"]), **looks)


def _inset(panel: Axes, lines: list[dict[str, Any]], quantity: str) -> None:
    """The last third from near, above falling losses or below rising accuracies, if it fits."""
    rounds = np.array(lines[0]["rounds"])
    means = np.array([mean(line, quantity) for line in lines])
    low, high = panel.get_ylim()
    heights = (means[:, rounds > rounds[-1] / 4] - low) / (high - low)
    fits = heights.max() < 0.38 if "loss" in quantity else heights.min() > 0.7
    late = rounds >= rounds[-1] * 2 / 3
    if not fits or late.sum() < 2:
        return
    inset = panel.inset_axes((0.5, 0.42 if "loss" in quantity else 0.16, 0.48, 0.5))
    _lines(inset, lines, quantity)
    margin = 0.25 * np.ptp(means[:, late]) + 1e-9
    low, high = means[:, late].min() - margin, means[:, late].max() + margin
    inset.set(xlim=(rounds[late][0], rounds[-1]), ylim=(low, high))
    inset.tick_params(labelsize=6, length=2, pad=1.5)
    inset.locator_params(nbins=3)


def _name(strength: float) -> str:
    return "DP-Fed (σ = 0)" if strength == 0 else f"DP-Fed-LS, σ = {strength:g}"


def _caption(lines: list[dict[str, Any]], paper: str) -> str:
    parts = []
    for sampling in dict.fromkeys(line["sampling"] for line in lines):
        own = [line for line in lines if line["sampling"] == sampling]
        parts.append(_seen(sampling, own))
    return f"""
        Loss and accuracy on the clients' own samples (training) and on validation samples, by
        round: {of_seeds(lines)}. Insets, where there is room: the last third.

        The paper says: {paper}. We see: {" ".join(parts)}
    """


def _seen(sampling: str, lines: list[dict[str, Any]]) -> str:
    """The end of the validation accuracy, and until when plain DP-Fed is ahead."""
    ends = [final(line, "validation_accuracy") for line in lines]
    listed = ", ".join(
        f"{end:.2f}{f' ± {spread:.2f}' if spread else ''} (σ = {line['strength']:g})"
        for line, (end, spread) in zip(lines, ends, strict=True)
    )
    rounds = lines[0]["rounds"]
    first, epsilon = lines[0], lines[0]["epsilon_as_added"]
    tight = "no finite ε" if epsilon is None else f"ε = {epsilon:.2f} by the tight accountant"
    rough = ", ".join(
        f"{fluctuation(line, 'validation_accuracy'):.2f} (σ = {line['strength']:g})"
        for line in lines
    )
    return (
        f"{sampling} sampling (noise multiplier {first['noise_multiplier']:.4g}, published as "
        f"ε = {first['published_epsilon']:g}, {tight}): validation accuracy after "
        f"{rounds[-1]} rounds {listed} %{_lead(lines)}. The fluctuation, the root "
        f"mean square of second differences over {len(rounds)} evaluated rounds, is {rough} points."
    )


def _lead(lines: list[dict[str, Any]]) -> str:
    """Until when plain DP-Fed is ahead, where there is something to be ahead of."""
    plain, smoothed = (
        [mean(x, "validation_accuracy") for x in lines if (x["strength"] > 0) is smooth]
        for smooth in (False, True)
    )
    if not plain or not smoothed:
        return ""
    rounds, ahead = lines[0]["rounds"], np.flatnonzero(plain[0] > np.max(smoothed, axis=0))
    if not len(ahead):
        return "; DP-Fed is in no evaluated round ahead of every smoothed run"
    last = rounds[ahead[-1]]
    when = f"in round {last} for the last time" if last < rounds[-1] else "still at the end"
    return f"; DP-Fed is ahead of every smoothed run {when}"
