"""How much noise a weight may gather: the model is asked, on inputs that are nobody's."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from dpfedls.auto.by_model import of_usual_inputs
from dpfedls.auto.choices import plan_for
from dpfedls.auto.rate import (
    MOST,
    MOST_ALIKE,
    MOVED,
    MOVED_FAR,
    USUAL,
    Rates,
    _Moved,
    made_up,
    rates_on,
)
from dpfedls.people.losses import cross_entropy


def linear(inputs: int) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(inputs, 10)


def scores_move(length: float, noise: float) -> float:
    """The scores of a linear model, centred over ten classes, with a bias."""
    return noise * math.sqrt((length**2 + 1) * 0.9)


@pytest.mark.parametrize("scale", [0.2, 0.5, 1.0, 3.0])
def test_scores_move_by_about_what_is_allowed(scale):
    inputs = scale * torch.randn(64, 100, generator=torch.Generator().manual_seed(3))
    noise = rates_on(linear(100), inputs).noise
    assert noise is not None
    begin = scale / math.sqrt(3)  # of the scores: weights begin uniform, within ± 1 ÷ √100
    moved = scores_move(10 * scale, noise) / max(1.0, begin)
    assert 0.001 < noise <= MOST
    if noise < USUAL:
        assert moved == pytest.approx(MOVED_FAR, rel=0.15)
    elif USUAL < noise < MOST:
        assert moved == pytest.approx(MOVED, rel=0.15)
    elif noise == MOST:
        assert moved <= MOVED * 1.15


def network(activation: type[nn.Module], inputs: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(inputs, 50), activation(), nn.Linear(50, 50), activation(), nn.Linear(50, 5)
    )


def test_noise_that_moves_all_inputs_alike_may_be_larger():
    """A network of sigmoids had 44 % where it has 63: training corrects a common shift."""
    inputs = torch.randn(64, 20, generator=torch.Generator().manual_seed(3))
    found = {kind: rates_on(network(kind, 20), inputs).noise for kind in (nn.Sigmoid, nn.ReLU)}
    assert 0.3 < (found[nn.Sigmoid] or 0) <= MOST_ALIKE
    assert MOST <= (found[nn.ReLU] or 0) < 0.2
    plane = torch.randn(64, 2, generator=torch.Generator().manual_seed(3))
    assert MOST < (rates_on(network(nn.ReLU, 2), plane).noise or 0) < 0.3
    convolved = nn.Sequential(
        nn.Conv1d(1, 4, 3), nn.Sigmoid(), nn.Flatten(), nn.Linear(72, 20), nn.Sigmoid(),
        nn.Linear(20, 5),
    )  # fmt: skip
    assert rates_on(convolved, inputs[:, None]).noise == MOST  # not tried with more
    assert rates_on(nn.Linear(1, 2), inputs[:, :1]).noise == MOST  # linear models lose by it
    words = nn.Sequential(nn.EmbeddingBag(50, 4), nn.Linear(4, 9), nn.Sigmoid(), nn.Linear(9, 3))
    assert rates_on(words, torch.randint(50, (64, 6))).noise == MOST  # and so do embeddings


def test_the_choice_can_be_repeated_and_reads_no_label():
    inputs = torch.randn(64, 50, generator=torch.Generator().manual_seed(0))
    assert rates_on(linear(50), inputs) == rates_on(linear(50), inputs)
    relative = lambda o, t: ((o[:, 0] - t) / t).square()  # noqa: E731
    huber = lambda o, t: nn.functional.huber_loss(o[:, 0], t, reduction="none")  # noqa: E731
    for loss in (relative, huber, lambda o, t: (t.exp() * o[:, 0]).square()):
        labels = (torch.full((64,), label) for label in (1.0, 0.01, 1000.0))
        assert len({rates_on(linear(50), inputs, loss, own) for own in labels}) == 1


def test_outputs_with_units_of_their_own_bear_what_nobody_knows():
    assert rates_on(linear(5), torch.ones(4, 5), nn.functional.mse_loss).noise is None


def test_the_learning_rate_falls_with_the_square_of_the_slope_and_not_of_the_inputs():
    inputs = torch.randn(64, 784, generator=torch.Generator().manual_seed(0))
    learning = rates_on(linear(784), inputs).learning
    assert learning == 0.05
    assert rates_on(linear(784), 0.1 * inputs).learning == 0.05
    raw = 100 * inputs
    expected = 0.05 * 1000 / (1e4 * 784 * 0.9)
    assert rates_on(linear(784), raw).learning == pytest.approx(expected, rel=0.2)

    class Scaled(nn.Module):
        def forward(self, x):
            return x / 100

    scaling_itself = nn.Sequential(Scaled(), linear(784))
    assert rates_on(scaling_itself, raw).learning == 0.05


def test_a_model_whose_outputs_are_no_tensor_has_the_usual_rates():
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 2)

        def forward(self, x):
            return {"scores": self.inner(x)}

    assert rates_on(Named(), torch.ones(3, 4)) == Rates(None, 0.05)
    shown = torch.ones(3, 4), torch.zeros(3)
    assert of_usual_inputs(plan_for(500, 1.0)[0], Named(), cross_entropy, shown).wish == "keep"


@pytest.mark.parametrize("scale", [0.5, 1.0, 3.0])
def test_a_loss_that_goes_on_growing_steeper_has_shorter_steps(scale):
    """Gradient descent on a squared error diverges beyond 1 ÷ slope²; a half is kept."""
    inputs = scale * torch.randn(64, 100, generator=torch.Generator().manual_seed(3))
    torch.manual_seed(0)
    model, targets = nn.Linear(100, 1), torch.zeros(64)

    def squared(outputs, targets):
        return (outputs[:, 0] - targets).square()

    def absolute(outputs, targets):
        return (outputs[:, 0] - targets).abs()

    def fails(outputs, targets):
        raise ValueError

    slope_squared = 100 * scale**2 + 1
    expected = 1 / (2 * slope_squared)
    assert rates_on(model, inputs, squared, targets).learning == pytest.approx(expected, rel=0.3)
    expected = min(0.05, 0.25 / (math.sqrt(2) / 200 * slope_squared))  # it changes by 2, or not
    assert rates_on(model, inputs, absolute, targets).learning == pytest.approx(expected, rel=0.2)
    unknown = rates_on(model, inputs, fails, targets).learning
    known = rates_on(model, inputs, squared, targets).learning
    assert unknown == pytest.approx(min(0.05, known / 4), rel=0.05)


def test_a_squared_error_has_shorter_steps_the_steeper_a_deep_model_grows_with_its_weights():
    def squared(outputs, targets):
        return (outputs[:, 0] - targets).square()

    def of_the_limit(depth):
        """The learning rate as a share of 1 ÷ (2 slope²), the slope at the first weights."""
        torch.manual_seed(0)
        layers = [layer for _ in range(depth) for layer in (nn.Linear(64, 64), nn.ReLU())]
        model = nn.Sequential(*layers, nn.Linear(64, 1))
        inputs = 20 * torch.randn(64, 64, generator=torch.Generator().manual_seed(3))
        learning = rates_on(model, inputs, squared, torch.zeros(64)).learning
        return learning * 2 * _Moved(model, inputs).slope ** 2

    assert of_the_limit(1) == pytest.approx(1.0, rel=0.1)
    assert of_the_limit(3) < 0.5


def test_what_does_not_train_does_not_grow():
    """Six frozen layers would make the slope of the last one eleven times as large."""
    torch.manual_seed(0)
    body = nn.Sequential(*[layer for _ in range(6) for layer in (nn.Linear(64, 64), nn.ReLU())])
    body.register_parameter("places", nn.Parameter(torch.arange(64), requires_grad=False))
    for weights in body.parameters():
        weights.requires_grad_(False)
    inputs = 20 * torch.randn(64, 64, generator=torch.Generator().manual_seed(3))
    last, targets = nn.Linear(64, 1), torch.zeros(64)
    whole = rates_on(nn.Sequential(body, last), inputs, squares, targets).learning
    assert whole == pytest.approx(rates_on(last, body(inputs), squares, targets).learning, rel=0.1)


def test_a_squared_error_has_no_longer_steps_than_a_classifier_with_as_steep_a_slope():
    inputs = torch.randn(64, 2, generator=torch.Generator().manual_seed(3))
    few = nn.Linear(2, 1)
    assert rates_on(few, inputs, squares, torch.zeros(64)).learning == 0.05
    assert rates_on(few, inputs, lambda o, t: squares(o, t) / 5, torch.zeros(64)).learning == 0.25
    many, mean = nn.Linear(2, 100), lambda o, t: squares(o, t) / 100
    assert 0.4 < rates_on(many, 0.1 * inputs, mean, torch.zeros(64)).learning <= 0.5


def yes_or_no(outputs, targets):
    targets = targets[:, None].expand_as(outputs)
    return nn.functional.binary_cross_entropy_with_logits(outputs, targets, reduction="none")


def normalised(outputs, targets):
    return nn.functional.nll_loss(outputs.log_softmax(1), targets.long(), reduction="none")


def linear_in_outputs(outputs, targets):
    return nn.functional.nll_loss(outputs, targets.long(), reduction="none")


def absolute(outputs, targets):
    return (outputs - targets[:, None]).abs().sum(dim=1)


def squares(outputs, targets):
    return (outputs - targets[:, None]).square().sum(dim=1)


@pytest.mark.parametrize(
    ("loss", "scores"),
    [
        (lambda o, t: yes_or_no(o, t).sum(dim=1), True),
        (normalised, True),
        (linear_in_outputs, True),
        (lambda o, t: nn.functional.multi_margin_loss(o, t.long(), reduction="none"), True),
        (absolute, False),
        (squares, False),
        (lambda o, t: o.exp().sum(dim=1), False),  # as of counts that are zero
    ],
)
def test_outputs_of_which_more_is_never_wrong_are_scores(loss, scores):
    inputs = torch.randn(64, 50, generator=torch.Generator().manual_seed(3))
    noise = rates_on(linear(50), inputs, loss, torch.full((64,), 1e6)).noise
    assert noise == (rates_on(linear(50), inputs).noise if scores else None)


def test_a_class_that_counts_many_times_shortens_steps_whichever_it_is():
    """By the mean over classes: the weights' mean is 4, so steps are a quarter as long."""
    inputs, labels = torch.ones(64, 50), torch.zeros(64, dtype=torch.int64)
    learning = []
    for weights in ((1.0, 1.0, 1.0, 1.0), (0.5, 1.0, 2.5, 12.0), (12.0, 2.5, 1.0, 0.5)):
        loss = nn.CrossEntropyLoss(weight=torch.tensor(weights), reduction="none")
        torch.manual_seed(0)
        learning.append(rates_on(nn.Linear(50, 4), inputs, loss, labels).learning)
    assert learning[1] == pytest.approx(learning[0] / 4, rel=0.1)
    assert learning[2] == pytest.approx(learning[0] / 4, rel=0.1)


