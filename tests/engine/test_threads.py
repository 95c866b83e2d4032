from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Thread

import numpy as np
import pytest
import torch

from dpfedls import PoissonSampling, PrivacyPlan, train
from dpfedls.engine import vmapped
from dpfedls.engine.threads import one_torch_thread, usual_threads
from dpfedls.engine.vmapped import ThreadedUpdate, VmappedUpdate
from dpfedls.local_sgd import LocalSGD
from dpfedls.parameters import Layout
from dpfedls.people.clients import ClientData
from dpfedls.people.losses import cross_entropy


@pytest.fixture
def update() -> VmappedUpdate:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    sizes = np.array([4, 9, 1, 7, 7, 2, 12])
    data = ClientData(torch.randn(42, 6), torch.randint(3, (42,)), np.cumsum(sizes) - sizes, sizes)
    local = LocalSGD(epochs=2, batch_size=3, learning_rate=0.5)
    return VmappedUpdate(model, cross_entropy, Layout.of(model), data, local)


@pytest.mark.parametrize("threads", [1, 2, 3, 9])
def test_threads_change_nothing_but_time(update, threads, monkeypatch):
    monkeypatch.setattr(vmapped, "_A_THREADS_WORTH", 1)
    params, clients = update.layout.read(update.model), np.array([5, 0, 3, 4, 6, 1])
    before = torch.get_num_threads()
    found = ThreadedUpdate(update, threads)(params, clients, 0, 7, 0.4)
    torch.testing.assert_close(found, update(params, clients, 0, 7, 0.4), atol=1e-6, rtol=0)
    assert torch.get_num_threads() == before


def test_little_work_stays_in_one_thread(update):
    params, clients = update.layout.read(update.model), np.arange(7)
    threaded = ThreadedUpdate(update, 4)
    threaded.updates[1:] = [None] * 3  # nobody else is asked
    assert torch.equal(threaded(params, clients, 0, 7, 0.4), update(params, clients, 0, 7, 0.4))


def test_a_simulation_on_two_threads_is_the_same_simulation(monkeypatch):
    monkeypatch.setattr(vmapped, "_A_THREADS_WORTH", 1)
    clients = [(torch.randn(5, 6), torch.randint(3, (5,))) for _ in range(20)]
    plan = PrivacyPlan(
        sampler=PoissonSampling(rate=0.5), num_clients=20, rounds=3, clip_norm=0.3,
        noise_multiplier=1.0,
    )  # fmt: skip
    # GELU, which machine code does not know: this is about blocks and threads of torch's.
    model = torch.nn.Sequential(torch.nn.Linear(6, 3), torch.nn.GELU())
    local = LocalSGD(epochs=2, batch_size=2)
    before, models = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            for block_size in (None, 1, 3):
                made = train(
                    model=model, clients=clients, plan=plan, local=local, block_size=block_size
                )
                models.append(made.model[0].weight.detach())
    finally:
        torch.set_num_threads(before)
    for other in models[1:]:
        torch.testing.assert_close(other, models[0], atol=1e-6, rtol=0)


def test_torch_gets_its_threads_back_whoever_leaves_first():
    """Nested, and from two threads that leave in the order they came."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    entered, leave = Event(), Event()

    def other() -> int:
        with one_torch_thread():
            entered.set()
            leave.wait(60)
        return torch.get_num_threads()

    try:
        with ThreadPoolExecutor(1) as pool, one_torch_thread():
            with one_torch_thread():
                assert torch.get_num_threads() == 1
            assert torch.get_num_threads() == 1  # still inside
            assert usual_threads() == 2
            late = pool.submit(other)
            entered.wait(60)
            leave.set()
            assert late.result() == 2
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_thread_that_enters_while_another_leaves_finds_what_is_usual(monkeypatch):
    usual, real, others = torch.get_num_threads(), torch.set_num_threads, []

    def enter():
        with one_torch_thread():
            found.append(usual_threads())

    def slowly(count):
        if count != 1 and not others:  # the first is leaving; the second comes in between
            others.append(Thread(target=enter))
            others[0].start()
            others[0].join(timeout=0.2)
        real(count)

    found: list[int] = []
    real(3)
    monkeypatch.setattr(torch, "set_num_threads", slowly)
    try:
        with one_torch_thread():
            pass
        others[0].join()
        assert found == [3]
        assert torch.get_num_threads() == 3
    finally:
        real(usual)


def test_where_one_part_fails_the_others_are_waited_for(update, monkeypatch):
    """Whoever fails is trained alone next, by the same updates, which must not be at work."""
    monkeypatch.setattr(vmapped, "_A_THREADS_WORTH", 1)
    threaded, failed, finished = ThreadedUpdate(update, 2), Event(), []

    def fails(*_):
        failed.set()
        raise RuntimeError("a loader")

    def slow(params, clients, *_):
        failed.wait()
        time.sleep(0.2)
        finished.append(len(clients))
        return params.new_zeros(len(clients), len(params))

    threaded.updates = [fails, slow]
    with pytest.raises(RuntimeError, match="a loader"):
        threaded(update.layout.read(update.model), np.array([5, 0, 3, 4]), 0, 7, 0.4)
    assert finished == [2]
