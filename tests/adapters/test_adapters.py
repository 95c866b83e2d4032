"""The denoisers in other libraries; pfl and Opacus where installed (``make test-adapters``)."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common import Message
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

from dpfedls import (
    AdaptiveSmoothing,
    InputError,
    JamesStein,
    LaplacianSmoothing,
    Momentum,
    smooth,
)
from dpfedls.adapters.flower import Denoised
from dpfedls.adapters.stream import Stream
from dpfedls.adapters.torch import denoise_gradients

sys.path.append(str(Path(__file__).parents[1] / "flower"))
from fake_grid import FakeGrid

EXAMPLES = Path(__file__).parents[2] / "examples" / "adapters"


@pytest.fixture
def accuracy(capsys):
    """What an example prints."""

    def of(name: str) -> float:
        runpy.run_path(str(EXAMPLES / f"{name}.py"))
        return float(capsys.readouterr().out.split("accuracy ")[1].split()[0])

    return of


def test_a_stream_keeps_names_shapes_and_precision_and_remembers():
    given = {"b": torch.randn(3, 4, dtype=torch.float64), "a": torch.randn(5, dtype=torch.float64)}
    stream = Stream(LaplacianSmoothing(strength=2.0))
    found = stream(given, 0.1)
    assert list(found) == ["b", "a"]
    for name, tensor in given.items():
        assert found[name].dtype == torch.float64
        torch.testing.assert_close(found[name], smooth(tensor, 2.0), rtol=1e-5, atol=1e-5)
    moving = Stream(Momentum(decay=0.5))
    first, second = moving(given, 0.1), moving(given, 0.1)
    torch.testing.assert_close(first["a"], given["a"] / 2, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(second["a"], 0.75 * given["a"], rtol=1e-5, atol=1e-5)
    with pytest.raises(InputError, match="JamesStein needs to know how much noise"):
        Stream(JamesStein())(given, 0.0)


def test_an_optimiser_steps_along_the_denoised_gradient():
    model, idle = torch.nn.Linear(6, 2), torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD([*model.parameters(), *idle.parameters()], lr=1.0)
    levels = iter((0.5, 0.25))
    handle = denoise_gradients(optimizer, LaplacianSmoothing(strength=3.0), lambda: next(levels))
    gradients = [torch.randn_like(p) for p in model.parameters()]
    for kept in (False, True):
        before = [p.detach().clone() for p in model.parameters()]
        for p, gradient in zip(model.parameters(), gradients, strict=True):
            p.grad = gradient.clone()
        if kept:
            handle.remove()
        optimizer.step()
        for p, old, gradient in zip(model.parameters(), before, gradients, strict=True):
            torch.testing.assert_close(p, old - (gradient if kept else smooth(gradient, 3.0)))
    assert next(levels) == 0.25  # asked once per step


def stepping(denoiser, *names):
    """An optimiser of two heads and its denoiser, for steps in which these have gradients."""
    heads = {name: torch.nn.Linear(4, 3) for name in "ab"}
    optimizer = torch.optim.SGD([p for head in heads.values() for p in head.parameters()], lr=1.0)
    denoise_gradients(optimizer, denoiser, lambda: 0.1)
    for some in names:
        optimizer.zero_grad(set_to_none=True)
        for name in some:
            heads[name](torch.ones(2, 4)).sum().backward()
        before = {name: heads[name].weight.detach().clone() for name in heads}
        optimizer.step()
        for name, head in heads.items():
            moved = before[name] - head.weight.detach()
            expected = torch.ones(3, 4) * 2 if name in some else torch.zeros(3, 4)
            torch.testing.assert_close(moved, expected)  # smoothing leaves a constant as it is


def test_steps_with_some_gradients_or_none():
    stepping(LaplacianSmoothing(strength=2.0), "", "ab", "a", "", "b")
    stepping(lambda release: release.value, "a", "", "b")
    for denoiser in (Momentum(decay=0.0), AdaptiveSmoothing()):
        stepping(denoiser, "", "ab", "", "ab")
        with pytest.raises(InputError, match=r"remembers the tensors of its first step"):
            stepping(denoiser, "ab", "a")


def test_a_closure_and_sparse_gradients_are_refused_before_a_step():
    rows = torch.nn.Embedding(10, 4, sparse=True)
    for kind in (torch.optim.SGD, torch.optim.LBFGS):
        optimizer = kind(rows.parameters(), lr=0.1)
        handle = denoise_gradients(optimizer, LaplacianSmoothing(strength=1.0))
        before = rows.weight.detach().clone()
        for call in (lambda o: o.step(lambda: 0.0), lambda o: o.step(closure=lambda: 0.0)):
            with pytest.raises(InputError, match=r"step\(closure\) makes gradients of its own"):
                call(optimizer)
        handle.remove()
    optimizer = torch.optim.SGD(rows.parameters(), lr=0.1)
    denoise_gradients(optimizer, LaplacianSmoothing(strength=1.0))
    rows(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(InputError, match=r"shape \(10, 4\) is sparse, so most of it carries no"):
        optimizer.step()
    assert torch.equal(rows.weight, before)


def test_flowers_own_strategy_takes_a_smoothed_step():
    """Without noise, so that the step is known: the mean of the clients' updates, smoothed."""
    app = ClientApp()

    @app.train()
    def train(message, context):
        start = message.content["arrays"].to_numpy_ndarrays()[0]
        far = 1 + context.node_config["partition-id"]  # Flower divides by an update's length
        moved = start + np.linspace(0, far, 8, dtype=np.float32)
        content = {"arrays": ArrayRecord([moved]), "metrics": MetricRecord({"num-examples": 1})}
        return Message(RecordDict(content), reply_to=message)

    private = DifferentialPrivacyServerSideFixedClipping(
        FedAvg(fraction_evaluate=0.0, min_train_nodes=3, min_available_nodes=3), 0.0, 100.0, 3
    )
    strategy = Denoised(private, LaplacianSmoothing(strength=1.0))
    begin = np.ones(8, dtype=np.float32)
    result = strategy.start(FakeGrid(app, 3), ArrayRecord([begin]), num_rounds=2)
    step = smooth(torch.linspace(0, 2, 8), 1.0).numpy()
    np.testing.assert_allclose(result.arrays.to_numpy_ndarrays()[0], begin + 2 * step, rtol=1e-5)
    with pytest.raises(InputError, match="FedAvg adds no noise"):
        Denoised(FedAvg(), LaplacianSmoothing())