def test_labels_that_are_no_classes_are_tried_at_zero_alone():
    def of_two(outputs, labels):  # 0 and 1 alone
        if bool((labels > 1).any()):
            raise ValueError
        return nn.functional.cross_entropy(outputs, labels, reduction="none")

    inputs, labels = torch.ones(64, 50), torch.zeros(64, dtype=torch.int64)
    torch.manual_seed(0)
    model = nn.Linear(50, 3)
    usual = nn.CrossEntropyLoss(reduction="none")
    found, expected = (rates_on(model, inputs, loss, labels) for loss in (of_two, usual))
    assert found.noise == expected.noise
    assert found.learning == pytest.approx(expected.learning, rel=0.1)


class Alone(nn.Module):
    """One probability per sample, from a function and without an axis of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = linear(50)

    def forward(self, x):
        return self.inner(x)[:, :1].sigmoid().squeeze(-1)


class AloneLogit(Alone):
    def forward(self, x):
        return self.inner(x)[:, 0]


def of_one(loss):
    return lambda o, t: loss(o, t, reduction="none")


def of_many(loss):
    return lambda o, t: loss(o, t[:, None].expand_as(o), reduction="none").sum(1)


def of_class(loss):
    return lambda o, t: loss(o, t.long(), reduction="none")


F = nn.functional


@pytest.mark.parametrize("scale", [0.3, 1.0])
@pytest.mark.parametrize(
    ("model", "loss", "scores", "of_scores"),
    [
        (
            lambda: nn.Sequential(linear(50), nn.Sigmoid()),
            of_many(F.binary_cross_entropy),
            lambda: linear(50),
            of_many(F.binary_cross_entropy_with_logits),
        ),
        (
            Alone,
            of_one(F.binary_cross_entropy),
            AloneLogit,
            of_one(F.binary_cross_entropy_with_logits),
        ),
        *(
            (
                lambda: nn.Sequential(linear(50), nn.Softmax(dim=1)),
                lambda o, t, log=log: of_class(F.nll_loss)(log(o), t),
                lambda: linear(50),
                of_class(F.cross_entropy),
            )
            for log in (torch.log, lambda o: (o + 1e-9).log(), lambda o: o.clamp(min=1e-9).log())
        ),
        (
            lambda: nn.Sequential(linear(50), nn.LogSoftmax(dim=1)),
            of_class(F.nll_loss),
            lambda: linear(50),
            of_class(F.cross_entropy),
        ),
    ],
)
def test_probabilities_have_the_rates_of_the_scores_behind_them(
    model, loss, scores, of_scores, scale
):
    inputs = scale * torch.randn(64, 50, generator=torch.Generator().manual_seed(3))
    found = rates_on(model(), inputs, loss, torch.zeros(64))
    expected = rates_on(scores(), inputs, of_scores, torch.zeros(64))
    assert found.noise == pytest.approx(expected.noise, rel=0.1)
    # A sigmoid is flat in single precision where scores are far off: the longest slope is nearer.
    assert found.learning == pytest.approx(expected.learning, rel=0.4)


def test_squared_errors_of_probabilities_keep_the_unit_of_the_outputs():
    inputs = torch.randn(64, 50, generator=torch.Generator().manual_seed(3))
    bounded = nn.Sequential(linear(50), nn.Sigmoid())
    assert rates_on(bounded, inputs, squares, torch.zeros(64)).noise is None


@pytest.mark.parametrize(
    "loss", [lambda o, t: (1 - t * o).clamp(min=0), of_one(F.soft_margin_loss)]
)
def test_losses_whose_labels_are_minus_and_plus_one_are_of_scores(loss):
    """They are flat for a label of 0, from which nothing can be told."""
    inputs = torch.randn(64, 50, generator=torch.Generator().manual_seed(3))
    found = rates_on(AloneLogit(), inputs, loss, torch.zeros(64))
    expected = rates_on(
        AloneLogit(), inputs, of_one(F.binary_cross_entropy_with_logits), torch.zeros(64)
    )
    assert found == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize(
    "loss",
    [lambda o, t: yes_or_no(o, t).sum(dim=1), absolute, squares, linear_in_outputs],
)
@pytest.mark.parametrize("times", [0.1, 1000.0])  # a mean over the ten outputs, or another unit
def test_a_loss_in_another_unit_is_the_same_task(loss, times):
    """Gradients are so many times as long, and steps are as long as before."""
    inputs = torch.randn(64, 50, generator=torch.Generator().manual_seed(3))
    one = rates_on(linear(50), inputs, loss, torch.zeros(64))
    other = rates_on(linear(50), inputs, lambda o, t: times * loss(o, t), torch.zeros(64))
    assert other.learning == pytest.approx(one.learning / times, rel=0.02)
    assert other.noise == one.noise


def test_made_up_inputs_have_the_shape_of_the_real_ones_and_tokens_that_the_model_knows():
    for model in (nn.Embedding(7, 3), nn.EmbeddingBag(7, 3)):
        tokens, _ = made_up(model, (torch.zeros(1, 4, dtype=torch.long), torch.zeros(1)))
        assert tokens.shape[1:] == (4,)
        assert set(tokens.unique().tolist()) == set(range(7))
    like = {"a": torch.zeros(1, 3), "b": torch.zeros(1, 2, 2)}
    pair, targets = made_up(linear(3), (like, torch.ones(1, 5)))
    assert targets.shape == (len(pair["a"]), 5)
    assert pair["a"].shape[1:] == (3,)
    assert pair["b"].shape[1:] == (2, 2)
    assert abs(float(pair["b"].std()) - 1) < 0.2
    # Not the stream from which the noise is drawn: the two would be alike.
    moved = scores_move(28.0, USUAL)
    assert MOVED < moved < MOVED_FAR
    inputs, _ = made_up(linear(784), (torch.zeros(1, 784), torch.zeros(1)))
    assert rates_on(linear(784), inputs).noise == USUAL


def test_tokens_that_are_looked_up_are_learned_faster():
    """Text by ε alone was 1 to 3 points better with 0.2, models of numbers were not."""
    tokens = torch.arange(40).reshape(10, 4) % 7
    text = nn.Sequential(nn.Embedding(7, 3), nn.Flatten(), nn.Linear(12, 7))
    assert rates_on(text, tokens).learning == 0.2
    numbers = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 7))
    assert rates_on(numbers, tokens.float()).learning == 0.05


class Scales(nn.Module):
    """Standardises raw columns by constants that it holds, before its first layer."""

    def __init__(self, deviation, inner):
        super().__init__()
        self.register_buffer("deviation", torch.tensor(deviation))
        self.inner = inner

    def forward(self, x):
        return self.inner((x - 1000.0) / self.deviation)


@pytest.mark.parametrize("deviation", [1e-3, 1e5])
def test_a_model_that_scales_its_inputs_itself_is_tried_where_its_first_layer_reads(deviation):
    """Of random inputs it made numbers of 1e6, and a learning rate of 6e-6 followed."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 4))
    scales = Scales(deviation, plain)
    like = torch.zeros(1, 12), torch.zeros(1).long()
    usual, found = (
        rates_on(model, made_up(model, like)[0], random=True) for model in (plain, scales)
    )
    assert found.learning == usual.learning
    assert found.noise == pytest.approx(usual.noise, rel=0.2)
    shown = rates_on(scales, made_up(scales, like)[0])  # public inputs are what they are
    assert deviation > 1 or shown.learning < 1e-3 * usual.learning


def test_words_and_frozen_layers_before_the_first_that_learns_stay_as_they_are():
    frozen = nn.Linear(12, 32).requires_grad_(False)
    frozen.weight.mul_(100)
    behind = nn.Sequential(frozen, nn.ReLU(), nn.Linear(32, 4))
    words = nn.Sequential(nn.Embedding(9, 8), nn.Flatten(), nn.Linear(24, 4))
    for model, like in ((behind, torch.zeros(1, 12)), (words, torch.zeros(1, 3).long())):
        inputs = made_up(model, (like, torch.zeros(1).long()))[0]
        assert rates_on(model, inputs, random=True) == rates_on(model, inputs)
