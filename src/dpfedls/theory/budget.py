"""Theorem 1 read three ways: noise for given rounds, rounds for given noise, Theorem 3's rounds.

The theorem leaves λ, the share of ε that the Rényi divergence takes, free in (0, 1) as long as its
two conditions hold. A grid of λ is searched, as the authors do; where no λ meets the conditions the
best λ without them is used, and the conditions say that nothing is proved there.
"""

from __future__ import annotations

import math
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpfedls.errors import InputError
from dpfedls.theory.convergence import Condition, require_count, require_finite

Floats: TypeAlias = NDArray[np.float64]

LAMBDAS: Floats = np.arange(0.0005, 0.99975, 0.0005, dtype=np.float64)


class Budget(NamedTuple):
    """Rounds and noise that Theorem 1 ties to (ε, δ), with the λ that ties them."""

    rounds: int
    noise_multiplier: float  # ν₁
    lambda_: float
    alpha: float
    conditions: tuple[Condition, ...]


def round_constant(lambda_: float) -> float:
    """C_0 = (14/λ)(1 + 1/(1 − λ)) of Theorem 3; least at λ = 2 − √2, where it is 14(3 + 2√2)."""
    return 14 / lambda_ * (1 + 1 / (1 - lambda_))


def settle(
    epsilon: float,
    delta: float,
    *,
    clients: int,
    cohort: int,
    lipschitz: float = 1.0,
    rounds: int | None = None,
    noise_multiplier: float | None = None,
    lambda_: float | None = None,
) -> Budget:
    """The missing one of rounds and noise; both missing, the rounds of Theorem 3 and their noise.

    Theorem 1 then claims (ε, δ)-DP under replacing one client, if the conditions hold. Its lemma
    sums over integer orders while α is fractional: ``dpfedls.privacy`` confirms noise by PLD.
    """
    _check(epsilon, delta, lambda_, rounds, noise_multiplier)
    require_finite("lipschitz", lipschitz, "it bounds gradients")
    for name, count in (("clients", clients), ("cohort", cohort)):
        require_count(name, count)
    grid = LAMBDAS if lambda_ is None else np.array([lambda_])
    rate, log_delta = cohort / clients, -math.log(delta)
    # Eq. (4) squared is linear in T: ν₁² = T · cost.
    cost = 14 * rate**2 / (grid * epsilon**2) * (log_delta / (1 - grid) + epsilon)
    if rounds is not None:
        counts = np.full_like(grid, rounds)
    elif noise_multiplier is not None:
        counts = np.floor(noise_multiplier**2 / cost * (1 + 1e-12))  # Eq. (6)
    else:
        constants = 14 / grid * (1 + 1 / (1 - grid))  # C_0 for every λ
        counts = np.floor((epsilon * clients / lipschitz) ** 2 / (constants * cohort * log_delta))
    squares = counts * cost if noise_multiplier is None else np.full_like(grid, noise_multiplier**2)
    alphas = 1 + log_delta / ((1 - grid) * epsilon)
    best = _choose(counts, squares, _allowed(alphas, rate, squares))
    if counts[best] < 1:
        raise InputError(f"epsilon = {epsilon:g} does not pay for one round; raise it or the noise")
    said = _conditions(float(alphas[best]), rate, float(squares[best]))
    return Budget(
        int(counts[best]),
        math.sqrt(squares[best]),
        float(grid[best]),
        float(alphas[best]),
        (*said, Condition(f"log(1/δ) ≥ ε: {log_delta:.4g}", log_delta >= epsilon)),
    )


def _choose(counts: Floats, squares: Floats, allowed: NDArray[np.bool_]) -> int:
    """The λ with the most rounds, then the least noise, among those allowed if there are any."""
    among = np.flatnonzero(allowed if allowed.any() else np.ones_like(allowed))
    return int(among[np.lexsort((squares[among], -counts[among]))[0]])


def _allowed(alphas: Floats, rate: float, squares: Floats) -> NDArray[np.bool_]:
    """Eqs. (38) and (39), the two conditions of Theorem 1, at noise ÷ sensitivity ν₁/2."""
    return (squares >= 8 / 3) & (alphas - 1 <= _largest(alphas, rate, squares))


def _largest(alpha: Floats | float, rate: float, square: Floats | float) -> Floats:
    """The right side of Eq. (39)."""
    alpha, square = np.asarray(alpha), np.asarray(square)
    return square / 6 * -np.log(rate * alpha * (1 + square / 4))


def _conditions(alpha: float, rate: float, square: float) -> tuple[Condition, Condition]:
    room = float(_largest(alpha, rate, square))
    return (
        Condition(f"ν₁² ≥ 8/3: {square:.4g}", square >= 8 / 3),
        Condition(
            f"α − 1 ≤ (ν₁²/6) log(1/(τα(1 + ν₁²/4))): {alpha - 1:.4g} against {room:.4g}",
            alpha - 1 <= room,
        ),
    )


def _check(
    epsilon: float,
    delta: float,
    lambda_: float | None,
    rounds: int | None,
    noise_multiplier: float | None,
) -> None:
    require_finite("epsilon", epsilon, "it is the privacy budget")
    if noise_multiplier is not None:
        require_finite("noise_multiplier", noise_multiplier, "without noise there is no privacy")
    if rounds is not None:
        require_count("rounds", rounds)
    for name, value in (("delta", delta), ("lambda", 0.5 if lambda_ is None else lambda_)):
        if not 0 < value < 1:
            raise InputError(f"{name} must be in (0, 1), got {value:g}; Theorem 1 asks for it")
    if lambda_ is not None and not 1e-9 <= lambda_ <= 1 - 1e-9:
        raise InputError(f"lambda = {lambda_!r} is so near 0 or 1 that the noise overflows")
    if rounds is not None and noise_multiplier is not None:
        raise InputError(
            "epsilon, rounds and noise_multiplier are one too many: Theorem 1 ties the third to "
            "the other two; leave one out"
        )
