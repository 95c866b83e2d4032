"""How well a threshold on the loss tells members from others, round by round."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from dpfedls.paper.cells import Cell, run_cells
from dpfedls.paper.figures.lines import by_round, data_of, drawn, final, of_seeds
from dpfedls.paper.item import Item, Options, wanted
from dpfedls.paper.style import (
    GREY,
    band,
    few_rounds,
    grid,
    head,
    legend_below,
    look,
    publish,
    require_matplotlib,
)
from dpfedls.theory import excess_probability, largest_auc

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PANELS = (("uniform", 1.0), ("uniform", 1.3), ("Poisson", 1.0), ("Poisson", 1.3))
METHODS = {"non-DP": None, "DP-Fed": 0.0, "DP-Fed-LS": 1.0}  # the strength of smoothing
QUANTITIES = {
    "attack_auc": "AUC of the attack",
    "training_loss": "training loss",
    "test_loss": "test loss",
    "test_accuracy": "test accuracy, %",
}


def make(options: Options) -> Item:
    """Item ``attack``: 500 clients of 128 images; the network starts from MNIST."""
    return _make("attack", "svhn-attack", 500, options)


def small(options: Options) -> Item:
    """Item ``attack-svhn5k``: 400 clients of ten real images; it starts from random weights."""
    return _make("attack-svhn5k", "svhn5k-cnn", 400, options)


def _make(item: str, task: str, clients: int, options: Options) -> Item:
    require_matplotlib()
    began = time.perf_counter()
    panels = wanted(PANELS, lambda panel: (panel[0], f"z = {panel[1]:g}"), options)
    places = [(*panel, method) for panel in panels for method in METHODS]
    runs = run_cells([_cell(task, clients, *place) for place in places], options)
    lines = [
        {
            "sampling": sampling,
            "noise_multiplier": z,
            "method": method,
            "epsilon": own[0].summary["epsilon"],
            "delta": own[0].summary["delta"],
            **by_round(own, list(QUANTITIES)),
        }
        for (sampling, z, method), own in zip(places, runs, strict=True)
    ]
    cells = [
        {key: line[key] for key in ("sampling", "noise_multiplier", "method", "epsilon", "delta")}
        | {quantity: final(line, quantity)[0] for quantity in QUANTITIES}
        for line in lines
    ]
    return publish(
        item,
        options,
        title=f"Membership inference by threshold: CNN on {data_of(runs)}",
        caption=_caption(lines, options.seeds),
        height=height({"lines": lines}),
        draw=draw,
        data={"lines": lines},
        cells=cells,
        runs=runs,
        began=began,
    )


def _cell(task: str, clients: int, sampling: str, z: float, method: str) -> Cell:
    """A fifth of the clients in each round."""
    samplers = {
        "uniform": f"{{kind='fixed', cohort={clients // 5}}}",
        "Poisson": "{kind='poisson', rate=0.2}",
    }
    strength = METHODS[method]
    # Without privacy there is neither noise nor a clip norm, and z plays no part.
    noise = ("plan.noise_multiplier=0", "plan.clip_norm=inf")
    if strength is not None:
        noise = (f"plan.noise_multiplier={z:g}",)
    return Cell(
        "svhn-cnn",
        (
            f"task={task}",
            f"plan.num_clients={clients}",
            f"plan.sampler={samplers[sampling]}",
            *noise,
            f"denoiser.strength={strength or 0:g}",
            "diagnose=true",
        ),
    )


def height(data: dict[str, Any]) -> float:
    """Inches: one panel alone lies on its side."""
    return 6.9 if len(_panels(data["lines"])) > 1 else 3.7


def draw(figure: Figure, data: dict[str, Any]) -> None:
    """A column for each sampling and noise; the attack above, how training went below."""
    panels = _panels(data["lines"])
    # One panel alone lies on its side: its quantities side by side.
    rows, columns = (len(QUANTITIES), len(panels)) if len(panels) > 1 else (2, 2)
    axes = grid(figure, rows, columns, sharex=True, sharey="row" if len(panels) > 1 else False)
    for i, (quantity, name) in enumerate(QUANTITIES.items()):
        for j, panel in enumerate(panels):
            place = axes[i * len(panels) + j]
            for method, strength in METHODS.items():
                line = _line(data["lines"], *panel, method)
                band(place, line["rounds"], drawn(line, quantity), label=method, **look(strength))
            if quantity == "attack_auc":
                place.axhline(0.5, color=GREY, linewidth=0.8)
                low, high = place.get_ylim()
                place.set_ylim(min(low, 0.45), max(high, 0.6))  # a coin's noise shall look small
            where = f"{panel[0]}, z = {panel[1]:g}" if quantity == "attack_auc" else ""
            alone = ", ".join(filter(None, (name, where)))
            head(place, i * len(panels) + j, where if len(panels) > 1 else alone)
            if j == 0 and len(panels) > 1:
                place.set_ylabel(name)
    for place in axes[-columns:]:
        place.set_xlabel("round")
        few_rounds(place.xaxis)
    legend_below(figure, axes[0], len(METHODS))


def _panels(lines: list[dict[str, Any]]) -> list[tuple[str, float]]:
    return list(dict.fromkeys((line["sampling"], line["noise_multiplier"]) for line in lines))


def _line(lines: list[dict[str, Any]], sampling: str, z: float, method: str) -> dict[str, Any]:
    wanted = (sampling, z, method)
    return next(x for x in lines if (x["sampling"], x["noise_multiplier"], x["method"]) == wanted)


def _caption(lines: list[dict[str, Any]], seeds: int) -> str:
    listed = "; ".join(
        f"{sampling}, z {z:g}: "
        + ", ".join(
            f"{final(_line(lines, sampling, z, method), 'attack_auc')[0]:.3f} ({method})"
            for method in METHODS
        )
        for sampling, z in _panels(lines)
    )
    promised = "; ".join(_promised(_line(lines, *panel, "DP-Fed")) for panel in _panels(lines))
    place, rest = ("Top", "Below") if len(_panels(lines)) > 1 else ("Top left", "Beside it")
    return f"""
        {place}: the area under the ROC of an attack that calls a sample a member if its loss is
        below a threshold, as many members as others, 10,000 of each at most; 0.5 (grey) is a coin.
        {rest}: how training went. {of_seeds(seeds).capitalize()}; non-DP has neither noise nor
        clipping, DP-Fed-LS smooths with σ = 1.

        The paper says: without DP the risk is high, DP lowers it much, and DP-Fed-LS may lower it
        further. We see after {lines[0]["rounds"][-1]} rounds: {listed}.

        What DP itself promises: {promised}. The paper's own bound on what an attack gains over the
        prior ½, cε/4 + δ, says something below ε = 2 only (with c = 1; it does not define c).
    """


def _promised(line: dict[str, Any]) -> str:
    epsilon, delta = line["epsilon"], line["delta"]
    if epsilon is None:
        return "nothing, without noise"
    most, excess = largest_auc(epsilon, delta), excess_probability(epsilon, delta)
    return (
        f"with ε = {epsilon:.3g} (pld) no attack on a person has an AUC above {most:.4f}, and "
        f"cε/4 + δ is {excess:.2f}"
    )
