"""Who takes part in a round.

A sampler holds public numbers only. It also fixes what one person's presence means: the relation
between neighbouring populations, and with it how far one person can move the clipped sum.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpfedls.component import Component, check_types
from dpfedls.errors import InputError, require_fraction, require_positive

Indices: TypeAlias = NDArray[np.int64]
Relation: TypeAlias = Literal["add-or-remove-one", "replace-one"]


class PoissonSampling(Component, frozen=True, tag="poisson"):
    """Every client takes part with probability ``rate``, independently of all others.

    Guarantees: the number of participants is random and may be zero; neighbours differ by one
    client more or fewer, so one client moves a sum of clipped updates by at most the clip norm.
    """

    rate: float

    def __post_init__(self) -> None:
        check_types(self, "sampler.")
        require_fraction("sampler.rate", self.rate, "it is a probability; for everyone use 1.0")

    @property
    def relation(self) -> Relation:
        return "add-or-remove-one"

    @property
    def sensitivity_in_clip_norms(self) -> float:
        return 1.0

    def sampling_rate(self, num_clients: int) -> float:
        """The probability that one given client takes part."""
        return self.rate

    def expected_cohort(self, num_clients: int) -> float:
        """τN, the public denominator of every average."""
        return self.rate * num_clients

    def sample(self, num_clients: int, rng: np.random.Generator) -> Indices:
        """The cohort of one round, sorted.

        The gaps between participants are geometric, so the work grows with the cohort and not
        with the population.
        """
        if self.rate == 1.0:
            return np.arange(num_clients)
        expected = self.expected_cohort(num_clients)
        draws = int(expected + 6 * np.sqrt(expected) + 16)
        cohort = np.empty(0, dtype=np.int64)
        last = -1
        while last < num_clients:
            # Gaps beyond the population end the cohort; cut short, they cannot overflow.
            gaps = np.minimum(rng.geometric(self.rate, draws), num_clients + 1)
            positions = last + np.cumsum(gaps)
            cohort = np.concatenate([cohort, positions])
            last = int(positions[-1])
        return cohort[cohort < num_clients]


class FixedSizeSampling(Component, frozen=True, tag="fixed"):
    """``cohort`` distinct clients, every subset of that size equally likely.

    Guarantees: the number of participants is always ``cohort``; neighbours differ by one client
    replaced by another, so the sum of clipped updates moves by at most twice the clip norm.
    """

    cohort: int

    def __post_init__(self) -> None:
        check_types(self, "sampler.")
        require_positive("sampler.cohort", self.cohort, "a round needs at least one client")

    @property
    def relation(self) -> Relation:
        return "replace-one"

    @property
    def sensitivity_in_clip_norms(self) -> float:
        return 2.0

    def sampling_rate(self, num_clients: int) -> float:
        """The probability that one given client takes part."""
        return self.cohort / num_clients

    def expected_cohort(self, num_clients: int) -> float:
        """The cohort, the public denominator of every average."""
        return float(self.cohort)

    def sample(self, num_clients: int, rng: np.random.Generator) -> Indices:
        """The cohort of one round, sorted."""
        if self.cohort > num_clients:
            raise InputError(
                f"sampler.cohort = {self.cohort} is larger than the population of {num_clients} "
                "clients; lower the cohort or add clients"
            )
        return np.sort(rng.choice(num_clients, self.cohort, replace=False, shuffle=False))


Sampler: TypeAlias = PoissonSampling | FixedSizeSampling
