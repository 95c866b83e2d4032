"""The two inequalities that the proofs of Lemmas 2 and 3 read off a plot; the second is false."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from scipy.optimize import brentq

from dpfedls.paper.item import Item, Options
from dpfedls.paper.style import DASHES, GREY, colour, grid, head, plain_numbers, publish
from dpfedls.privacy.accounting.closed_form import largest_order

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ZOOM = (1.0, 1.8)  # the paper's, in ν
SHOWN = 4.0  # panels end here; the check goes on to ν = 100


def make(options: Options) -> Item:
    """Item ``lemmas``: Figures S7 and S8, and what Remarks 1 and 2 compare."""
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
        *(
            {"remark": 2, "rate": row["rate"], "largest_order_of_lemma_3": max(row["lemma_3"])}
            | {"its_noise_for_order_2": _where_order_2(row)}
            for row in data["remark_2"]
        ),
    ]
    return publish(
        "lemmas",
        options,
        title="Lemmas 2 and 3: two inequalities read off a plot; conditions of Remarks 1 and 2",
        height=4.9,
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
    return {
        "lemma_2": lemma_2,
        "lemma_3": lemma_3,
        "remark_1": _remark_1(),
        "remark_2": _remark_2(),
    }


def _remark_1() -> dict[str, Any]:
    """One round is (α, coefficient · τ²α/ν²)-RDP: who proves which, and from what noise on."""
    square = np.geomspace(2 / 3, 20, 201)
    # Theorem 9 of Wang et al. (2019) at α = 2, where the sum has one term, as τ → 0.
    least = np.minimum(4 * np.expm1(1 / square), 2 * np.exp(1 / square)) * square / 2
    bounds = {"Lemma 2": (3.5, 2 / 3), "Wang, Jayaraman et al.": (5, 1.5), "Bun et al.": (6, 5)}
    return {"square": square.tolist(), "at_order_2": least.tolist(), "bounds": bounds}


def _remark_2() -> list[dict[str, Any]]:
    """The largest order that Lemma 3 allows beside the largest of Mironov, Talwar and Zhang."""
    nu = np.geomspace(np.sqrt(5 / 9), 20, 241)
    return [
        {
            "rate": rate,
            "nu": nu.tolist(),
            "lemma_3": [largest_order(rate, each**2) for each in nu.tolist()],
            "theirs": [their_largest_order(rate, each) for each in nu.tolist()],
        }
        for rate in (0.05, 0.001)
    ]


def their_largest_order(rate: float, nu: float) -> float:
    """The largest α, of steps of a thousandth, up to which Remark 2's two conditions hold."""
    if nu < 4:
        return 1.0
    alpha = np.geomspace(1.001, 1000, 6911)
    c = np.log1p(1 / (rate * (alpha - 1)))
    first = alpha <= nu**2 * c / 2 - 2 * np.log(nu)
    room = nu**2 * c**2 / 2 - np.log(5) - 2 * np.log(nu)
    second = alpha * (c + np.log(rate * alpha) + 1 / (2 * nu**2)) <= room
    fails = np.flatnonzero(~(first & second))
    end = fails[0] if len(fails) else len(alpha)
    return float(alpha[end - 1]) if end else 1.0


def _noises(least_square: float) -> np.ndarray:
    near = np.linspace(np.sqrt(least_square), SHOWN, 401)
    return np.concatenate([near, np.geomspace(SHOWN, 100, 101)[1:]])


def _where_order_2(row: dict[str, Any]) -> list[float]:
    """The least and the largest ν drawn at which Lemma 3 allows α = 2, the first integer order."""
    allowed = [nu for nu, alpha in zip(row["nu"], row["lemma_3"], strict=True) if alpha >= 2]
    return [allowed[0], allowed[-1]]


