from __future__ import annotations

import math

import pytest

import dpfedls
from dpfedls import FixedSizeSampling
from dpfedls.privacy.curve import epsilon_by_round
from dpfedls.privacy.observers import Nodes
from dpfedls.privacy.statement import statement
from dpfedls.privacy.wording import text
from dpfedls.runs.jsonable import plain
from federations import linear_clients, local, plan, start_model


@pytest.mark.parametrize("sampler", [{}, {"sampler": FixedSizeSampling(cohort=5)}])
def test_the_statement_says_what_the_plan_costs(sampler):
    promised = plan(rounds=10, noise_multiplier=6.0, **sampler)
    facts = statement(promised, mode="simulation", ledger_head="abc")
    assert facts["epsilon"] == pytest.approx(promised.epsilon(), rel=1e-9)
    assert facts["relation"] == promised.relation
    assert facts["mechanism"]["sensitivity"] == promised.sensitivity(promised.clip_norm)
    costs = [point["epsilon"] for point in facts["curve"]]
    assert costs == sorted(costs)
    assert facts["epsilon_by_accountant"]["rdp"] >= facts["epsilon"]
    pair, four = facts["group_privacy"]
    assert pair["epsilon"] > 2 * facts["epsilon"]
    assert four["epsilon"] is None or four["epsilon"] > pair["epsilon"]


def test_mu_covers_the_curve():
    """The Gaussian of that mu loses at least as much at every point of the curve."""
    from dpfedls.privacy.accountants import gaussian_mu

    facts = statement(plan(rounds=10), mode="simulation")
    for point in facts["curve"]:
        if point["epsilon"] > 0:
            assert gaussian_mu(point["epsilon"], point["delta"]) <= facts["mu"] * (1 + 1e-9)


def test_one_page_of_text_says_what_matters():
    page = text(statement(plan(), mode="simulation", rounds_paid=3))
    for phrase in (
        "protect nobody here",
        "after 3 of 4 rounds",
        "add or remove one",
        "Not covered",
    ):
        assert phrase in page
    assert len(page.splitlines()) < 60
    assert "operating system's entropy" in text(statement(plan(), mode="deployed"))
    open_ = text(statement(plan(noise_multiplier=0), mode="simulation"))
    assert "NOT private" in open_
    assert "ε = ∞" in open_


def test_only_a_durable_ledger_is_said_to_be_paid():
    durable = statement(plan(), mode="simulation")
    memory = statement(plan(), mode="simulation", ledger="memory")
    paid = "each round is paid for in the ledger before its noise is drawn"
    assert paid in durable["enforced"]
    assert paid not in memory["enforced"]
    assert any("no ledger on disk" in line for line in memory["assumed"])
    assert not any("no ledger on disk" in line for line in durable["assumed"])


@pytest.mark.parametrize("nodes", [None, Nodes()])
@pytest.mark.parametrize("mode", ["simulation", "deployed"])
def test_what_a_neighbour_shares_is_said(mode, nodes):
    """Rate, denominator and δ follow N, which one person more or fewer would change."""
    said = statement(plan(), mode=mode, nodes=nodes)["assumed"]
    (public,) = [line for line in said if "how many people there are is public" in line]
    assert "leaves an empty place" in public
    later = [line for line in said if "loaded later and are malformed counts as zero" in line]
    assert len(later) == (mode == "deployed" and nodes is None)


def test_a_run_in_memory_claims_no_ledger():
    result = dpfedls.train(
        model=start_model(), clients=linear_clients(), plan=plan(rounds=1), local=local()
    )
    assert result.privacy_statement()["ledger"] == "memory"


def test_what_is_known_is_said_and_what_is_not_is_not():
    silent = text(statement(plan(), mode="deployed"))
    told = text(
        statement(
            plan(),
            mode="deployed",
            test_from="public images",
            nodes=Nodes(most_samples=37),
        )
    )
    for phrase in ("at most 37 samples", "public images", "all other nodes together"):
        assert phrase in told
        assert phrase not in silent
    assert "other models trained on the same people" in silent
    assert "None" not in silent + told


@pytest.mark.parametrize(
    ("changes", "groups"),
    [
        ({"noise_multiplier": 0.5}, "4 people no finite bound (δ grows"),
        ({"noise_multiplier": 0}, "4 people no finite bound (no noise was added)"),
        ({"noise_multiplier": 20.0}, "4 people ε = "),
    ],
)
def test_a_bound_that_is_not_there_is_said_in_words(changes, groups):
    """As made, and as it comes back from JSON, where infinity is null."""
    facts = statement(plan(**changes), mode="simulation")
    for values in (facts, plain(facts)):
        page = text(values)
        assert groups in page
        assert "none," not in page
        assert "tightest" not in page
        assert ("ε = ∞" in page) == (changes["noise_multiplier"] == 0)


@pytest.mark.parametrize("delta", [1e-295, 1e-300])
def test_a_delta_that_a_plan_accepts_can_be_stated(delta):
    facts = statement(plan(delta=delta, noise_multiplier=50.0), mode="simulation")
    assert facts["delta"] == delta
    assert math.isfinite(facts["epsilon"])


def test_a_run_without_clipping_can_be_read_back():
    facts = plain(statement(plan(clip_norm=math.inf, noise_multiplier=0), mode="simulation"))
    assert "clipped to ∞" in text(facts)


def test_epsilon_by_round_is_exact_or_rounded_up():
    short, long = plan(rounds=12), plan(rounds=200, noise_multiplier=3.0)
    assert epsilon_by_round(short)[0] == 0
    assert len(epsilon_by_round(short)) == 13
    for t in (1, 5, 12):
        assert epsilon_by_round(short)[t] == pytest.approx(short.epsilon(rounds=t), rel=1e-9)
    curve = epsilon_by_round(long)
    assert len(curve) == 201
    assert curve[200] == pytest.approx(long.epsilon(), rel=1e-9)
    for t in (3, 77, 150):
        exact = long.epsilon(rounds=t)
        assert exact * (1 - 1e-9) <= curve[t] < exact * 1.15
    assert epsilon_by_round(plan(noise_multiplier=0))[1] == math.inf
