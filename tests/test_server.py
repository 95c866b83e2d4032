from __future__ import annotations

import pytest
import torch

from dpfedls import BudgetExhausted, Identity, InputError, LaplacianSmoothing, smooth
from dpfedls.parameters import Layout
from dpfedls.privacy.ledger import MemoryLedger
from dpfedls.randomness import SeededStreams
from dpfedls.server import Server, newest_weight
from federations import plan

LAYOUT = Layout(("w",), ((6,),))
NOISE = SeededStreams(0).noise


def server(**changes):
    promised = changes.pop("plan", plan(noise_multiplier=0, rounds=9))
    ledger = changes.pop("ledger", MemoryLedger(promised))
    return Server(promised, changes.pop("denoiser", Identity()), LAYOUT, ledger, **changes)


def test_a_falling_rate_takes_its_last_step_with_one_part_in_the_number_of_rounds():
    s = server(rate=0.9, schedule="linear")
    state, steps = s.start(torch.zeros(6)), []
    for t in range(9):
        after = s.finish_round(state, torch.full((6,), 8.0, dtype=torch.float64), NOISE(t), f"{t}")
        steps.append(float((after.params - state.params)[0]))
        state = after
    assert steps == pytest.approx([0.9 * (9 - t) / 9 for t in range(9)], rel=1e-5)


def test_one_round_is_the_papers_equation():
    total = torch.arange(6, dtype=torch.float64)
    s = server(denoiser=LaplacianSmoothing(strength=2.0), rate=0.5)
    state = s.finish_round(s.start(torch.ones(6)), total, NOISE(0), "a")
    expected = 1 + 0.5 * smooth((total / 8).float(), 2.0)
    torch.testing.assert_close(state.params, expected)
    assert state.round == 1


@pytest.mark.parametrize("r", [0.0, 0.3, 0.9, 0.999999, 1.0])
def test_the_streamed_average_equals_the_weighted_sum_of_all_iterates(r):
    s = server(averaging=r, plan=plan(noise_multiplier=1.0, rounds=9))
    state = s.start(torch.zeros(6))
    iterates = [state.params.double()]
    for t in range(8):
        total = torch.randn(6, dtype=torch.float64, generator=torch.Generator().manual_seed(t))
        state = s.finish_round(state, total, NOISE(t), str(t))
        iterates.append(state.params.double())
    weights = [0.0] * 8 + [1.0] if r == 0 else [r**-t for t in range(9)]
    expected = sum(a * w for a, w in zip(weights, iterates, strict=True)) / sum(weights)
    torch.testing.assert_close(state.average.double(), expected, rtol=1e-5, atol=1e-6)


def test_newest_weight_needs_no_large_numbers():
    assert newest_weight(0.5, 10**6) == pytest.approx(0.5)
    assert newest_weight(1 - 1e-12, 9) == pytest.approx(0.1, rel=1e-6)


def test_spend_comes_before_noise_is_drawn():
    order = []

    class Watching(MemoryLedger):
        def spend(self, *args):
            order.append("spend")
            super().spend(*args)

    def noise(dim, device):
        order.append("noise")
        return torch.zeros(dim, dtype=torch.float64)

    promised = plan()
    s = server(plan=promised, ledger=Watching(promised))
    s.finish_round(s.start(torch.zeros(6)), torch.zeros(6, dtype=torch.float64), noise, "a")
    assert order == ["spend", "noise"]


def test_an_exhausted_budget_releases_nothing():
    def never(dim, device):
        raise AssertionError("noise was drawn for a round that was not paid for")

    promised = plan(rounds=1)
    s = server(plan=promised, ledger=MemoryLedger(promised))
    total = torch.zeros(6, dtype=torch.float64)
    state = s.finish_round(s.start(torch.zeros(6)), total, NOISE(0), "a")
    with pytest.raises(BudgetExhausted, match="1 rounds are paid"):
        s.finish_round(state, total, never, "b")


@pytest.mark.parametrize("changes", [{"averaging": 1.1}, {"averaging": -0.1}])
def test_rates_that_make_no_sense_are_refused(changes):
    with pytest.raises(InputError, match="must be"):
        server(**changes)
