"""The two inequalities that the proofs of Lemmas 2 and 3 read off a plot; the second is false."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from scipy.optimize import brentq

from dpfedls.paper.item import Item, Options
from dpfedls.paper.style import DASHES, colour, grid, head, publish

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ZOOM = (1.0, 1.8)  # the paper's, in ν
SHOWN = 4.0  # panels end here; the check goes on to ν = 100


def make(options: Options) -> Item:
    """Item ``lemmas``: the supplement's figures for Eqs. (sub_wo_replace_1) and (poisson_2)."""
    began = time.perf_counter()
    data = measure()
    cells = [
        {
            "lemma": 2,
            "holds": data["lemma_2"]["holds"],
            "largest_ratio": data["lemma_2"]["largest_ratio"],
        },
        {
            "lemma": 3,
            "holds": data["lemma_3"]["holds"],
            "holds_between": data["lemma_3"]["holds_between"],
        },
    ]
    return publish(
        "lemmas",
        options,
        title="Two inequalities that the proofs read off a plot",
        height=2.6,
        draw=draw,
        data=data,
        caption=_caption(data),
        cells=cells,
        began=began,
    )


def measure() -> dict[str, Any]:
    """Both sides of both inequalities from their least ν up to 100, and where they hold."""
    nu = _noises(2 / 3)
    bound, first, second = 6 / nu**2, 4 * np.expm1(1 / nu**2), 2 * np.exp(1 / nu**2)
    ratio = np.minimum(first, second) / bound
    lemma_2 = {
        "nu": nu.tolist(),
        "bound": bound.tolist(),
        "first": first.tolist(),
        "second": second.tolist(),
        "largest_ratio": float(ratio.max()),
        "holds": bool((ratio <= 1).all()),
    }
    nu = _noises(5 / 9)
    bound, left, corrected = 3.5 / nu**2, np.exp(1 / nu**2), np.expm1(1 / nu**2)
    excess = lambda square: 1 / square - np.log(3.5 / square)  # noqa: E731  negative: holds
    lemma_3 = {
        "nu": nu.tolist(),
        "bound": bound.tolist(),
        "left": left.tolist(),
        "corrected": corrected.tolist(),
        "holds_between": [cast(float, brentq(excess, *at)) for at in ((0.3, 1.0), (1.0, 5.0))],
        "holds": bool((left <= bound).all()),
        "corrected_holds": bool((corrected <= bound).all()),
    }
    return {"lemma_2": lemma_2, "lemma_3": lemma_3}


def _noises(least_square: float) -> np.ndarray:
    near = np.linspace(np.sqrt(least_square), SHOWN, 401)
    return np.concatenate([near, np.geomspace(SHOWN, 100, 101)[1:]])


def _caption(data: dict[str, Any]) -> str:
    low, high = data["lemma_3"]["holds_between"]
    return f"""
        (a) Lemma 2 (fixed-size cohorts): min{{4(e^(1/ν²) − 1), 2e^(1/ν²)}} ≤ 6/ν² for ν² ≥ 2/3;
        (b) the same, closer. (c) Lemma 3 (Poisson): e^(1/ν²) ≤ 7/(2ν²) for ν² ≥ 5/9. ν is noise ÷
        sensitivity.

        The paper says that both hold. We see that the first does (the left side is at most
        {data["lemma_2"]["largest_ratio"]:.1%} of the right), and that **the second is false for
        ν² > {high:.2f}**: it holds for {low:.2f} ≤ ν² ≤ {high:.2f} only, because the left side
        tends to 1 and the right side to 0. Lemma 3 itself survives: at integer orders e^(1/ν²) − 1
        may stand in place of e^(1/ν²), and that is below 7/(2ν²) for all ν² ≥ 5/9 (dashed; the
        proof is in docs/privacy.md).
    """


def draw(figure: Figure, data: dict[str, Any]) -> None:
    """Lemma 2, its zoom, and Lemma 3 with the region where it fails."""
    whole, zoom, poisson = grid(figure, 1, 3)
    for axes in (whole, zoom):
        row = {key: np.array(data["lemma_2"][key]) for key in ("nu", "bound", "first", "second")}
        nu, smaller = row["nu"], np.minimum(row["first"], row["second"])
        axes.plot(nu, row["bound"], color=colour(2), label="6/ν²")
        axes.plot(nu, smaller, color=colour(0), linewidth=2.6, label="the smaller of")
        label = r"$4(e^{1/\nu^2}-1)$"
        axes.plot(nu, row["first"], color=colour(1), linestyle=DASHES[1], label=label)
        axes.plot(nu, row["second"], color=colour(3), linestyle=DASHES[2], label=r"$2e^{1/\nu^2}$")
        axes.set(xlabel="ν")
    whole.set(xlim=(nu[0], SHOWN), ylim=(0, 12))
    whole.legend(loc="upper right")
    head(whole, 0, "Lemma 2 holds")
    zoom.set(xlim=ZOOM, ylim=(1, 7))
    head(zoom, 1, "the same, closer")
    row = data["lemma_3"]
    edge = np.sqrt(row["holds_between"][1])
    poisson.axvspan(edge, SHOWN, color=colour(2), alpha=0.12, linewidth=0)
    poisson.plot(row["nu"], row["bound"], color=colour(2), label="7/(2ν²)")
    poisson.plot(row["nu"], row["left"], color=colour(0), label=r"$e^{1/\nu^2}$")
    look = {"color": colour(1), "linestyle": DASHES[1]}
    poisson.plot(row["nu"], row["corrected"], label=r"$e^{1/\nu^2}-1$", **look)
    poisson.annotate(f"false for ν² > {edge**2:.2f}", (edge + 0.15, 2.5), color=colour(2))
    poisson.set(xlabel="ν", xlim=(row["nu"][0], SHOWN), ylim=(0, 6.5))
    poisson.legend(loc="upper right")
    head(poisson, 2, "Lemma 3: the step is false")
