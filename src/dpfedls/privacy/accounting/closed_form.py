"""Theorems 1 and 2 of arXiv:2005.00218: noise, ε and rounds in closed form, each checked by PLD.

Both theorems are one, in terms of z = noise ÷ sensitivity: Lemma 2 or 3 gives one round
(α, K·q²·α/z²)-RDP under two conditions, T rounds add up, and ε = ρ + log(1/δ)/(α - 1). λ is the
share of ε that ρ takes. The lemmas' proofs sum over integer orders only, while α comes out
fractional (often near 2): so nothing leaves here that the PLD accountant does not confirm.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from dpfedls.errors import InputError
from dpfedls.privacy.accounting.pld import epsilon_at
from dpfedls.privacy.event import RoundEvent
from dpfedls.sampling import Sampler

Sampling: TypeAlias = Literal["poisson", "fixed"]
Floats: TypeAlias = NDArray[np.float64]

LAMBDAS: Floats = np.linspace(0.0005, 0.9995, 1999)  # the paper's grid search, step 0.0005


class Infeasible(InputError):
    """No λ satisfies the theorem at these settings, which says nothing about their privacy."""


class Lemma(NamedTuple):
    """One round is (α, factor·q²·α/z²)-RDP if z² >= least_square and α is not too large."""

    factor: float
    least_square: float


LEMMAS: dict[Sampling, Lemma] = {"fixed": Lemma(3.5, 2 / 3), "poisson": Lemma(2.0, 5 / 9)}


class ClosedForm(NamedTuple):
    """The noise of Theorem 1 or 2, with the λ and the order α that gave it."""

    noise_multiplier: float
    lambda_: float
    alpha: float


def closed_form_noise(
    epsilon: float, *, sampler: Sampler, num_clients: int, rounds: int, delta: float
) -> ClosedForm:
    """The least noise over a grid of λ that satisfies Theorem 1 or 2 and is confirmed by PLD."""
    factor, least_square = lemma_for(sampler)
    rate, log_delta = sampler.sampling_rate(num_clients), math.log(1 / delta)
    alphas = 1 + log_delta / ((1 - LAMBDAS) * epsilon)
    squares = factor * rounds * rate**2 * alphas / (LAMBDAS * epsilon)
    feasible = (squares >= least_square) & order_allowed(alphas, rate, squares)
    if not feasible.any():
        raise infeasible(epsilon, rate, rounds)
    best = int(np.argmin(np.where(feasible, squares, np.inf)))
    noise = math.sqrt(squares[best]) * sampler.sensitivity_in_clip_norms
    event = RoundEvent(sampler=sampler, num_clients=num_clients, noise_multiplier=noise)
    confirm(event, rounds, delta, epsilon)
    return ClosedForm(noise, float(LAMBDAS[best]), float(alphas[best]))


def closed_form_epsilon(event: RoundEvent, *, rounds: int, delta: float) -> float:
    """The least ε over a grid of λ that Theorem 1 or 2 grants this noise, confirmed by PLD."""
    factor, least_square = lemma_for(event.sampler)
    square, log_delta = event.noise_over_sensitivity**2, math.log(1 / delta)
    order = largest_order(event.rate, square)
    if square < least_square or order <= 1:
        raise infeasible(math.inf, event.rate, rounds)
    # ε solves factor·T·q²·α(ε)/z² = λ·ε, a quadratic; and α(ε) <= order asks for a least ε too.
    half = factor * rounds * event.rate**2 / (LAMBDAS * square) / 2
    by_noise = half + np.sqrt(half**2 + 2 * half * log_delta / (1 - LAMBDAS))
    by_order = log_delta / ((1 - LAMBDAS) * (order - 1))
    epsilon = float(np.min(np.maximum(by_noise, by_order)))
    confirm(event, rounds, delta, epsilon)
    return epsilon


def closed_form_rounds(epsilon: float, *, event: RoundEvent, delta: float) -> int:
    """The most rounds by Eq. (6) and its Poisson analogue, confirmed by PLD; 0 if none."""
    factor, least_square = lemma_for(event.sampler)
    square = event.noise_over_sensitivity**2
    alphas = 1 + math.log(1 / delta) / ((1 - LAMBDAS) * epsilon)
    feasible = (square >= least_square) & order_allowed(alphas, event.rate, square)
    if not feasible.any():
        raise infeasible(epsilon, event.rate, None)
    counts = LAMBDAS * epsilon * square / (factor * event.rate**2 * alphas)
    rounds = math.floor(np.max(counts[feasible]) * (1 + 1e-12))
    if rounds:
        confirm(event, rounds, delta, epsilon)
    return rounds


def order_allowed(alpha: Floats | float, rate: float, square: Floats | float) -> NDArray[np.bool_]:
    """Both lemmas' condition on the order: α - 1 <= (2/3)·z²·log(1/(q·α·(1 + z²)))."""
    room = -np.log(rate * np.asarray(alpha) * (1 + np.asarray(square)))
    return np.asarray(alpha) - 1 <= 2 / 3 * np.asarray(square) * room


def largest_order(rate: float, square: float) -> float:
    """The largest α that the condition allows, 1 if none."""
    room = -math.log(rate * (1 + square))
    if room <= 0:
        return 1.0
    slack = lambda alpha: 2 / 3 * square * (room - math.log(alpha)) - (alpha - 1)  # noqa: E731
    return cast(float, brentq(slack, 1.0, math.exp(room)))


def lemma_for(sampler: Sampler) -> Lemma:
    """The lemma that speaks about this sampler."""
    return LEMMAS["fixed" if sampler.relation == "replace-one" else "poisson"]


def confirm(event: RoundEvent, rounds: int, delta: float, epsilon: float) -> None:
    """Refuse what the theorem grants and the tight accountant does not."""
    tight = epsilon_at([(event, rounds)], delta)
    if tight > epsilon:
        raise InputError(
            f"the closed form claims epsilon = {epsilon:.4g} for noise_multiplier = "
            f"{event.noise_multiplier:.4g}, but the PLD accountant finds {tight:.4g}; "
            "use accountant 'pld'"
        )


def infeasible(epsilon: float, rate: float, rounds: int | None) -> Infeasible:
    """The refusal, with what to use instead."""
    target = "" if math.isinf(epsilon) else f" at epsilon = {epsilon:g}"
    length = "" if rounds is None else f" over {rounds} rounds"
    return Infeasible(
        f"the closed form says nothing{target}{length} with sampling rate {rate:g}: no λ in (0, 1) "
        "satisfies both of its conditions; use accountant 'pld'"
    )
