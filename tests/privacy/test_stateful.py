"""A model or a loss that keeps state: no person's samples reach another through it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import dpfedls
from dpfedls import InputError
from dpfedls.clipping import Bound
from dpfedls.engine import choose
from dpfedls.engine.judging import mean_losses
from dpfedls.engine.vmapped import VmappedUpdate
from dpfedls.local_sgd import LocalSGD
from dpfedls.parameters import Layout
from dpfedls.people.checks import check_samples
from dpfedls.people.clients import ClientData
from dpfedls.people.lazy import LazyClients


def plan(people, rounds=4):
    return dpfedls.PrivacyPlan(
        sampler=dpfedls.PoissonSampling(rate=0.5),
        num_clients=people,
        rounds=rounds,
        noise_multiplier=0.5,
        clip_norm=1.0,
    )


def cross_entropy(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


def test_a_model_that_keeps_what_it_saw_trains_one_person_after_another():
    """Each with a copy: under vmap the next block would find what the last one left."""
    people = ClientData.from_pairs([(torch.randn(3, 4), torch.randint(2, (3,)))] * 3)

    class Keeps(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, x):
            self.seen = self.layer(x)
            return self.seen

    model = Keeps()
    engine = choose(model, people, LocalSGD(steps=1))
    assert engine.name == "looped"
    assert "the model keeps seen from one call to the next" in engine.reason
    assert not hasattr(model, "seen")


class Counts(nn.Module):
    """Turns its scores round after fifty calls; counts in a dict, which stays the same object."""

    def __init__(self):
        super().__init__()
        self.layer, self.state = nn.Linear(4, 2), {"calls": 0}

    def forward(self, x):
        self.state["calls"] += 1
        return self.layer(x) * (1 if self.state["calls"] < 50 else -1)


class Counting:
    """A loss that does the same."""

    def __init__(self):
        self.calls = [0]

    def __call__(self, outputs, targets):
        self.calls[0] += 1
        return cross_entropy(outputs if self.calls[0] < 50 else -outputs, targets)


@pytest.mark.parametrize(
    ("model", "loss", "path"),
    [(Counts, lambda: cross_entropy, "state"), (lambda: nn.Linear(4, 2), Counting, "calls[0]")],
)
def test_what_a_container_keeps_moves_no_round_in_which_its_person_is_not_drawn(model, loss, path):
    """Such a person moved the sum of the next round by more than four clip norms."""
    rng, sums = torch.Generator().manual_seed(0), []
    others = [(torch.randn(6, 4, generator=rng), torch.zeros(6).long()) for _ in range(11)]
    for samples in (0, 300):  # of the first person, who is drawn in the first round alone
        own, own_loss = model(), loss()
        first = torch.randn(samples, 4, generator=rng), torch.zeros(samples).long()
        pairs = [first, *others]
        data = ClientData.from_pairs(pairs)
        check_samples(own, data, "clients", own_loss)
        local = LocalSGD(epochs=2, batch_size=3, learning_rate=0.5)
        engine = choose(own, data, local, own_loss, block_size=1)
        assert engine.name == "looped"
        assert path in engine.reason
        params, bound = torch.linspace(-1, 1, 10), Bound(0.1)
        engine.clipped_total(params, np.array([0]), 0, 7, bound)
        sums.append(engine.clipped_total(params, np.arange(1, 12), 1, 7, bound))
    assert torch.equal(*sums)


def warming_up():
    """A loss with a weight that grows from call to call: KL annealing, say."""
    calls = 0

    def loss(outputs, targets):
        nonlocal calls
        calls += 1
        return cross_entropy(outputs, targets) * calls

    return loss


def closing_over():
    seen = []

    def loss(outputs, targets):
        seen.append(len(targets))
        return cross_entropy(outputs, targets)

    return loss


SEEN = {"batches": 0}


def counting_globally(outputs, targets):
    SEEN["batches"] += 1
    return cross_entropy(outputs, targets)


class CountingInItsClass:
    """Counts in an attribute of its class, in a method that its call calls."""

    calls = 0

    def __call__(self, outputs, targets):
        self.count()
        return cross_entropy(outputs, targets)

    def count(self):
        type(self).calls += 1


def counting_in_a_class(outputs, targets):
    CountingInItsClass.calls += 1
    return cross_entropy(outputs, targets)


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (warming_up(), "loss answers the same outputs and targets differently each time"),
        (closing_over(), "the loss keeps seen, which its copies share"),
        (counting_globally, "the loss keeps SEEN['batches'], which its copies share"),
        (CountingInItsClass(), "the loss keeps calls, which its copies share"),
        (counting_in_a_class, "the loss keeps CountingInItsClass.calls, which its copies share"),
    ],
)
def test_a_loss_that_no_copy_keeps_apart_is_refused(loss, said):
    people = [(torch.randn(3, 4), torch.randint(2, (3,)))] * 20
    with pytest.raises(InputError) as refused:
        dpfedls.train(nn.Linear(4, 2), people, plan=plan(20), loss=loss)
    assert said in str(refused.value)
    assert "one person's samples would" in str(refused.value)


def test_the_logged_test_loss_is_by_a_loss_that_saw_nobodys_samples():
    people = [(torch.randn(3, 4), torch.randint(2, (3,)))] * 20
    test, loss = (torch.randn(9, 4), torch.randint(2, (9,))), Counting()
    result = dpfedls.train(
        nn.Linear(4, 2), people, plan=plan(20, 12), loss=loss, test=test, evaluate_every=12
    )
    assert loss.calls[0] < 10  # once before the start, once in the last round
    torch.testing.assert_close(
        torch.tensor(result.history[-1].loss), cross_entropy(result.model(test[0]), test[1]).mean()
    )


def test_a_vote_is_by_copies_that_nobody_elses_samples_reached():
    """Sixty people with the same samples: after fifty the model and the loss would turn round."""
    data = ClientData.from_pairs([(torch.ones(3, 4), torch.zeros(3).long())] * 60)
    for model, loss in ((Counts(), cross_entropy), (nn.Linear(4, 2), Counting())):
        layout = Layout.of(model)
        update = VmappedUpdate(model, loss, layout, data, LocalSGD(steps=1))
        losses = mean_losses(update, True, layout.read(model), np.arange(60))
        assert len(losses.unique()) == 1


class Recentres(nn.Module):
    """Moves a buffer where inputs are far away, which nobody's are at the start."""

    def __init__(self):
        super().__init__()
        self.register_buffer("offset", torch.zeros(()))
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        if not x.abs().max() < 1000:
            self.offset.copy_(x.mean())
        return self.layer(x - self.offset)


def test_checking_one_lazy_person_changes_nothing_for_the_next():
    """All were tried on one copy of the model: after an odd person, everybody counted as zero."""
    rng = torch.Generator().manual_seed(0)
    pairs = [(torch.rand(6, 4, generator=rng), torch.randint(2, (6,))) for _ in range(10)]
    odd = [*pairs[:2], (pairs[2][0] + torch.inf, pairs[2][1]), *pairs[3:]]
    model, bound, sums = Recentres(), Bound(0.1), []
    for people in (pairs[:2] + pairs[3:], odd):
        data = LazyClients([TensorDataset(*own) for own in people], like=pairs[0])
        check_samples(model, data, "clients")
        engine = replace(choose(model, data, LocalSGD(epochs=2), block_size=1), failing="zero")
        cohort = np.arange(len(people))
        sums.append(engine.clipped_total(Layout.of(model).read(model), cohort, 0, 7, bound))
    assert float((sums[0] - sums[1]).norm()) < 1.0 * 0.1
    assert float(sums[1].norm()) > 0.1