def _caption(data: dict[str, Any]) -> str:
    low, high = data["lemma_3"]["holds_between"]
    often, rarely = data["remark_2"]
    at_4 = [
        (max(row["lemma_3"]), their_largest_order(row["rate"], 4.0), _where_order_2(row))
        for row in (often, rarely)
    ]
    return f"""
        (a) Lemma 2 (fixed-size cohorts): min{{4(e^(1/ν²) − 1), 2e^(1/ν²)}} ≤ 6/ν² for ν² ≥ 2/3;
        (b) the same, closer. (c) Lemma 3 (Poisson): e^(1/ν²) ≤ 7/(2ν²) for ν² ≥ 5/9. (d) Remark 1:
        the coefficient of τ²α/ν² that each proves, from the noise on that it asks for; grey, what
        it is at α = 2. (e, f) Remark 2: the largest order α that Lemma 3 allows and that Mironov,
        Talwar and Zhang do. ν is noise ÷ sensitivity.

        The paper says that both hold. We see that the first does (the left side is at most
        {data["lemma_2"]["largest_ratio"]:.1%} of the right), and that **the second is false for
        ν² > {high:.2f}**: it holds for {low:.2f} ≤ ν² ≤ {high:.2f} only, because the left side
        tends to 1 and the right side to 0. Lemma 3 itself survives: at integer orders e^(1/ν²) − 1
        may stand in place of e^(1/ν²), and that is below 7/(2ν²) for all ν² ≥ 5/9 (dashed; the
        proof is in docs/privacy.md).

        Remark 1 holds: the smallest coefficient, from the smallest noise on. Remark 2, that ν ≥ 4
        is relaxed and two conditions on α become one, holds in part: the one condition also ends
        where τα(1 + ν²) reaches 1, and it is the stricter by far. At the paper's τ = 0.05 it never
        allows more than α = {at_4[0][0]:.2f}, and α = 2, the first order that the proof speaks
        about, only for {at_4[0][2][0]:.2f} ≤ ν ≤ {at_4[0][2][1]:.2f}, while the older ones allow
        α ≤ {at_4[0][1]:.1f} at ν = 4: with α ≥ 2 the two have no ν in common. At τ = 0.001
        Lemma 3 allows up to {at_4[1][0]:.1f}, theirs {at_4[1][1]:.1f} at ν = 4 already.
    """


def draw(figure: Figure, data: dict[str, Any]) -> None:
    """Lemma 2, its zoom, Lemma 3 with the region where it fails; below, the two remarks."""
    whole, zoom, poisson, coefficients, *orders = grid(figure, 2, 3)
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
    _draw_remark_1(coefficients, data["remark_1"])
    for number, (axes, row) in enumerate(zip(orders, data["remark_2"], strict=True)):
        _draw_remark_2(axes, row)
        head(axes, 4 + number, f"Remark 2, τ = {row['rate']:g}")


def _draw_remark_1(axes: Axes, remark: dict[str, Any]) -> None:
    axes.plot(remark["square"], remark["at_order_2"], color=GREY)
    axes.annotate("at α = 2", (9, 2.2), color=GREY, va="bottom")
    for k, (name, (coefficient, least)) in enumerate(remark["bounds"].items()):
        ink = colour((2, 1, 3)[k])
        axes.plot([least, 20], [coefficient] * 2, color=ink, linestyle=DASHES[k])
        axes.plot(least, coefficient, "o", color=ink)
        axes.annotate(name, (20, coefficient + 0.12), color=ink, ha="right", va="bottom")
    axes.set(xscale="log", xlabel="ν²", ylabel="coefficient of τ²α/ν²", xlim=(0.6, 21), ylim=(0, 7))
    plain_numbers(axes.xaxis)
    head(axes, 3, "Remark 1: from what noise on")


def _draw_remark_2(axes: Axes, row: dict[str, Any]) -> None:
    for name, key, ink, dash in (("Lemma 3", "lemma_3", 2, 0), ("Mironov et al.", "theirs", 0, 1)):
        allowed = np.where(np.array(row[key]) > 1, row[key], np.nan)
        axes.plot(row["nu"], allowed, color=colour(ink), linestyle=DASHES[dash], label=name)
    axes.axhline(2, color=GREY, linewidth=0.8)
    axes.set(xscale="log", yscale="log", xlabel="ν", ylabel="largest α", ylim=(1, 500))
    plain_numbers(axes.xaxis)
    plain_numbers(axes.yaxis)
    axes.legend(loc="upper left")
