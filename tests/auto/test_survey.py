"""Questions about the units of inputs: what people answer, and what follows from it."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
import torch
from raw_people import ASKS, MEANS, SCALES, network, people
from torch import nn

from dpfedls import LocalSGD
from dpfedls.clipping import Bound
from dpfedls.engine import choose
from dpfedls.gaussian import Release
from dpfedls.people.clients import ClientData
from dpfedls.people.survey import Measured, Question, Survey, _sizes
from dpfedls.people.units import AS_GIVEN, Standardised, unmeasured
from dpfedls.privacy.clipping import AdaptiveClipping


def surveyed(inputs, model, asks=ASKS, noise=0.0, seed=0):
    """What a survey of these people finds; its noise is that of each number of a round."""
    units = unmeasured(model, inputs[0])
    assert units is not None
    survey, rng = Survey(asks, units, noise), torch.Generator().manual_seed(seed)
    known, rounds = survey.start(), 0
    while (question := survey.question(known)) is not None:
        mean = torch.stack([question.answers(x) for x in inputs]).mean(0)
        value = (mean + noise * torch.randn(mean.shape, generator=rng)).float()
        known = survey.following(known, Release(3 * value, 0.0, units.layout, clip_norm=3.0))
        rounds += 1
    return survey.found(known), rounds


ODD = [
    torch.full((5, 6), 1e30),
    torch.full((5, 6), math.inf),
    torch.zeros(5, 6),
    torch.randn(300, 6) * SCALES + MEANS,
    torch.randn(1, 6),
    torch.empty(0, 6),
]


@pytest.mark.parametrize("kind", ["largest", "size", "centre", "spread"])
@pytest.mark.parametrize("inputs", ODD)
def test_an_answer_has_norm_one_at_most_whatever_the_inputs_are(kind, inputs):
    asked_of = torch.tensor([True, False, True, True, True, True])
    question = Question(kind, 6, False, False, MEANS, SCALES, asked_of)
    answer = question.answers(inputs)
    assert len(answer) == question.length
    assert float(answer.norm()) <= 1 + 1e-12


@pytest.mark.parametrize("person", [torch.full((5, 6), 1e30), torch.full((5, 6), math.nan)])
def test_one_person_moves_the_sum_of_answers_by_the_contribution_at_most(person):
    clients = people(20)
    changed = [(person, clients[0][1][:5]), *clients[1:]]
    norm, clipping = 0.7, AdaptiveClipping()
    question = Question("size", 6, False, False, 0 * MEANS, SCALES, SCALES > 0)
    bound = Bound(norm, clipping.indicator(norm), question=question)
    engines = [
        choose(network(), ClientData.from_pairs(who), LocalSGD(steps=1), engine="looped")
        for who in (clients, changed)
    ]
    params = torch.zeros(sum(p.numel() for p in network().parameters()))
    one, other = (engine.clipped_total(params, np.arange(20), 0, 0, bound) for engine in engines)
    alone = engines[0].clipped_total(params, np.arange(1, 20), 0, 0, bound)
    assert float((one - alone).norm()) <= clipping.contribution(norm)
    assert float((other - alone).norm()) <= clipping.contribution(norm)
    assert len(one) == question.length + 1


def test_embeddings_of_norm_one_are_small_although_some_columns_are_not():
    """Of 64 columns 0.12 in size, with one of 0.4 that is the same for all."""
    torch.manual_seed(0)
    x = torch.randn(200, 5, 64)
    x[..., 0] = 3.5
    x /= x.norm(dim=-1, keepdim=True)
    network = nn.Sequential(nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 2))
    units, _ = surveyed(list(x), network, ASKS)
    assert isinstance(units, Standardised)
    assert 0.05 < float(units.scale.median()) < 0.2
    scaled, rounds = surveyed(list(8 * x), network, ASKS)
    assert (scaled, rounds) == (AS_GIVEN, ASKS.first)


@pytest.mark.parametrize("noise", [0.0, 0.02])
@pytest.mark.parametrize("seed", range(3))
def test_means_and_scales_are_found(noise, seed):
    """With noise of 0.02 in a number, of which a column has √6 times as much; seeds are fixed."""
    units, rounds = surveyed([x for x, _ in people()], network(), noise=noise, seed=seed)
    assert isinstance(units, Standardised)
    assert rounds == 1 + 2 + 4 * 2
    assert ((units.scale / SCALES).log().abs() < math.log(2.5 if noise else 1.5)).all()
    assert ((units.mean - MEANS).abs() < 0.5 * SCALES).all()


@pytest.mark.parametrize("times", [1.0, 0.3, 3.0])
def test_usual_units_stay_and_cost_the_first_question_alone(times):
    inputs = [times * x for x, _ in people(scales=torch.ones(6), means=torch.zeros(6))]
    assert surveyed(inputs, network(), noise=0.02) == (AS_GIVEN, 1)


def test_columns_that_are_as_they_are_by_chance_are_asked_for_sizes_and_stay():
    """A few large values in most people's samples, and sizes around 1 all the same."""
    inputs = [x for x, _ in people(scales=torch.ones(6), means=torch.zeros(6))]
    for x in inputs[:200]:
        x[0, 0] = 40.0
    assert surveyed(inputs, network(), noise=0.01) == (AS_GIVEN, 1 + 2)


