"""The spectrum of the aggregated update without privacy, and the power law that fits it."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from dpfedls.paper.cells import Cell, resolve
from dpfedls.paper.data import describe
from dpfedls.paper.item import Item, Options
from dpfedls.paper.style import (
    GREY,
    colour,
    grid,
    head,
    legend_below,
    publish,
    require_matplotlib,
    signed,
)
from dpfedls.randomness import SeededStreams
from dpfedls.runs.recipe import Recipe, built
from dpfedls.runs.simulate import prepare
from dpfedls.tasks.task import make_task
from dpfedls.theory import effective_dimension, risk

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BINS_A_DECADE = 6  # of frequency
# Federated averaging: neither noise nor clipping nor smoothing.
PLAIN = ("plan.noise_multiplier=0", "plan.clip_norm=inf", "denoiser={kind='identity'}")


def make(options: Options) -> Item:
    """Item ``fourier``: the CNN of Section 6.2, first convolution and first full layer."""
    tensors = {"conv1.weight": 4, "fc1.weight": 2}
    cell = Cell("svhn-cnn", PLAIN)
    return _make("fourier", cell, tensors, (1 / 4, 1 / 2, 1), "", options)


def mnist(options: Options) -> Item:
    """Item ``fourier-mnist``: the same for logistic regression, which takes a minute on a CPU."""
    cell = Cell("mnist-logistic", PLAIN)
    remark = """It is no pure power law: the humps are the rows of the images, whose pixels repeat
        every 28 weights, at multiples of 280."""
    return _make("fourier-mnist", cell, {"weight": 2}, (1 / 3, 2 / 3, 1), remark, options)


def _make(
    item: str,
    cell: Cell,
    axes: dict[str, int],  # of each tensor: the model's first one with so many
    shares: tuple[float, ...],  # of all rounds, after the first one
    remark: str,
    options: Options,
) -> Item:
    require_matplotlib()
    began = time.perf_counter()
    options = replace(options, seeds=1)
    recipe = resolve(cell, 0, options).resolved()
    total = recipe.plan.rounds
    rounds = sorted({1, *(max(1, round(share * total)) for share in shares)})
    panels = []
    for at, update in updates(recipe, rounds, options).items():
        for name, count in axes.items():
            tensor = next(t for t in update.values() if t.dim() == count)
            panels.append({"tensor": name, "round": at, **spectrum(tensor)})
    panels.sort(key=lambda panel: (list(axes).index(panel["tensor"]), panel["round"]))
    data_name = describe(recipe.task, recipe.plan.num_clients)
    return publish(
        item,
        options,
        title=f"Fourier magnitudes of the aggregated update, no privacy: {data_name}",
        caption=_caption(panels, remark),
        height=height({"panels": panels}),
        draw=draw,
        data={"task": recipe.task, "panels": panels},
        cells=[
            {k: panel[k] for k in ("tensor", "round", "size", "slope", "slope_of_all", "lost")}
            for panel in panels
        ],
        began=began,
    )


def updates(recipe: Recipe, rounds: list[int], options: Options) -> dict[int, dict[str, Any]]:
    """Train; what the server added to each tensor in the rounds asked for."""
    streams = SeededStreams(recipe.seed)
    task = make_task(recipe.task, recipe.plan.num_clients, streams)
    simulation, model = prepare(recipe, task, built(recipe.denoiser))
    server = simulation.server
    before = server.start(server.layout.read(model))
    kept = {}
    for after in simulation.run(before):
        if after.round in rounds:
            kept[after.round] = server.layout.split((after.params - before.params).cpu())
        options.say(f"round {after.round} of {recipe.plan.rounds}")
        before = after
    return kept


def spectrum(tensor: torch.Tensor) -> dict[str, Any]:
    """Magnitudes of the flattened tensor's Fourier coefficients, in bins, with a power law.

    The constant is left out. The law is fitted to the upper half of the range of log frequency,
    to the root mean squares of bins that are equally wide there, every bin alike: so each decade
    counts the same, although the last holds nine tenths of all frequencies, and a coefficient that
    is zero by symmetry does no harm. The slope over the whole range is given too: they differ.
    """
    if tensor.dim() == 4:  # kernels lie along the ring as in the paper's tables: BCWH
        tensor = tensor.transpose(2, 3)
    ring = tensor.reshape(-1).double().numpy()
    magnitude = np.abs(np.fft.rfft(ring))[1:]
    frequency = np.arange(1, len(magnitude) + 1)
    which = np.floor(BINS_A_DECADE * np.log10(frequency)).astype(int)
    bins = [np.flatnonzero(which == k) for k in np.unique(which)]
    centres = np.array([np.exp(np.log(frequency[own]).mean()) for own in bins])
    typical = np.array([np.sqrt(np.square(magnitude[own]).mean()) for own in bins])
    upper = centres >= np.sqrt(len(magnitude))
    slope, intercept = np.polyfit(np.log10(centres[upper]), np.log10(typical[upper]), 1)
    whole = np.polyfit(np.log10(centres), np.log10(typical), 1)[0]
    low, high = (np.array([np.quantile(magnitude[own], q) for own in bins]) for q in (0.1, 0.9))
    return {
        "size": ring.size,
        "lost": risk(ring, 0.0, 1.0).bias / float(ring @ ring),  # to smoothing, of the square norm
        "frequency": centres.tolist(),
        "typical": typical.tolist(),
        "low": low.tolist(),
        "high": high.tolist(),
        "largest": [float(magnitude[own].max()) for own in bins],
        "slope": float(slope),
        "slope_of_all": float(whole),
        "intercept": float(intercept),
    }


def height(data: dict[str, Any]) -> float:
    """Inches: a row for each tensor."""
    return 0.9 + 1.7 * len({panel["tensor"] for panel in data["panels"]})


def draw(figure: Figure, data: dict[str, Any]) -> None:
    """A row for each tensor, a column for each round."""
    panels = data["panels"]
    tensors = list(dict.fromkeys(panel["tensor"] for panel in panels))
    columns = len(panels) // len(tensors)
    axes = grid(figure, len(tensors), columns, sharex="row", sharey="row")
    for number, (place, panel) in enumerate(zip(axes, panels, strict=True)):
        frequency = np.array(panel["frequency"])
        look = {"color": colour(1), "alpha": 0.25, "linewidth": 0}
        place.fill_between(
            frequency, panel["low"], panel["high"], label="80 % of the magnitudes", **look
        )
        place.plot(frequency, panel["typical"], color=colour(1), label="root mean square")
        place.plot(frequency, panel["largest"], color=GREY, linewidth=0.8, label="largest")
        upper = frequency[frequency >= np.sqrt(panel["size"] // 2)]
        law = 10 ** panel["intercept"] * upper ** panel["slope"]
        place.plot(upper, law, color=colour(2), linestyle="--", label="fitted power law")
        slope = f"slope {signed(panel['slope'])}"
        place.annotate(slope, (0.05, 0.06), xycoords="axes fraction", color=colour(2))
        place.set(xscale="log", yscale="log")
        head(place, number, f"{panel['tensor']}, t = {panel['round']}")
    for place in axes[::columns]:
        place.set_ylabel("magnitude")
    for place in axes[-columns:]:
        place.set_xlabel("frequency")
    legend_below(figure, axes[0], 4)


def _caption(panels: list[dict[str, Any]], remark: str) -> str:
    tensors = dict.fromkeys(panel["tensor"] for panel in panels)
    listed = "; ".join(_seen(name, [p for p in panels if p["tensor"] == name]) for name in tensors)
    size = panels[0]["size"]
    kept, squared = (effective_dimension(size, 1.0, power) / size for power in (1, 2))
    return f"""
        Magnitudes of the Fourier coefficients of what the server adds in a round of federated
        averaging without noise and clipping, each tensor flattened to a ring (kernels in the order
        BCWH), in {BINS_A_DECADE} bins a decade of frequency; the dashed line is a power law fitted
        to the bins' root mean squares in the upper half of the axis; t is the round. White noise is
        flat: slope 0.

        The paper says: magnitudes fall like a power of the frequency as frequency and rounds grow,
        which is why smoothing costs little bias. We see these slopes, in brackets those of a fit to
        the whole axis, and the share of the squared norm that smoothing with σ = 1 would take away
        as bias, which for white noise is {1 - 2 * kept + squared:.0%}: {listed}. The paper does not
        say where it fits; we took the upper half after seeing spectra that are flat below it, so
        the slope is a description of the tail, while the share lost hangs on no fit. {remark}
    """


def _seen(tensor: str, panels: list[dict[str, Any]]) -> str:
    """The slopes and losses of one tensor, round by round."""
    each = [
        f"round {panel['round']}: {signed(panel['slope'])} ({signed(panel['slope_of_all'])}), "
        f"{panel['lost']:.0%} lost"
        for panel in panels
    ]
    return f"{tensor}, {'; '.join(each)}"
