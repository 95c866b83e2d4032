"""The promise of a run: everything its privacy depends on, in one frozen value."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from dpfedls.component import check_types
from dpfedls.errors import InputError
from dpfedls.privacy import accountants
from dpfedls.privacy.accountants import AccountantName, Spent
from dpfedls.privacy.clipping import AdaptiveClipping, Clipping, FixedClipping
from dpfedls.privacy.event import RoundEvent
from dpfedls.sampling import FixedSizeSampling, Relation, Sampler

if TYPE_CHECKING:
    from dp_accounting import DpEvent


class PrivacyPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sampling, clipping, noise, rounds and δ; ε follows from them and from nothing else.

    ``clip_norm`` is a number, or AdaptiveClipping. ``noise_multiplier`` is the standard deviation
    of the noise on the *sum* divided by what one client may contribute to it: the clip norm, or
    1.01 times that where the norm adapts; None until chosen. ``delta`` is num_clients ** -1.1 where
    absent.
    Guarantees: frozen and checked when made, so no two numbers in it can disagree.
    """

    sampler: Sampler
    num_clients: int
    rounds: int
    clip_norm: float | AdaptiveClipping
    noise_multiplier: float | None = None
    delta: float | None = None

    def __post_init__(self) -> None:
        check_types(self, "")
        if not 1 <= self.rounds <= accountants.MOST_ROUNDS:
            raise InputError(
                f"rounds must be >= 1 and at most a million, got {self.rounds}; a run trains at "
                "least once, and noise cannot cover more"
            )
        # The event checks the population, the cohort and the noise.
        RoundEvent(
            sampler=self.sampler,
            num_clients=self.num_clients,
            noise_multiplier=0.0 if self.noise_multiplier is None else self.noise_multiplier,
        )
        if math.isinf(self.clipping.start) and self.noise_multiplier != 0:
            raise InputError(
                "clip_norm = inf means no clipping, so no amount of noise gives privacy; "
                "give a finite clip_norm, or noise_multiplier=0 for plain federated averaging"
            )
        if self.delta is None:
            msgspec.structs.force_setattr(self, "delta", accountants.usual_delta(self.num_clients))
        accountants.check_delta(self.target_delta)
        if self.noise_multiplier != 0:
            accountants.check_promise(self.target_delta, self.num_clients)

    @property
    def target_delta(self) -> float:
        """δ, which is always there once the plan is made."""
        assert self.delta is not None
        return self.delta

    @property
    def noise(self) -> float:
        """The noise multiplier, once chosen."""
        if self.noise_multiplier is None:
            raise InputError(
                "this plan has no noise yet: give noise_multiplier=… or call .calibrated(epsilon=…)"
            )
        return self.noise_multiplier

    @property
    def relation(self) -> Relation:
        """What neighbouring populations are: it follows from the sampler."""
        return self.sampler.relation

    @property
    def clipping(self) -> Clipping:
        """How each round's clip norm is chosen."""
        if isinstance(self.clip_norm, AdaptiveClipping):
            return self.clip_norm
        return FixedClipping(norm=self.clip_norm)

    def sensitivity(self, clip_norm: float) -> float:
        """How far one person can move the sum of a round with that clip norm."""
        return self.clipping.contribution(clip_norm) * self.sampler.sensitivity_in_clip_norms

    @property
    def expected_cohort(self) -> float:
        """The public denominator of every average."""
        return self.sampler.expected_cohort(self.num_clients)

    @property
    def is_private(self) -> bool:
        """Whether any noise is added at all."""
        return self.noise > 0

    @property
    def answer_noise(self) -> float:
        """The standard deviation in each number of a round's mean answer of norm 1."""
        return self.noise_stddev(1.0) / self.expected_cohort

    def noise_stddev(self, clip_norm: float) -> float:
        """Standard deviation of the noise on each coordinate of the sum, in a round of that norm.

        It follows the norm that clipped, never the next one.
        """
        return self.noise * self.clipping.contribution(clip_norm) if self.is_private else 0.0

    @property
    def round_event(self) -> RoundEvent:
        """What one round does to privacy."""
        return RoundEvent(
            sampler=self.sampler, num_clients=self.num_clients, noise_multiplier=self.noise
        )

    @property
    def event(self) -> DpEvent:
        """The whole run for dp-accounting; its multiplier is ours, noise on the sum ÷ clip norm.

        dp-accounting's RDP accountant reads a multiplier as noise ÷ sensitivity instead: under
        replace-one halve it there, or use ``epsilon("rdp")``, which does.
        """
        import dp_accounting

        gaussian = dp_accounting.GaussianDpEvent(self.noise)
        if isinstance(self.sampler, FixedSizeSampling):
            one = dp_accounting.SampledWithoutReplacementDpEvent(
                self.num_clients, self.sampler.cohort, gaussian
            )
        else:
            one = dp_accounting.PoissonSampledDpEvent(self.sampler.rate, gaussian)
        return dp_accounting.SelfComposedDpEvent(one, self.rounds)

    def spent(self, rounds: int) -> Spent:
        """What the first ``rounds`` rounds do to privacy: everything that says an ε reads it here.

        A mechanism whose rounds do not cost the same, or not one by one, answers otherwise here.
        """
        return [(self.round_event, rounds)]

    def epsilon(self, accountant: AccountantName = "pld", rounds: int | None = None) -> float:
        """ε of the whole run, or of its first ``rounds``."""
        spent = self.spent(self.rounds if rounds is None else rounds)
        return accountants.epsilon(spent, self.target_delta, accountant)

    def calibrated(self, epsilon: float, accountant: AccountantName = "pld") -> PrivacyPlan:
        """The same plan with the noise that spends at most ``epsilon`` over all rounds."""
        if accountant == "paper":
            raise InputError(
                "accountant 'paper' repeats how published tables were computed and is no promise "
                "for fixed-size sampling; calibrate by 'pld', 'rdp' or 'closed-form'"
            )
        noise = accountants.noise_multiplier_for(
            epsilon,
            sampler=self.sampler,
            num_clients=self.num_clients,
            rounds=self.rounds,
            delta=self.target_delta,
            accountant=accountant,
        )
        return msgspec.structs.replace(self, noise_multiplier=noise)
