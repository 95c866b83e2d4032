"""Theorems 1 and 2, Lemmas 2 and 3, Eq. (T) of arXiv:2005.00218.

Golden values: the paper's MNIST settings, computed from the printed formulas with a grid of 0.0005
over λ, November 2026; ν is the noise on the sum, clip norm 0.3.
"""

from __future__ import annotations

import itertools
import math
from contextlib import suppress

import numpy as np
import pytest

from dpfedls.errors import InputError
from dpfedls.privacy import RoundEvent, epsilon, noise_multiplier_for, rounds_for
from dpfedls.privacy.accounting.closed_form import (
    LEMMAS,
    Infeasible,
    closed_form_epsilon,
    closed_form_noise,
    closed_form_rounds,
    confirm,
    lemma_for,
    order_allowed,
)
from dpfedls.privacy.accounting.rdp import ORDERS
from dpfedls.sampling import FixedSizeSampling, PoissonSampling, Sampler

FIXED, POISSON = FixedSizeSampling(cohort=50), PoissonSampling(rate=0.05)


def event(sampler: Sampler, clients: int, noise: float) -> RoundEvent:
    return RoundEvent(sampler=sampler, num_clients=clients, noise_multiplier=noise)


@pytest.mark.parametrize(
    ("sampler", "clients", "target", "stddev", "lambda_"),
    [
        (FIXED, 1000, 6.0, 0.8080, 0.057),
        (FIXED, 1000, 7.0, 0.6650, 0.066),
        (FIXED, 1000, 8.0, 0.5840, 0.070),
        (FIXED, 1000, 9.0, 0.5260, 0.073),
        (POISSON, 500, 6.0, 0.3425, 0.042),
        (POISSON, 500, 7.0, 0.2928, 0.045),
        (POISSON, 500, 8.0, 0.2610, 0.047),
        (POISSON, 500, 9.0, 0.2370, 0.048),
    ],
)
def test_golden_noise(
    sampler: Sampler, clients: int, target: float, stddev: float, lambda_: float
) -> None:
    found = closed_form_noise(
        target, sampler=sampler, num_clients=clients, rounds=30, delta=clients**-1.1
    )
    assert found.noise_multiplier * 0.3 == pytest.approx(stddev, abs=1e-4)
    assert found.lambda_ == pytest.approx(lambda_, abs=6e-4)
    assert found.alpha == pytest.approx(1 + math.log(clients**1.1) / ((1 - found.lambda_) * target))
    # Confirmed with much room, and used through the common door.
    one = event(sampler, clients, found.noise_multiplier)
    assert epsilon([(one, 30)], clients**-1.1) < target / 3
    assert found.noise_multiplier == noise_multiplier_for(
        target,
        sampler=sampler,
        num_clients=clients,
        rounds=30,
        delta=clients**-1.1,
        accountant="closed-form",
    )


def test_golden_tight_epsilon_of_theorem_2() -> None:
    """At ε 6 Theorem 2 asks for ν ÷ clip = 1.142, whose PLD ε is 0.91; PLD needs only 0.53."""
    found = closed_form_noise(6.0, sampler=POISSON, num_clients=500, rounds=30, delta=500**-1.1)
    assert found.noise_multiplier == pytest.approx(1.142, abs=1e-3)
    spent = [(event(POISSON, 500, found.noise_multiplier), 30)]
    assert epsilon(spent, 500**-1.1) == pytest.approx(0.91, abs=5e-3)
    tight = noise_multiplier_for(6.0, sampler=POISSON, num_clients=500, rounds=30, delta=500**-1.1)
    assert tight == pytest.approx(0.53, abs=5e-3)


def printed_noise(target: float, clients: int, factor: float, share: float, least: float) -> float:
    """The least ν of Theorem 1 (factor 14) or 2 (factor 2), line by line, at the MNIST settings."""
    rate, clip, rounds, log_delta = 0.05, 0.3, 30, 1.1 * math.log(clients)
    best = math.inf
    for lam in np.arange(1, 2000) * 0.0005:
        inside = factor * rounds / lam * (log_delta / (1 - lam) + target)
        stddev = rate * clip / target * math.sqrt(inside)
        square = stddev**2 / clip**2 * share  # ν²/4C² or ν²/C²
        alpha = log_delta / ((1 - lam) * target) + 1
        most = 2 / 3 * square * math.log(1 / (rate * alpha * (1 + square)))
        if square >= least and alpha - 1 <= most:
            best = min(best, stddev)
    return best


