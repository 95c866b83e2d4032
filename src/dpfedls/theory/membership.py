"""What (ε, δ)-DP says about an attack on membership (Section 6.4): the paper's bound and the tight.

An attack is told of a model and of a person who is in or out, ``prior`` for in.
"""

from __future__ import annotations

import math

from dpfedls.errors import InputError, require_not_negative


def excess_probability(epsilon: float, delta: float, c: float = 1.0) -> float:
    """cε/4 + δ, the paper's bound on P(member | model) − prior.

    c is not defined there. With 1 it is the tangent at ε = 0 of ``largest_excess`` at prior ½: it
    is true for every prior, and above ½ (ε ≥ 2) it says nothing at prior ½.
    """
    _check(epsilon, delta)
    return c * epsilon / 4 + delta


def largest_excess(epsilon: float, prior: float = 0.5) -> float:
    """The most that P(member | model) − prior can be under ε-DP, by Bayes' rule."""
    _check(epsilon, 0.0)
    if not 0 < prior < 1:
        raise InputError(f"prior must be in (0, 1), got {prior:g}; it is the share of members")
    return 1 / (1 + math.exp(-epsilon) * (1 - prior) / prior) - prior


def largest_auc(epsilon: float, delta: float) -> float:
    """The largest area under the ROC of any attack: 1 − (1 − δ)²/(1 + e^ε).

    The area above the ROC is at least that below the trade-off curve max{0, 1 − δ − e^ε x,
    e^−ε(1 − δ − x)}, whose two lines meet at x = (1 − δ)/(1 + e^ε).
    """
    _check(epsilon, delta)
    return 1 - (1 - delta) ** 2 / (1 + math.exp(min(epsilon, 700.0)))


def _check(epsilon: float, delta: float) -> None:
    require_not_negative("epsilon", epsilon, "it is the privacy budget")
    if not 0 <= delta <= 1:
        raise InputError(f"delta must be in [0, 1], got {delta:g}; it is a probability")
