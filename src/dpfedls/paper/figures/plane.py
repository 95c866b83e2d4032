"""Gradient descent against its smoothed form in the plane, with noise on every gradient."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from dpfedls.denoisers import smooth
from dpfedls.paper.item import Item, Options
from dpfedls.paper.style import GREY, colour, grid, head, publish

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NOISE, RATE, UPDATES, STRENGTH = 0.3, 0.1, 100, 1.0  # the paper's
POINTS, SPREAD = 100, 0.5  # a class, around (1, 1) and (−1, −1); the paper does not say


def make(options: Options) -> Item:
    """Item ``plane``: Figure "Demonstration of Laplacian smoothing"."""
    began = time.perf_counter()
    data = measure()
    cells = [
        {"method": name, "off_diagonal": path["off_diagonal"], "loss": path["loss"]}
        for name, path in data["paths"].items()
    ]
    return publish(
        "plane",
        options,
        title="Gradient descent in the plane, plain and smoothed",
        height=3.1,
        draw=draw,
        data=data,
        caption=_caption(data),
        cells=cells,
        began=began,
    )


def measure() -> dict[str, Any]:
    """The points, and both paths of W under the same noise."""
    rng = np.random.default_rng(0)
    labels = torch.arange(2.0).repeat_interleave(POINTS)
    centres = torch.stack([1 - 2 * labels] * 2, dim=1)  # class 0 around (1, 1)
    points = centres + SPREAD * torch.from_numpy(rng.standard_normal((2 * POINTS, 2))).float()
    noise = NOISE * torch.from_numpy(rng.standard_normal((UPDATES, 2))).float()
    paths = {
        name: _descend(points, labels, noise, strength)
        for name, strength in (("GD", 0.0), ("LSGD", STRENGTH))
    }
    return {"points": points.tolist(), "labels": labels.tolist(), "paths": paths}


def _descend(
    points: torch.Tensor, labels: torch.Tensor, noise: torch.Tensor, strength: float
) -> dict[str, Any]:
    w, path = torch.zeros(2), [[0.0, 0.0]]
    for wobble in noise:
        gradient = (torch.sigmoid(points @ w) - labels) @ points / len(points)
        w = w - RATE * smooth(gradient + wobble, strength)
        path.append(w.tolist())
    loss = torch.nn.functional.binary_cross_entropy_with_logits(points @ w, labels)
    across = np.array(path) @ [1, -1] / np.sqrt(2)
    return {
        "path": path,
        "loss": float(loss),
        "off_diagonal": float(np.sqrt(np.mean(across**2))),
    }


def _caption(data: dict[str, Any]) -> str:
    off = {name: f"{path['off_diagonal']:.3f}" for name, path in data["paths"].items()}
    return f"""
        (a) Two classes of {POINTS} points, to be separated by y = sigmoid(W·x); every W = (c, c)
        with c < 0 points the right way. (b) W from (0, 0) over {UPDATES} updates with learning rate
        {RATE:g} and noise {NOISE:g} on each gradient; the same noise for both, σ = {STRENGTH:g}.

        The paper says that the smoothed curve is much smoother. So it is: it strays {off["LSGD"]}
        from the diagonal (root mean square) where plain descent strays {off["GD"]}, and along the
        diagonal both do nearly the same. In the plane there is little mystery: on a ring of two,
        smoothing keeps (1, 1) and divides (1, −1) by 1 + 4σ = {1 + 4 * STRENGTH:g}. It helps
        because the solution lies on the diagonal, which is what smoothing assumes. The paper gives
        neither centres nor spreads of the points; these are ours.
    """


def draw(figure: Figure, data: dict[str, Any]) -> None:
    """The data on the left, the paths on the right."""
    left, right = grid(figure, 1, 2)
    points, labels = np.array(data["points"]), np.array(data["labels"])
    for label, ink, marker in ((0, colour(1), "o"), (1, colour(3), "^")):
        own = points[labels == label]
        left.plot(*own.T, marker, color=ink, markersize=3, alpha=0.8)
        place = (1 - 2 * label, 2.4 - 4.8 * label)
        left.annotate(f"y = {label}", place, ha="center", va="center", color=ink)
    left.axline((0, 0), slope=-1, color=GREY, linewidth=0.8, linestyle="--")
    left.set(xlabel="$x_1$", ylabel="$x_2$", aspect="equal", xlim=(-2.8, 2.8), ylim=(-2.8, 2.8))
    head(left, 0, "two classes")
    right.axline((0, 0), slope=1, color=GREY, linewidth=0.8, linestyle="--")
    for name, ink in (("GD", colour(2)), ("LSGD", colour(1))):
        path = np.array(data["paths"][name]["path"])
        label = "GD" if name == "GD" else f"LSGD, σ = {STRENGTH:g}"
        right.plot(*path.T, color=ink, marker=".", markersize=2.5, linewidth=1, label=label)
    right.plot(0, 0, "ko", markersize=4)
    right.annotate("start", (0, 0), (5, -3), textcoords="offset points", va="top")
    far = 1.1 * np.min([path["path"] for path in data["paths"].values()])
    right.set(xlabel="$w_1$", ylabel="$w_2$", aspect="equal", xlim=(far, 0.3), ylim=(far, 0.3))
    right.set(xticks=(ticks := np.arange(np.ceil(2 * far) / 2, 0.1, 0.5)), yticks=ticks)
    right.legend(loc="upper left")
    head(right, 1, f"W in {UPDATES} updates")