@pytest.mark.parametrize("target", [6.0, 9.0])
def test_printed_formulas(target: float) -> None:
    """Our common form in z = noise ÷ sensitivity, against both theorems as they are printed."""
    for sampler, clients, *printed in (
        (FIXED, 1000, 14.0, 1 / 4, 2 / 3),
        (POISSON, 500, 2.0, 1.0, 5 / 9),
    ):
        found = closed_form_noise(
            target, sampler=sampler, num_clients=clients, rounds=30, delta=clients**-1.1
        )
        expected = printed_noise(target, clients, *printed)
        assert found.noise_multiplier * 0.3 == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("sampler", "clients"), [(FIXED, 1000), (POISSON, 500)])
def test_epsilon_and_rounds_invert_the_noise(sampler: Sampler, clients: int) -> None:
    delta = clients**-1.1
    for target in (6.0, 7.5, 9.0):
        noise = closed_form_noise(
            target, sampler=sampler, num_clients=clients, rounds=30, delta=delta
        ).noise_multiplier
        one = event(sampler, clients, noise)
        cost = closed_form_epsilon(one, rounds=30, delta=delta)
        assert 0.99 * target < cost <= target * (1 + 1e-12)
        assert epsilon([(one, 30)], delta, "closed-form") == cost
        most = closed_form_rounds(target, event=one, delta=delta)
        assert 30 <= most <= 34
        assert rounds_for(target, event=one, delta=delta, accountant="closed-form") == most
        assert closed_form_epsilon(one, rounds=most, delta=delta) <= target * (1 + 1e-3)


def test_infeasible_says_so_and_names_the_remedy() -> None:
    """Below ε ≈ 5 no λ satisfies the conditions at the MNIST settings."""
    for sampler, clients in ((FIXED, 1000), (POISSON, 500)):
        with pytest.raises(InputError, match=r"no λ .* use accountant 'pld'"):
            closed_form_noise(
                4.0, sampler=sampler, num_clients=clients, rounds=30, delta=clients**-1.1
            )
        with pytest.raises(InputError, match="use accountant 'pld'"):
            closed_form_epsilon(event(sampler, clients, 0.3), rounds=30, delta=1e-4)
        with pytest.raises(InputError, match="use accountant 'pld'"):
            closed_form_rounds(4.0, event=event(sampler, clients, 0.3), delta=1e-4)
    with pytest.raises(InputError, match="use accountant 'pld'"):
        closed_form_epsilon(event(PoissonSampling(rate=1.0), 10, 2.0), rounds=1, delta=1e-4)


def test_unconfirmed_noise_is_refused() -> None:
    with pytest.raises(InputError, match=r"PLD accountant finds .*use accountant 'pld'"):
        confirm(event(POISSON, 500, 1.0), 30, 1e-4, 0.5)


def test_lemmas_hold_at_integer_orders() -> None:
    """Against the numerical RDP they simplify: Mironov et al. 2019 and Wang et al. 2019."""
    from dpfedls.privacy.accounting.rdp import _rdp  # pyright: ignore[reportPrivateUsage]

    checked = 0
    for rate, noise in itertools.product((0.001, 0.01, 0.05), (0.82, 1.6, 3.0, 8.0)):
        cohort = FixedSizeSampling(cohort=round(1000 * rate))
        for sampler in (cohort, PoissonSampling(rate=rate)):
            factor, least_square = lemma_for(sampler)
            curve = _rdp(event(sampler, 1000, noise), noise)
            for order, exact in zip(map(float, ORDERS), curve, strict=True):
                allowed = noise**2 >= least_square and order_allowed(order, rate, noise**2)
                if allowed and order > 1 and order.is_integer():
                    assert exact <= factor * rate**2 * order / noise**2 * (1 + 1e-9)
                    checked += 1
    assert checked > 60


def test_the_lemmas_are_as_printed() -> None:
    assert LEMMAS == {"fixed": (3.5, 2 / 3), "poisson": (2.0, 5 / 9)}
    # α - 1 <= (2/3)·z²·log(1/(q·α·(1 + z²))): 3.7 <= 3.86, and 4.0 > 3.70
    assert order_allowed(4.7, 0.01, 4.0)
    assert not order_allowed(5.0, 0.01, 4.0)


def test_every_feasible_noise_is_confirmed_on_a_grid() -> None:
    """Orders are fractional here, where the printed proof is silent: yet PLD agrees, 40 points."""
    found = 0
    for sampling, rate, rounds, target in itertools.product(
        ("fixed", "poisson"), (0.002, 0.01, 0.05), (1, 30, 300), (1.0, 3.0, 8.0, 20.0)
    ):
        sampler = FixedSizeSampling(cohort=round(rate * 1000))
        if sampling == "poisson":
            sampler = PoissonSampling(rate=rate)
        with suppress(Infeasible):
            closed_form_noise(target, sampler=sampler, num_clients=1000, rounds=rounds, delta=1e-4)
            found += 1
    assert found >= 10
