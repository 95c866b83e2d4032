"""How well a threshold on the loss tells members from others, round by round."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from dpfedls.paper import kept
from dpfedls.paper.cells import Cell, Run, resolve, run_cells
from dpfedls.paper.figures.lines import by_round, drawn, final, of_seeds, seeds_of
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
LABELS = ("sampling", "noise_multiplier", "method")
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
    made = zip(places, runs, strict=True)
    record = kept.record(
        item,
        options,
        [(_facts(place, own), own) for place, own in made if own],
        labels=LABELS,
        by_seed=list(QUANTITIES),
        places=[(*panel, method) for panel in PANELS for method in METHODS],
        read=lambda facts: [
            _with_epsilon(line, task, clients, options)
            for line in _for_every_noise(kept.lines_of(facts))
        ],
    )
    lines = _about_noise(record.lines)
    cells = [
        {key: line[key] for key in (*LABELS, "epsilon", "delta")}
        | {quantity: final(line, quantity)[0] for quantity in QUANTITIES}
        for line in lines
    ]
    return publish(
        item,
        options,
        title=record.title("Membership inference by threshold: CNN on $data"),
        caption=_caption(lines),
        height=height({"lines": lines}),
        draw=draw,
        data={"lines": lines},
        cells=cells,
        runs=record.runs,
        earlier=record.earlier,
        began=began,
    )


def _facts(place: tuple[str, float, str], runs: list[Run]) -> dict[str, Any]:
    return {
        **dict(zip(LABELS, place, strict=True)),
        "epsilon": runs[0].summary["epsilon"],
        "delta": runs[0].summary["delta"],
        "seeds": seeds_of(runs),
        **by_round(runs, list(QUANTITIES)),
    }


def _for_every_noise(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Non-DP is the same run for every z; an earlier file may have it for one alone."""
    levels = dict.fromkeys(z for _, z in PANELS)
    return [
        line | {"noise_multiplier": z}
        for line in lines
        for z in (levels if line["method"] == "non-DP" else [line["noise_multiplier"]])
    ]


def _with_epsilon(
    line: dict[str, Any], task: str, clients: int, options: Options
) -> dict[str, Any]:
    """A line of an earlier file; some were written before lines named their ε."""
    if "epsilon" in line:
        return line
    cell = _cell(task, clients, *(line[name] for name in LABELS))
    plan = resolve(cell, 0, options).plan
    return line | {
        "epsilon": plan.epsilon() if plan.is_private else None,
        "delta": plan.target_delta,
    }


def _about_noise(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The lines of panels with noise: non-DP is the same run for every z, and alone shows none."""
    noisy = _panels([line for line in lines if line["method"] != "non-DP"])
    return [x for x in lines if (x["sampling"], x["noise_multiplier"]) in noisy] or lines


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
            for line in _of(data["lines"], *panel):
                looks = look(METHODS[line["method"]])
                band(place, line["rounds"], drawn(line, quantity), label=line["method"], **looks)
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
    legend_below(figure, max(axes, key=lambda x: len(x.lines)), len(METHODS))


def _panels(lines: list[dict[str, Any]]) -> list[tuple[str, float]]:
    return list(dict.fromkeys((line["sampling"], line["noise_multiplier"]) for line in lines))


def _of(lines: list[dict[str, Any]], sampling: str, z: float) -> list[dict[str, Any]]:
    return [x for x in lines if (x["sampling"], x["noise_multiplier"]) == (sampling, z)]


def _caption(lines: list[dict[str, Any]]) -> str:
    listed = "; ".join(
        f"{sampling}, z {z:g}: "
        + ", ".join(
            f"{final(line, 'attack_auc')[0]:.3f} ({line['method']})"
            for line in _of(lines, sampling, z)
        )
        for sampling, z in _panels(lines)
    )
    # Both private methods of a panel promise the same; non-DP, which comes first, nothing.
    promised = "; ".join(_promised(_of(lines, *panel)[-1]) for panel in _panels(lines))
    place, rest = ("Top", "Below") if len(_panels(lines)) > 1 else ("Top left", "Beside it")
    return f"""
        {place}: the area under the ROC of an attack that calls a sample a member if its loss is
        below a threshold, as many members as others, 10,000 of each at most; 0.5 (grey) is a coin.
        {rest}: how training went. {of_seeds(lines).capitalize()}; non-DP has neither noise nor
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
