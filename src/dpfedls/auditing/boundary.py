"""The privacy boundary, recomputed: from what people sent and the noise drawn to the release.

Deterministic, so it has no false alarms. Clipping, sum, noise level and denominator are written
down here a second time, in NumPy and float64, from the numbers of the plan.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np
import torch

from dpfedls.auditing.instruments import Record, Round
from dpfedls.parameters import Vector
from dpfedls.privacy.clipping import AdaptiveClipping
from dpfedls.privacy.plan import PrivacyPlan
from dpfedls.sampling import FixedSizeSampling

_JOINT = 1.01  # update and indicator together, in clip norms
_FLOAT32 = 2.0**-24
_ON_THE_SPHERE = 1e-3


class Seen(msgspec.Struct, frozen=True):
    """What the rounds showed."""

    problems: list[str]
    noise_multiplier: float  # the least that was added: noise on the sum ÷ contribution
    noise: np.ndarray  # rounds × coordinates, in units of what the plan promises


def boundary(plan: PrivacyPlan, record: Record, absent: tuple[int, ...] = ()) -> Seen:
    """Every round of a record against the plan."""
    problems: list[str] = []
    multipliers, noise = [math.inf], []
    for seen in record:
        if not (len(seen.releases) == len(seen.totals) == len(seen.draws) == 1):
            problems.append(
                f"a round drew noise {len(seen.draws)} times for {len(seen.totals)} sums and "
                f"{len(seen.releases)} releases; each release has noise of its own"
            )
            continue
        problems += _round(plan, seen, absent)
        added = _added(plan, seen)
        multipliers.append(_slope(added, seen) / _contribution(plan, seen.bounds[0].norm))
        noise.append(added / (plan.noise * _contribution(plan, seen.bounds[0].norm)))
    if not noise:
        noise = [np.zeros(1)]
    least = min(multipliers) if np.isfinite(multipliers[1:]).all() else 0.0
    least = least if math.isfinite(least) else 0.0
    return Seen(list(dict.fromkeys(problems)), least, np.concatenate([n.ravel() for n in noise]))


def fresh_problems(record: Record) -> list[str]:
    """No value of any round's noise comes again, in another round or coordinate."""
    draws = [drawn.cpu().numpy().ravel() for seen in record for drawn in seen.draws]
    values = np.abs(np.concatenate([np.empty(0), *draws]))
    # Doubles near 1 are 1e-16 apart: of n, about n²·1e-17 pairs are equal by chance.
    if len(values) - len(np.unique(values)) > int(1e-13 * len(values) ** 2):
        return ["noise comes again: each release has noise of its own"]
    return []


def contributions(plan: PrivacyPlan, seen: Round) -> np.ndarray:
    """What each person may add to the sum, one row each: the update clipped, then yes or no."""
    norm = seen.bounds[0].norm
    rows = np.concatenate([row.double().cpu().numpy() for row in seen.rows] or [np.empty((0, 0))])
    with np.errstate(all="ignore"):
        lengths = np.linalg.norm(rows, axis=1)
        clipped = rows * np.minimum(1.0, norm / np.maximum(lengths, 1e-300))[:, None]
    clipped[~np.isfinite(lengths)] = 0.0
    if not isinstance(plan.clip_norm, AdaptiveClipping):
        return clipped
    quantile = plan.clip_norm.quantile
    asked = seen.bounds[0].earlier is not None
    yes = (_votes(seen) if asked else lengths < norm * (1 - _ON_THE_SPHERE)) - quantile
    yes[lengths == 0] = 0.0  # whoever sends nothing has no length, and no vote
    return np.column_stack([clipped, _indicator(norm, quantile) * yes])


def _votes(seen: Round) -> np.ndarray:
    """Who has less loss with the model than with the earlier one, of those who trained.

    Whoever has no loss, since their samples cannot be had, says no.
    """
    now, then = (_losses(seen, params) for params in (seen.start, seen.bounds[0].earlier))
    return np.array([now.get(j, math.nan) < then.get(j, math.nan) for j in seen.trained.tolist()])


def _losses(seen: Round, params: Vector | None) -> dict[int, float]:
    return {
        j: loss
        for given, clients, losses in seen.losses
        if params is not None and torch.equal(given, params)
        for j, loss in zip(clients.tolist(), losses.tolist(), strict=True)
    }


def expected_total(plan: PrivacyPlan, seen: Round) -> np.ndarray:
    """The sum of what each person may add."""
    if not seen.rows:
        return np.zeros(len(seen.totals[0]))
    return contributions(plan, seen).sum(axis=0)


