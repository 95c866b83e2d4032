"""Privacy: the plan of a run, what its rounds cost, and the accountants that say so."""

from dpfedls.privacy.accountants import (
    AccountantName,
    Spent,
    delta_at,
    epsilon,
    noise_multiplier_for,
    profile,
    rounds_for,
)
from dpfedls.privacy.event import RoundEvent
from dpfedls.privacy.plan import PrivacyPlan

__all__ = [
    "AccountantName",
    "PrivacyPlan",
    "RoundEvent",
    "Spent",
    "delta_at",
    "epsilon",
    "noise_multiplier_for",
    "profile",
    "rounds_for",
]
