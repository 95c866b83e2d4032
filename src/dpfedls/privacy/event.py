"""What one round did to privacy, as data: no arithmetic here, accountants read it."""

from __future__ import annotations

import msgspec

from dpfedls.component import check_types
from dpfedls.errors import InputError
from dpfedls.sampling import FixedSizeSampling, Sampler


class RoundEvent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One noisy sum over a sampled cohort: M(D) = Σ_{j sampled} clip(u_j) + N(0, (z·clip_norm)²·I).

    ``noise_multiplier`` z is the standard deviation of the noise on the *sum* divided by the clip
    norm, for every sampler; zero means no noise and no privacy. Only accountants convert it to
    noise ÷ sensitivity (which is z/2 under replace-one).
    """

    sampler: Sampler
    num_clients: int
    noise_multiplier: float

    def __post_init__(self) -> None:
        check_types(self, "")
        if self.num_clients < 1:
            raise InputError(
                f"num_clients must be >= 1, got {self.num_clients}; nobody to train on"
            )
        if isinstance(self.sampler, FixedSizeSampling) and self.sampler.cohort > self.num_clients:
            raise InputError(
                f"sampler.cohort = {self.sampler.cohort} is larger than the population of "
                f"{self.num_clients} clients; lower the cohort or add clients"
            )
        if self.noise_multiplier != 0 and not 1e-9 <= self.noise_multiplier <= 1e9:
            raise InputError(
                f"noise_multiplier must be 0 (no privacy) or between 1e-9 and 1e9, got "
                f"{self.noise_multiplier:g}; 0.5 to 10 is customary"
            )

    @property
    def rate(self) -> float:
        """The probability that one given client takes part in the round."""
        return self.sampler.sampling_rate(self.num_clients)

    @property
    def noise_over_sensitivity(self) -> float:
        """Noise ÷ how far one person can move the sum; the only place that knows the factor 2."""
        return self.noise_multiplier / self.sampler.sensitivity_in_clip_norms