def public_cohort(plan: PrivacyPlan) -> float:
    """The denominator, from the sampler's own numbers."""
    if isinstance(plan.sampler, FixedSizeSampling):
        return float(plan.sampler.cohort)
    return plan.sampler.rate * plan.num_clients


def _contribution(plan: PrivacyPlan, norm: float) -> float:
    return norm * (_JOINT if isinstance(plan.clip_norm, AdaptiveClipping) else 1.0)


def _indicator(norm: float, quantile: float) -> float:
    return norm * math.sqrt(_JOINT**2 - 1) / max(quantile, 1 - quantile)


def released(plan: PrivacyPlan, seen: Round) -> np.ndarray:
    """The release as a noisy sum: times the public cohort, the indicator's share undone."""
    release, cohort = seen.releases[0], public_cohort(plan)
    noisy = release.value.double().cpu().numpy() * cohort
    if release.inside is None:
        return noisy
    quantile = plan.clipping.quantile
    share = (release.inside - quantile) * _indicator(release.clip_norm, quantile)
    return np.append(noisy, share * cohort)


def _added(plan: PrivacyPlan, seen: Round) -> np.ndarray:
    """The noise that the release really carries."""
    noisy, total = released(plan, seen), expected_total(plan, seen)
    return noisy - total if noisy.shape == total.shape else np.zeros(len(noisy))


def _slope(added: np.ndarray, seen: Round) -> float:
    drawn = seen.draws[0].cpu().numpy()
    if drawn.shape != added.shape:
        return 0.0
    return float(drawn @ added / max(float(drawn @ drawn), 1e-300))


def _round(plan: PrivacyPlan, seen: Round, absent: tuple[int, ...]) -> list[str]:
    problems, release, bound = [], seen.releases[0], seen.bounds[0]
    norm, total = bound.norm, seen.totals[0]
    here = seen.cohort[~np.isin(seen.cohort, absent)]
    if not np.array_equal(np.sort(seen.trained), here):
        problems.append("those who trained are not the cohort, each of them once")
        return problems
    if str(total.dtype) != "torch.float64" or str(seen.draws[0].dtype) != "torch.float64":
        problems.append("sum and noise do not meet in float64")
    expected = expected_total(plan, seen)
    if expected.shape != tuple(total.shape) or seen.draws[0].shape != total.shape:
        return [*problems, "sum, noise and contributions do not have the same coordinates"]
    # Clipping aims four units below the norm and rounds rows to float32; whoever is inside the
    # ball is summed as they are.
    rows = contributions(plan, seen) if seen.rows else np.zeros((0, len(expected)))
    lengths = np.concatenate(
        [np.linalg.norm(row.double().cpu().numpy(), axis=1) for row in seen.rows] or [np.zeros(0)]
    )
    clipped = ~(lengths <= norm)
    room = 16 * _FLOAT32 * np.abs(rows[clipped]).sum(axis=0) + 1e-13 * np.abs(rows).sum(axis=0)
    summed = total.cpu().numpy()
    if not (np.abs(summed - expected) <= room + 1e-300).all():
        problems.append("the sum is not that of the clipped updates, each with weight one")
    stddev = plan.noise * _contribution(plan, norm)
    noisy = expected + stddev * seen.draws[0].cpu().numpy()
    # Half a unit in the last place of the release's float32, and the sum's room as above.
    cohort = public_cohort(plan)
    unit = np.spacing(np.abs(noisy / cohort).astype(np.float32)).astype(np.float64)
    room = room + 0.5001 * cohort * unit + 1e-15 * np.abs(noisy)
    if len(noisy) > len(release.value):
        whole = _indicator(norm, plan.clipping.quantile) * cohort
        unit = float(np.spacing(np.float32(abs(noisy[-1] / whole))))
        room[-1] = 0.5001 * unit * whole + 1e-12 * (abs(noisy[-1]) + whole)
        share = (release.inside or 0.0) - plan.clipping.quantile
        if abs(share - float(np.float32(share))) > 1e-15:
            problems.append("the noisy count leaves with low bits that float32 does not have")
    found = released(plan, seen)
    if found.shape != noisy.shape or not (np.abs(found - noisy) <= room).all():
        problems.append(
            "the release is not (sum of clipped updates + noise of the plan) ÷ expected cohort"
        )
    stated = (release.noise_stddev * public_cohort(plan), release.clip_norm, release.round)
    if not np.allclose(stated, (stddev, norm, seen.number), rtol=1e-9):
        problems.append("a release does not state its own noise, clip norm or round")
    return problems
