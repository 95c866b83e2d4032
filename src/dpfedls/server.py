"""What the server does once the cohort has answered; simulation and deployment both end here."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpfedls.denoising import Denoiser
from dpfedls.errors import InputError, require_finite, require_share
from dpfedls.gaussian import gaussian_release
from dpfedls.parameters import Layout, Vector
from dpfedls.privacy.ledger import Ledger
from dpfedls.privacy.plan import PrivacyPlan
from dpfedls.randomness import Noise


@dataclass(frozen=True)
class ServerState:
    """All that one round hands to the next, and all of it public."""

    round: int  # how many rounds have been released
    params: Vector  # w^t
    average: Vector  # Σ a_s w^s so far, the output


@dataclass(frozen=True)
class Server:
    """The server's part of Algorithm 1.

    ``averaging`` r in [0, 1] weighs the iterates by a_t ∝ r^−t in the output: 0 is the last
    iterate, 1 the uniform average, r = 1 − μ_σ η̃ K / 2 the weights of the strongly convex theorem
    (Theorem 4), and 0.9, say, an exponential moving average. It is post-processing.
    """

    plan: PrivacyPlan
    denoiser: Denoiser
    layout: Layout
    ledger: Ledger
    rate: float = 1.0  # η_g
    averaging: float = 0.0

    def __post_init__(self) -> None:
        require_finite("server_rate", self.rate, "the paper uses 1")
        if isinstance(self.denoiser, type) or not callable(self.denoiser):
            raise InputError(
                f"denoiser = {self.denoiser!r} cannot be called with a release; give for example "
                "dpfedls.LaplacianSmoothing(strength=1.0)"
            )
        require_share("averaging", self.averaging, "0 is the last iterate, 1 the uniform average")

    def start(self, params: Vector) -> ServerState:
        """The state before the first round."""
        return ServerState(0, params, params)

    def finish_round(
        self, state: ServerState, total: Vector, noise: Noise, nonce: str
    ) -> ServerState:
        """From the sum of clipped updates to the next model."""
        self.ledger.spend(self.plan.round_event, state.round, nonce)  # spend first, release second
        release = gaussian_release(total, self.plan, noise, self.layout)  # ── privacy boundary ──
        direction = self.denoiser(release)  # post-processing costs no privacy
        if direction.shape != release.value.shape:
            raise InputError(
                f"the denoiser made a direction of shape {tuple(direction.shape)} of a release of "
                f"shape {tuple(release.value.shape)}; it must keep the shape"
            )
        params = state.params + self.rate * direction
        average = state.average.lerp(params, newest_weight(self.averaging, state.round + 1))
        return ServerState(state.round + 1, params, average)


def newest_weight(r: float, t: int) -> float:
    """The share of w^t in Σ_{s≤t} a_s w^s ÷ Σ_{s≤t} a_s, a_s ∝ r^−s: so no history is kept."""
    if r == 0:
        return 1.0
    if r == 1:
        return 1.0 / (t + 1)
    return float((1 - r) / -np.expm1((t + 1) * np.log(r)))
