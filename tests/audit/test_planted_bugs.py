"""Bugs that real systems have had, planted in the real code one at a time: the audit names each.

The audit checks properties and knows none of these bugs. Its false alarms: about three in ten
thousand audits. Simulated streams are seeded; deployed ones cannot be. The page lists what is not
in its reach, and what holds that instead.
"""

from __future__ import annotations

import importlib
from pathlib import Path

import planted_cohorts
import planted_leaks
import planted_noise
import planted_payments
import planted_sums
import pytest
from planting import FIXED, POISSON, people

from dpfedls import LaplacianSmoothing, PrivacyPlan
from dpfedls.auditing import noise as noise_module
from dpfedls.auditing.recipe import audit
from dpfedls.privacy.clipping import AdaptiveClipping
from dpfedls.runs.recipe import Recipe
from federations import local


def look(sampler=POISSON, trials=60, **changes):
    """One small audit; what it finds wrong."""
    promised = PrivacyPlan(
        sampler=sampler,
        num_clients=40,
        rounds=changes.pop("rounds", 4),
        clip_norm=changes.pop("clip_norm", 0.5),
        noise_multiplier=changes.pop("noise_multiplier", 1.0),
        delta=1e-2,
    )
    recipe = Recipe(
        task="given in Python",
        plan=promised,
        local=local(),
        engine="vmapped",
        averaging=0.7,
        block_size=5,
        denoiser=changes.pop("denoiser", LaplacianSmoothing(strength=1.0)),
        standardise=changes.pop("standardise", False),
        rescale=changes.pop("rescale", False),
        evaluate_every=changes.pop("evaluate_every", 1),
        seed=3,
    )
    return audit(recipe, people(), trials=trials)["problems"]


@pytest.fixture(autouse=True)
def _few_draws(monkeypatch):
    monkeypatch.setattr(noise_module, "DRAWS", 2**16)


PARTS = (planted_noise, planted_sums, planted_cohorts, planted_leaks, planted_payments)
BUGS = {name: bug for part in PARTS for name, bug in part.BUGS.items()}


@pytest.mark.parametrize("name", BUGS)
def test_the_audit_names_the_bug(name, monkeypatch):
    plant, word, given = BUGS[name]
    plant(monkeypatch)
    problems = look(**given)
    remembered = (planted_payments.epsilon_for_more_noise, planted_cohorts.half_sensitivity)
    if plant in remembered:  # what they cost is
        monkeypatch.undo()
        importlib.import_module("dpfedls.privacy.curve")._by_round.cache_clear()
        importlib.import_module("dpfedls.privacy.statement")._cost.cache_clear()
    assert any(word in text for text in problems), problems


@pytest.mark.parametrize(
    ("sampler", "given"),
    [
        (POISSON, {"evaluate_every": 3}),
        (FIXED, {"evaluate_every": 3}),
        (FIXED, {}),
        (POISSON, {"standardise": True}),
        (POISSON, planted_leaks.MEASURED),
        (FIXED, planted_leaks.MEASURED | {"clip_norm": AdaptiveClipping()}),
        (POISSON, planted_leaks.RESCALED),
        (FIXED, planted_leaks.MEASURED | planted_leaks.RESCALED | {"rounds": 8}),
        (POISSON, planted_leaks.RESCALED | {"clip_norm": AdaptiveClipping(floor=0.4)}),
    ],
)
def test_correct_code_raises_no_alarm(sampler, given):
    """False alarms: about 3e-4 each, in the deployed part only, since the rest is seeded."""
    assert look(sampler, **given) == []


def test_a_model_that_waits_for_its_floor_is_expected_to(monkeypatch):
    """With little noise in the first fortieth of the rounds; and one that does not is named."""
    waits = {"clip_norm": AdaptiveClipping(floor=0.4), "rounds": 40, "noise_multiplier": 0.15}
    assert look(**waits) == []
    monkeypatch.setattr(AdaptiveClipping, "waits", lambda *_: False)
    assert any("does not follow" in text for text in look(**waits))


def test_the_page_lists_every_planted_bug_and_no_other():
    page = (Path(__file__).parents[2] / "docs" / "privacy.md").read_text(encoding="utf-8")
    table = page.partition("### Planted bugs")[2]
    rows = [line for line in table.splitlines() if line.endswith("” |")]
    wanted = [f"| {name} | audit: “{word}” |" for name, (_, word, _) in BUGS.items()]
    assert rows == wanted
    assert f"plants each of these {len(BUGS)}" in table