def test_usual_units_may_be_centred():
    inputs = [x for x, _ in people(scales=torch.ones(6), means=torch.full((6,), 2.0))]
    asks = msgspec.structs.replace(ASKS, centre=True)
    units, rounds = surveyed(inputs, network(), asks)
    assert rounds == 1 + 2 + 2
    assert (units.scale == 1).all()
    assert torch.allclose(units.mean, torch.full((6,), 2.0), atol=0.2)


AT_ONCE = [(0.0, 1.0, 0), (0.5, 0.2, 0), (0.9, 0.1, 0), (3.0, 1.0, 2), (4.6, 0.5, 2)]


@pytest.mark.parametrize(("mean", "spread", "again"), AT_ONCE)
def test_the_means_of_usual_units_may_be_asked_for_at_once(mean, spread, again):
    """Sizes cost 24 numbers a column. A mean that its limit cuts off is asked for once more."""
    people_ = people(scales=torch.full((6,), spread), means=torch.full((6,), mean))
    inputs = [x.clamp(0, 1) if 0 < mean < 1 else x for x, _ in people_]
    asks = msgspec.structs.replace(ASKS, centre=True, at_once=True)
    units, rounds = surveyed(inputs, network(), asks, noise=0.01)
    assert rounds == 1 + 2 + again
    found = units.mean if isinstance(units, Standardised) else torch.zeros(6)
    assert torch.allclose(found, torch.full((6,), mean), atol=0.2)
    model_units = unmeasured(network(), inputs[0])
    assert model_units is not None
    survey = Survey(asks, model_units, 0.0)
    first = survey.start() | {"question": torch.tensor([0.0, 0.0])}
    answer = torch.stack([survey.question(first).answers(x) for x in inputs]).mean(0).float()
    known = survey.following(first, Release(answer, 0.0, model_units.layout, clip_norm=1.0))
    assert (known["reach"] == (1 if 0 < mean < 1 else 2)).all()
    raw, rounds = surveyed([100 * x for x in inputs], network(), asks)
    assert rounds > 1 + 2 + again  # whose units are not usual
    assert isinstance(raw, Standardised)
    assert (raw.scale > 4).all()


def test_usual_units_may_be_standardised_and_what_is_rare_is_not_made_large():
    scales = torch.tensor([0.3, 0.5, 1.0, 1.0, 2.0, 1.0])
    inputs = [x for x, _ in people(scales=scales, means=torch.full((6,), 1.0))]
    rare = torch.Generator().manual_seed(0)
    for x in inputs:
        x[:, 3] = (torch.rand(len(x), generator=rare) < 0.01).float()
    asks = msgspec.structs.replace(ASKS, centre=True, scale=True)
    units, rounds = surveyed(inputs, network(), asks)
    assert rounds == 1 + 2 + 2 * 2
    others = [0, 1, 2, 4, 5]
    assert ((units.scale / scales)[others].log().abs() < math.log(1.5)).all()
    assert torch.allclose(units.mean[others], torch.full((5,), 1.0), atol=0.3)
    assert 0.2 < float(units.scale[3]) < 1.1  # its deviation is 0.1


def test_a_table_between_minus_one_and_one_is_standardised_and_a_wider_one_is_not_asked():
    """Somebody scaled it by known limits, so some columns hardly differ from person to person."""
    scales, means = torch.tensor([0.05, 0.2, 0.1, 0.05, 0.2, 0.1]), torch.full((6,), 0.5)
    inputs = [x.clamp(0, 1) for x, _ in people(scales=scales, means=means)]
    asks = msgspec.structs.replace(ASKS, within=True)
    units, rounds = surveyed(inputs, network(), asks)
    assert rounds > asks.first
    assert isinstance(units, Standardised)
    assert torch.allclose(units.mean, means, atol=0.05)
    assert ((units.scale[[1, 4]] / 0.2).log().abs() < math.log(1.5)).all()
    assert float(units.scale.max()) < 0.3
    wider = [4 * x for x in inputs]
    assert surveyed(wider, network(), asks) == (AS_GIVEN, asks.first)
    assert surveyed(inputs, network(), ASKS) == (AS_GIVEN, ASKS.first)


