"""From rounds to ε, and from ε to noise or rounds: four accountants behind one door.

``pld`` is the default and the least bound we can prove, never above ``rdp``; ``closed-form`` is
Theorems 1 and 2 of arXiv:2005.00218; ``paper`` repeats how that paper's tables were computed.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Sequence
from numbers import Real
from typing import Literal, TypeAlias, get_args

from dpfedls.errors import InputError, unknown
from dpfedls.privacy.accounting import pld
from dpfedls.privacy.accounting.closed_form import (
    closed_form_epsilon,
    closed_form_noise,
    closed_form_rounds,
)
from dpfedls.privacy.accounting.gaussian import SMALLEST_DELTA, gaussian_mu
from dpfedls.privacy.accounting.rdp import paper_epsilon, rdp_epsilon
from dpfedls.privacy.accounting.search import noise_reaching, rounds_within
from dpfedls.privacy.accounting.spent import Spent, merged
from dpfedls.privacy.event import RoundEvent
from dpfedls.sampling import Sampler

AccountantName: TypeAlias = Literal["pld", "rdp", "closed-form", "paper"]

MOST_ROUNDS = 1_000_000  # rounds_for looks no further
MOST_EXPOSED = 10.0  # people whom a plan's δ may give away whole; more is no promise


def epsilon(spent: Spent, delta: float, accountant: AccountantName = "pld") -> float:
    """The ε that these rounds, each (event, how many times), have cost at ``delta``.

    Guarantees: ``pld`` and ``rdp`` are upper bounds, under adaptive composition of unlike rounds
    too; no rounds cost 0; a round without noise costs infinity.
    """
    check_delta(delta)
    check_accountant(accountant)
    rounds = merged(spent)
    if not rounds:
        return 0.0
    if any(event.noise_multiplier == 0 for event, _ in rounds):
        return math.inf
    if accountant == "closed-form":
        if len(rounds) > 1:
            raise InputError(
                "the closed form covers equal rounds only, and these differ in sampling or noise; "
                "use accountant 'pld'"
            )
        return closed_form_epsilon(rounds[0][0], rounds=rounds[0][1], delta=delta)
    by = {"pld": pld.epsilon_at, "rdp": rdp_epsilon, "paper": paper_epsilon}[accountant]
    return by(rounds, delta)


def profile(spent: Spent, deltas: Sequence[float]) -> list[float]:
    """ε at each δ by ``pld``: points of the privacy curve, which never rises with δ."""
    for delta in deltas:
        check_delta(delta)
    return pld.epsilons_at(spent, deltas)


def delta_at(spent: Spent, epsilon: float) -> float:
    """The δ that these rounds have cost at ``epsilon``, by PLD."""
    return pld.delta_at(spent, epsilon)


def noise_multiplier_for(
    target: float,
    *,
    sampler: Sampler,
    num_clients: int,
    rounds: int,
    delta: float,
    accountant: AccountantName = "pld",
) -> float:
    """A noise multiplier whose ε is at most 0.1 % below ``target``, and never above it.

    The closed form gives the noise of its theorem, whose own ε may lie further below.
    """
    check_delta(delta)
    check_epsilon(target)
    check_accountant(accountant)
    if rounds < 1:
        raise InputError(f"rounds must be >= 1, got {rounds}; a run trains at least once")
    if accountant == "closed-form":
        return closed_form_noise(
            target, sampler=sampler, num_clients=num_clients, rounds=rounds, delta=delta
        ).noise_multiplier

    def cost(noise: float) -> float:
        event = RoundEvent(sampler=sampler, num_clients=num_clients, noise_multiplier=noise)
        return epsilon([(event, rounds)], delta, accountant)

    rate, mu = sampler.sampling_rate(num_clients), gaussian_mu(target, delta) / math.sqrt(rounds)
    # Many rounds: mu = q·√(e^(1/z²) - 1) (Bu et al. 2020); exactly mu = 1/z at q = 1.
    guess = 1 / mu if rate == 1 else 1 / math.sqrt(math.log1p((mu / rate) ** 2))
    return noise_reaching(cost, target, guess * sampler.sensitivity_in_clip_norms)


def rounds_for(
    target: float, *, event: RoundEvent, delta: float, accountant: AccountantName = "pld"
) -> int:
    """The most such rounds, up to a million, whose ε stays at or below ``target``; 0 if none."""
    check_delta(delta)
    check_epsilon(target)
    check_accountant(accountant)
    if event.noise_multiplier == 0:
        return 0
    if accountant == "closed-form":
        return closed_form_rounds(target, event=event, delta=delta)
    square = min(1 / event.noise_over_sensitivity**2, 500.0)
    round_mu = math.sqrt(square if event.rate == 1 else event.rate**2 * math.expm1(square))
    guess = int(min((gaussian_mu(target, delta) / round_mu) ** 2, MOST_ROUNDS))
    return rounds_within(
        lambda count: epsilon([(event, count)], delta, accountant), target, guess, MOST_ROUNDS
    )


def usual_delta(num_clients: int) -> float:
    """δ where none is given."""
    if num_clients == 1:
        raise InputError("delta must be given for a population of one, where 1 ** -1.1 is 1")
    return num_clients**-1.1


def check_delta(delta: float) -> None:
    """Refuse a δ that is not a probability strictly between 0 and 1, or too small for a float."""
    if not SMALLEST_DELTA <= delta < 1:
        raise InputError(
            f"delta must be in (0, 1) and at least {SMALLEST_DELTA:g}, got {delta:g}; "
            "num_clients ** -1.1 is customary"
        )


@functools.lru_cache(maxsize=64)  # so that one promise is warned of once
def check_promise(delta: float, num_clients: int) -> None:
    """Refuse a δ above 10/N and warn from 1/N on: it lets δ·N of N people be given away whole."""
    if delta * num_clients > MOST_EXPOSED:
        raise InputError(
            f"delta = {delta:g} promises nothing to {num_clients} people: a mechanism that "
            f"publishes {delta * num_clients:.0f} people's data would satisfy it; choose at most "
            f"{MOST_EXPOSED / num_clients:g}, num_clients ** -1.1 is customary"
        )
    if delta * num_clients >= 1:
        logging.getLogger("dpfedls").warning(
            "delta = %g is not below 1/num_clients = %g: a mechanism that publishes the data of "
            "one random person would satisfy it; num_clients ** -1.1 is customary",
            delta,
            1 / num_clients,
        )


def check_epsilon(target: float) -> None:
    """Refuse a target ε that no noise, or any noise, would meet."""
    if not isinstance(target, Real) or isinstance(target, bool) or not 1e-9 <= target <= 1e5:
        raise InputError(
            f"epsilon must be a number between 1e-9 and 1e5, got {target!r}; 1 to 10 is customary"
        )


def check_accountant(name: str) -> None:
    """Refuse a name that is none of the four."""
    if name not in get_args(AccountantName):
        raise unknown("accountant", name, get_args(AccountantName))
