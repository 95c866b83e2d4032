"""What an ε means for one person, in a sentence, and for whoever tries to find that person."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from dpfedls.privacy.accountants import Spent, profile

# Beside the statement's own: large δ, small ε, where an attacker who may err often is bounded.
_DELTAS = (0.5, 0.3, 0.2, 0.1, 0.05, 0.02)
MISTAKES = 0.01  # how often the attacker of the sentence may suspect somebody wrongly


def best_attack(curve: Sequence[tuple[float, float]], mistakes: float) -> float:
    """The largest share of true suspicions, where ``mistakes`` is that of false ones.

    ``curve`` are (ε, δ) that all hold. Each of them gives true ≤ δ + e^ε·false, and the same with
    the two errors exchanged (Kairouz, Oh, Viswanath 2015, Theorem 2.1); all of them hold at once.
    """
    bounds = [1.0]
    for epsilon, delta in curve:
        if epsilon < 700:
            bounds.append(delta + math.exp(epsilon) * mistakes)
            bounds.append(1 - math.exp(-epsilon) * (1 - delta - mistakes))
    return max(mistakes, min(bounds))


def attack_curve(values: dict[str, Any], spent: Spent) -> list[tuple[float, float]]:
    """Finite (ε, δ) that hold for these rounds; ``values`` is their privacy statement."""
    if not values["private"] or not values["mechanism"]["rounds_paid"]:
        return []
    told = [(point["epsilon"], point["delta"]) for point in values["curve"]]
    return [
        (epsilon, delta)
        for epsilon, delta in (*zip(profile(spent, _DELTAS), _DELTAS, strict=True), *told)
        if epsilon is not None and math.isfinite(epsilon)
    ]


def meaning(values: dict[str, Any], curve: Sequence[tuple[float, float]]) -> str:
    """One plain sentence for a person, from a privacy statement and its ``attack_curve``."""
    if not values["mechanism"]["rounds_paid"]:
        return "No round was released, so nothing was given away about anybody."
    if not curve:
        return "No noise was added, so nothing is promised to anybody."
    deployed = "" if values["mode"] == "deployed" else "Once deployed as it was simulated: "
    found = best_attack(curve, MISTAKES)
    others = (
        "non-participants"
        if values["relation"] == "add-or-remove-one"
        else "people who could have taken part in their place"
    )
    said = (
        f"{deployed}an attacker who sees everything that is released, and wrongly accuses 1 in 100 "
        f"{others}, can identify at most {math.ceil(1000 * found - 1e-9) / 10:g} in 100 "
        "participants. Blind guessing identifies 1."
    )
    return said[0].upper() + said[1:]