@pytest.mark.parametrize("within", [0.0, 1.0])
def test_between_minus_one_and_one_what_noise_hides_is_no_larger_than_one(within):
    """Half of the columns seem to be around 8, by noise; a table lost 26 points by it."""
    units = unmeasured(network(), torch.zeros(1, 6))
    assert units is not None
    survey = Survey(msgspec.structs.replace(ASKS, scale=True, within=True), units, 0.05)
    shares = torch.zeros(6, 24)
    shares[:3, 6] = 3.0  # from 0.25 to 1
    shares[3:, 8] = 0.45  # from 4 to 16: no column of its own is known so
    value = (2 * shares / math.sqrt(6)).flatten()
    known = survey.start() | {"usual": torch.ones(1), "question": torch.tensor([1.0, 1.0])}
    known |= {"within": torch.tensor([within]), "answers": value / 2}
    found = survey.following(known, Release(value / 2, 0.0, units.layout, clip_norm=1.0))
    assert float(found["scale"][3:].max()) == pytest.approx(1.0 if within else 8.0)


def test_pixels_in_bytes_share_one_scale_and_zeros_do_not_count():
    rng = torch.Generator().manual_seed(0)
    there = torch.rand(200, 5, 40, generator=rng) < torch.linspace(0, 0.9, 40)
    inputs = list(255 * torch.rand(200, 5, 40, generator=rng).sqrt() * there)
    together = Measured(first=1, sizes=1, columns=False)
    for asks, noise in ((ASKS, 0.01), (together, 0.0), (together, 0.02)):
        units, _ = surveyed(inputs, network(40), asks, noise)
        assert not units.mean.any()
        assert (units.scale == units.scale[0]).all()
        assert 60 < float(units.scale[0]) < 300


def test_columns_of_several_sizes_are_left_alone_if_noise_hides_which_is_which():
    inputs = [x for x, _ in people()]
    assert surveyed(inputs, network(), Measured(first=1, sizes=1, columns=False))[0] is AS_GIVEN


def test_a_rare_column_is_not_made_large():
    inputs = [torch.cat([x, torch.zeros(8, 4)], dim=1) for x, _ in people()]
    for k in range(4):
        inputs[k][0, 6 + k] = 1.0
    units, _ = surveyed(inputs, network(10), noise=0.01)
    assert (units.scale[6:] >= 1).all()
    assert ((units.scale[:6] / SCALES).log().abs() < math.log(1.5)).all()


def test_a_convolution_has_scales_of_channels_and_no_means():
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Flatten(), nn.Linear(128, 3))
    sizes = torch.tensor([255.0, 1.0, 30.0]).view(3, 1, 1)
    inputs = list(torch.rand(100, 4, 3, 4, 4) * sizes)
    units, rounds = surveyed(inputs, model)
    assert rounds == ASKS.first + ASKS.sizes
    assert not units.mean.any()
    assert ((units.scale / sizes).log().abs() < math.log(4)).all()


def test_who_has_no_samples_does_not_count():
    """Nearly half of the people have none: means and scales are those of the others."""
    clients = [x for x, _ in people()]
    inputs = [x if k % 5 < 3 else x[:0] for k, x in enumerate(clients)]
    units, _ = surveyed(inputs, network(), noise=0.01)
    assert isinstance(units, Standardised)
    assert ((units.scale / SCALES).log().abs() < math.log(1.6)).all()
    assert ((units.mean - MEANS).abs() < 0.6 * SCALES).all()


def test_a_constant_column_does_no_harm():
    inputs = [torch.cat([x, torch.full((8, 1), 1234.5)], dim=1) for x, _ in people()]
    units, _ = surveyed(inputs, network(7))
    assert (units.scale > 0).all()
    assert torch.isfinite(units(inputs[0])).all()
    assert float(units(inputs[0])[:, 6].abs().max()) < 50


def test_a_large_column_is_found():
    means = MEANS.clone()
    means[3] = 3e6
    units, _ = surveyed([x for x, _ in people(means=means)], network())
    assert abs(float(units.mean[3]) - 3e6) < 3e5


def test_a_large_column_that_noise_hides_is_made_small_beside_others():
    shares = torch.zeros(2, 24, dtype=torch.float64)
    shares[0, 11] = 1.0
    shares[1, 9:21] = 0.08  # of all sizes from 16 on
    each, sure, rest = _sizes(shares, 0.05, apart=True)
    assert sure.tolist() == [True, False]
    assert rest is None
    assert each[1] == each[0] > 100


def test_units_that_most_call_usual_keep_their_scale_whatever_noise_says_of_a_column():
    units = unmeasured(network(), torch.randn(1, 6))
    assert units is not None
    survey = Survey(msgspec.structs.replace(ASKS, sizes=1, centre=True), units, 0.001)
    known = survey.start() | {"question": torch.tensor([1.0, 0.0]), "usual": torch.ones(1)}
    shares = torch.zeros(6, 24)
    shares[:, 7], shares[2, 7], shares[2, 14] = 1.0, 0.0, 1.0
    release = Release(shares.flatten() / math.sqrt(6), 0.0, units.layout, clip_norm=1.0)
    assert (survey.following(known, release)["scale"] == 1).all()
