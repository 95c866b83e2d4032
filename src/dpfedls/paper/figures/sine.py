"""sin(x) with noise, smoothed; and how much of the error smoothing removes, with Proposition 1."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from dpfedls.denoisers import smooth
from dpfedls.paper.item import Item, Options
from dpfedls.paper.style import GREY, colour, grid, head, plain_numbers, publish
from dpfedls.theory import risk

if TYPE_CHECKING:
    from matplotlib.figure import Figure

POINTS = 300  # on [0, 30]; the paper does not say how many
SHOWN_NOISE, SHOWN_STRENGTH = 0.1, 1.0
STRENGTHS = (0.5, 1.0, 2.0, 5.0)
NOISES = np.geomspace(0.01, 1.0, 13)  # of the points
LINE = np.geomspace(0.01, 1.0, 121)  # of the curves
REPETITIONS = 400


def make(options: Options) -> Item:
    """Item ``sine``: Figure "Efficacy of Laplacian smoothing"."""
    began = time.perf_counter()
    data = measure()
    cells = [
        {k: row[k] for k in ("strength", "breaks_even_at", "most")} for row in data["reduction"]
    ]
    return publish(
        "sine",
        options,
        title="sin(x) denoised",
        height=2.7,
        draw=draw,
        data=data,
        caption=_caption(data),
        cells=cells,
        began=began,
    )


def measure(repetitions: int = REPETITIONS) -> dict[str, Any]:
    """The three signals, and the reduction of the error: simulated, with standard error; exact."""
    x = np.linspace(0, 30, POINTS)
    y = torch.from_numpy(np.sin(x))
    noise = torch.from_numpy(np.random.default_rng(0).standard_normal((repetitions, POINTS)))
    noisy = y + SHOWN_NOISE * noise[0]
    rows = [_reduction(y, noise, strength) for strength in STRENGTHS]
    return {
        "x": x.tolist(),
        "signal": y.tolist(),
        "noisy": noisy.tolist(),
        "smoothed": smooth(noisy, SHOWN_STRENGTH).tolist(),
        "repetitions": repetitions,
        "reduction": rows,
    }


def _reduction(y: torch.Tensor, noise: torch.Tensor, strength: float) -> dict[str, Any]:
    simulated, errors = [], []
    shift = smooth(y, strength) - y
    smoothed_noise = torch.stack([smooth(n, strength) for n in noise])
    for level in NOISES:
        before = (level * noise).square().mean(dim=1)
        after = (shift + level * smoothed_noise).square().mean(dim=1)  # smoothing is linear
        ratio = (after.mean() / before.mean()).item()
        # The standard error of a ratio of means, to first order.
        wobble = (after - ratio * before).std().item() / before.mean().item()
        simulated.append(1 - ratio)
        errors.append(wobble / len(noise) ** 0.5)
    unit = risk(y.numpy(), 1.0, strength)
    exact = lambda level: 1 - (unit.bias / level**2 + unit.variance) / POINTS  # noqa: E731
    most = 1 - unit.variance / POINTS
    return {
        "strength": strength,
        "noise": NOISES.tolist(),
        "simulated": simulated,
        "standard_error": errors,
        "proposition_1": exact(NOISES).tolist(),
        "line": exact(LINE).tolist(),
        "breaks_even_at": (unit.bias / POINTS / most) ** 0.5,
        "most": most,
    }


def _caption(data: dict[str, Any]) -> str:
    shown = next(row for row in data["reduction"] if row["strength"] == SHOWN_STRENGTH)
    return f"""
        (a) y = sin(x) at {POINTS} points of [0, 30], the same with noise ν = {SHOWN_NOISE:g}, and
        smoothed with σ = {SHOWN_STRENGTH:g}, drawn below one another. The ends are neighbours on
        the ring: sin(30) = −0.99 is pulled towards sin(0) = 0 and back, which is the step at both
        ends of the lowest curve; (b) counts it. (b) The share of the mean
        squared error that smoothing removes, by noise level: points are means of
        {data["repetitions"]} simulations, lines are Proposition 1.

        The paper says: small noise, more bias than gain; larger noise, a large gain, and the larger
        σ the better. We see the first two; the last holds for large noise only (the curves cross).
        The theory lies on top of the points. With σ = {SHOWN_STRENGTH:g} smoothing starts to pay at
        ν = {shown["breaks_even_at"]:.3f} and removes at most {shown["most"]:.0%}: what is left is
        d̃_σ/d of the noise. The paper does not say how many points it took; with more of them
        sin(x) is smoother and smoothing pays earlier.
    """


def draw(figure: Figure, data: dict[str, Any]) -> None:
    """Signals on the left, the reduction on the right."""
    left, right = grid(figure, 1, 2)
    signals = (("sin(x)", "signal"), (f"with noise ν = {SHOWN_NOISE:g}", "noisy"))
    last = (f"smoothed, σ = {SHOWN_STRENGTH:g}", "smoothed")
    for k, (label, key) in enumerate((*signals, last)):
        ink, base = colour((0, 2, 1)[k]), -3.6 * k
        left.plot(data["x"], np.array(data[key]) + base, color=ink, linewidth=1)
        left.annotate(label, (30, base + 1.4), ha="right", va="bottom", color=ink)
    ends = {"textcoords": "offset points", "fontsize": 7, "color": GREY, "va": "top"}
    left.annotate("both ends are pulled together: a ring", (15, -8.45), (0, 0), ha="center", **ends)
    left.set(xlabel="x", yticks=[], xlim=(0, 30), ylim=(-9.3, 2.2))
    left.grid(False)
    left.spines["left"].set_visible(False)
    head(left, 0, "the signal, noisy and smoothed")
    for k, row in zip((3, 1, 4, 5), data["reduction"], strict=True):
        right.plot(LINE, row["line"], color=colour(k), label=f"σ = {row['strength']:g}")
        right.plot(row["noise"], row["simulated"], "o", color=colour(k), markeredgecolor="white")
    right.axhline(0, color=GREY, linewidth=0.8)
    right.set(xscale="log", xlabel="noise level ν", ylabel="share of the error removed")
    right.set(xlim=(0.0095, 1.05), ylim=(-1, 1), yticks=[-1, -0.5, 0, 0.5, 1])
    plain_numbers(right.xaxis)
    right.legend(loc="lower right")
    head(right, 1, "points simulated, lines Proposition 1")