def test_examples_run(accuracy):
    assert accuracy("plain_torch") > 0.9
    assert isinstance(runpy.run_path(str(EXAMPLES / "with_flower.py"))["strategy"], Denoised)
    names = {path.stem for path in EXAMPLES.glob("*.py")}
    assert names == {"plain_torch", "with_flower", "with_opacus", "with_pfl"}


def test_opacus_steps_are_denoised_after_its_noise(accuracy):
    opacus = pytest.importorskip("opacus", reason="make test-adapters installs it")
    from opacus.optimizers import DPOptimizer

    from dpfedls.adapters.opacus import denoise_steps

    assert opacus.__version__.startswith("1.")
    p = torch.nn.Parameter(torch.zeros(64))
    inner = torch.optim.SGD([p], lr=1.0)
    generator = torch.Generator().manual_seed(3)
    private = DPOptimizer(
        inner, noise_multiplier=2.0, max_grad_norm=1.0, expected_batch_size=4, generator=generator
    )
    seen = []

    def record(release):
        seen.append(release)
        return smooth(release.value, 5.0)

    denoise_steps(private, record)
    p.grad_sample = torch.zeros(4, 64)  # nothing but noise is left
    private.step()
    assert seen[0].noise_stddev == 0.5
    # 64 draws: their deviation is within 40 % of the stated one but for 1 in 100,000 (chi-squared).
    assert 0.3 < float(seen[0].value.std()) < 0.7
    torch.testing.assert_close(p.detach(), -smooth(seen[0].value, 5.0))
    assert accuracy("with_opacus") > 0.9


def test_pfl_denoises_behind_its_mechanism_and_nowhere_else(accuracy):
    pytest.importorskip("pfl", reason="make test-adapters installs it")
    from pfl.metrics import Metrics, StringMetricName, Weighted
    from pfl.stats import MappedVectorStatistics

    from dpfedls.adapters.pfl import Denoising

    step, stats = Denoising(LaplacianSmoothing()), MappedVectorStatistics({"w": torch.randn(9)})
    with pytest.raises(InputError, match="before any noise was added"):
        step.postprocess_server(stats=stats, central_context=None, aggregate_metrics=Metrics())
    told = Metrics([(StringMetricName("DP noise std. dev."), Weighted.from_unweighted(0.5))])
    found, _ = step.postprocess_server(stats=stats, central_context=None, aggregate_metrics=told)
    torch.testing.assert_close(found["w"], smooth(stats["w"], 1.0))
    assert found.weight == stats.weight
    assert accuracy("with_pfl") > 0.8
