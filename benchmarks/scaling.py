"""How our round grows with population, cohort and model, and what a run costs around its rounds.

python benchmarks/scaling.py. Every line is measured in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numba
import numpy as np
import torch
from bench import RESULTS, ROOT, machine
from runners import loop
from runners.measure import peak_mib
from runners.ours import federation, our_model, people
from torch import nn
from torch.utils.flop_counter import FlopCounterMode, bmm_flop
from workloads import WORKLOADS, Workload, draw

from dpfedls import ClientData, LocalSGD
from dpfedls.engine.compiled.products import COMBINE, combine, combine_at
from dpfedls.engine.jit import address_of
from dpfedls.people.batches import schedule
from dpfedls.people.losses import cross_entropy
from dpfedls.runs.folder import RunFolder
from dpfedls.runs.recipe import Recipe
from dpfedls.runs.record import RoundRecord
from dpfedls.server import ServerState
from dpfedls.simulation import Simulation
from dpfedls.tasks.models import cnn, logistic_regression, mlp

ROUNDS = 10


def population(clients: int) -> dict[str, Any]:
    """People of one sample each, all the same row of memory: what is left is our bookkeeping."""
    data = ClientData(
        torch.ones(1, 64).expand(clients, 64),
        torch.zeros(1, dtype=torch.long).expand(clients),
        np.arange(clients),
        np.ones(clients, dtype=np.int64),
    )
    workload = replace(WORKLOADS["logistic-50"], clients=clients, samples=1, epochs=1)
    simulation, state = federation(workload, logistic_regression(64, 10), data, 1 + ROUNDS)
    sampler, streams = simulation.server.plan.sampler, simulation.streams
    sampling = _seconds(lambda: sampler.sample(clients, streams.sampling(0)))
    return _rounds(simulation, state) | {"sampling": sampling}


def cohort(size: int) -> dict[str, Any]:
    """The paper's logistic regression."""
    workload = replace(WORKLOADS["logistic-50"], cohort=size)
    return _rounds(*_start(workload, our_model(workload.model)))


def model(hidden: int) -> dict[str, Any]:
    """784 → hidden → 10; without a hidden layer, logistic regression."""
    workload = replace(WORKLOADS["mlp"], clients=100, epochs=1)
    made = mlp(784, hidden, 10) if hidden else logistic_regression(784, 10)
    simulation, state = _start(workload, made)
    return {"parameters": simulation.server.layout.dim} | _rounds(simulation, state)


def local_step(name: str) -> dict[str, Any]:
    """One step of one client in one thread, beside what torch's own matrix product reaches."""
    torch.set_num_threads(1)
    workload, made = WORKLOADS[name], our_model(WORKLOADS[name].model)
    simulation, state = _start(workload, made)
    steps = workload.epochs * workload.samples // workload.batch
    alone = np.array([0])
    engine, radius = simulation.engine, workload.clip_norm
    seconds = _cpu_seconds(lambda: engine.update(state.params, alone, 0, 0, radius)) / steps
    features, targets = engine.data.take(torch.arange(workload.batch))
    # The LSTM's, which torch does not count.
    in_place = {torch.ops.aten.baddbmm_: lambda _, a, b, **__: bmm_flop(a, b)}
    with FlopCounterMode(display=False, custom_mapping=in_place) as counted:
        cross_entropy(made(features), targets).mean().backward()
    a, b = torch.randn(50, 784), torch.randn(784, 252)
    product = 2 * 50 * 784 * 252 / _cpu_seconds(lambda: [a @ b for _ in range(20)]) * 20
    flop = counted.get_total_flops()
    return {
        "microseconds": 1e6 * seconds,
        "mflop": flop / 1e6,
        "gflop_a_second": flop / seconds / 1e9,
        "torchs_product": product / 1e9,
    }


def product(shape: str) -> dict[str, Any]:
    """One of machine code's products in one thread, beside torch's own on the same matrices."""
    torch.set_num_threads(1)
    m, k, n = map(int, shape.split(" × "))
    a, b, out = torch.randn(m, k), torch.randn(k, n), torch.zeros(m, n)
    left, right, into = (tensor.numpy().ravel() for tensor in (a, b, out))
    address, starts, zero = address_of(combine, COMBINE), np.arange(k) * n, np.float32(0)
    times = max(1, 10**8 // (m * k * n))

    def ours() -> None:
        _combine_often(times, address, left, k, 1, m, right, starts, k, n, into, n, zero)

    def torchs() -> None:
        for _ in range(times):
            torch.mm(a, b, out=out)

    flop = 2 * m * k * n * times / 1e9
    return {"gflop_a_second": flop / _cpu_seconds(ours), "torchs": flop / _cpu_seconds(torchs)}


@numba.njit
def _combine_often(times, address, a, row, column, m, b, starts, count, n, out, stride, scale):
    for _ in range(times):
        combine_at(address, a, row, column, m, b, starts, count, n, out, stride, scale)


def caches(kib: int) -> dict[str, Any]:
    """How fast one thread reads the server's and a client's weights, as every local step does."""
    torch.set_num_threads(1)
    length, times = kib * 2**10 // 8, max(1, 2**16 // kib)
    centre, moved = np.ones(length, np.float32), np.zeros(length, np.float32)
    part, both = np.empty(2**12, np.float32), centre.nbytes + moved.nbytes
    seconds = _cpu_seconds(lambda: _settle_often(times, centre, moved, part))
    return {"read_gb_a_second": both * times / seconds / 1e9}


@numba.njit(fastmath=True)
def _settle_often(times, centre, moved, part):
    """Put weights together, a part at a time that stays in the first cache."""
    for _ in range(times):
        for first in range(0, len(moved), len(part)):
            to = min(len(moved), first + len(part))
            server, own, out = centre[first:to], moved[first:to], part[: to - first]
            for t in range(len(out)):
                out[t] = server[t] + np.float32(0.5) * own[t]


def one_thread(name: str) -> dict[str, Any]:
    """CPU time of a round in one thread beside the plain loop's: nothing else's load is in it."""
    torch.set_num_threads(1)
    workload = WORKLOADS[name]
    simulation, state = _start(workload, our_model(workload.model))
    rounds, plain = simulation.run(state), loop.Federation(workload, *draw(workload))
    next(rounds)
    ours = _cpu_seconds(lambda: next(rounds), 4)
    loops = _cpu_seconds(plain.run_round, 4)
    return {"engine": simulation.engine.name, "ours": ours, "loop": loops, "ratio": loops / ours}


def ragged(orders: float) -> dict[str, Any]:
    """Clients whose sizes spread evenly over so many orders of magnitude: how little is padding."""
    sizes = (10 ** np.random.default_rng(0).uniform(1, 1 + orders, 200)).astype(np.int64)
    rows, starts = int(sizes.sum()), np.cumsum(sizes) - sizes
    nothing = torch.zeros(1, dtype=torch.long).expand(rows)
    data = ClientData(nothing, nothing, starts, sizes)
    _, groups = schedule(LocalSGD(epochs=5, batch_size=50), data, np.arange(200), 0)
    computed = sum(group.size for group in groups)
    real = sum(int((group >= 0).sum()) for group in groups)
    return {"largest_over_smallest": int(sizes.max() // sizes.min()), "real_share": real / computed}


def server_step(width: float) -> dict[str, Any]:
    """Noise, smoothing and update of the paper's CNN, against drawing its noise alone."""
    workload = replace(WORKLOADS["cnn"], clients=20)
    simulation, state = _start(workload, cnn(width))
    server, streams = simulation.server, simulation.streams
    total = torch.zeros_like(state.params, dtype=torch.float64)
    steps, draws = [], []
    for t in range(1 + ROUNDS):
        noise, nonce = streams.noise(t), streams.nonce(t, total.device)
        began = time.perf_counter()
        state = server.finish_round(state, total, noise, nonce)
        steps.append(time.perf_counter() - began)
        draws.append(_once(lambda noise=noise: noise(server.layout.dim, total.device)))
    step, draw_alone = statistics.median(steps[1:]), statistics.median(draws[1:])
    ratio = {"step": step, "noise": draw_alone, "ratio": step / draw_alone}
    return {"parameters": server.layout.dim} | ratio


def keeping(name: str) -> dict[str, Any]:
    """What log line and checkpoint add to a round of that workload, on disk in a run folder."""
    workload = WORKLOADS[name]
    made = our_model(workload.model)
    simulation, state = _start(workload, made)
    plan = simulation.server.plan
    # Of the recipe only the plan is used: the simulation is there already.
    recipe = Recipe(task="synthetic-logistic", plan=plan, local=LocalSGD(epochs=1))
    trained, kept = [], []
    disk = ROOT / ".bench"  # not a file system in memory, as /tmp may be
    disk.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=disk) as folder:
        run = RunFolder(Path(folder) / "run", recipe)
        server = replace(simulation.server, ledger=run.account)
        began = time.perf_counter()
        for after in replace(simulation, server=server).run(state):
            trained.append(time.perf_counter() - began)
            line = RoundRecord(round=after.round, epsilon=run.ledger.epsilon(), accuracy=0.5)
            kept.append(_once(lambda after=after, line=line: run.record(line, after)))
            began = time.perf_counter()
        run.close()
    round_, record = statistics.median(trained[1:]), statistics.median(kept[1:])
    return {"round": round_, "record": record, "share": record / (round_ + record)}


def start(what: str) -> dict[str, Any]:
    """Seconds of a command line's help, and of an import as the importing program sees it."""
    if what == "--help":
        command = [Path(sys.executable).with_name("dpfedls"), "--help"]
        return {"seconds": _seconds(lambda: subprocess.check_output(command))}
    code = f"import time; began = time.perf_counter(); {what}; print(time.perf_counter() - began)"
    times = [subprocess.check_output([sys.executable, "-c", code]) for _ in range(ROUNDS)]
    return {"seconds": statistics.median(map(float, times))}


CASES: dict[Callable[[Any], dict[str, Any]], list[Any]] = {
    population: [10**3, 10**4, 10**5, 10**6],
    cohort: [20, 50, 200, 1000],
    model: [0, 100, 252, 1258, 4316],  # 7,850 parameters to 3.4 million
    local_step: ["logistic-50", "mlp", "cnn", "lstm"],
    product: ["252 × 10 × 784", "16 × 200 × 320", "10 × 64 × 256", "800 × 64 × 256"],
    caches: [256, 1600, 6400],  # KiB; 1600 are the MLP's weights twice
    one_thread: ["mlp", "cnn", "lstm", "gelu-mlp", "resnet-8", "transformer", "gru"],
    ragged: [1.0, 2.0, 3.0],
    server_step: [1.0],
    keeping: ["logistic-50", "cnn"],
    start: ["--help", "import dpfedls", "import dpfedls.simulation"],
}


def main() -> None:
    """Measure every case, print it, keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    names = {case.__name__: case for case in CASES}
    parser.add_argument("--cases", nargs="+", choices=names, metavar="NAME", default=[*names])
    given = parser.parse_args()
    about, lines = machine(), []
    spawn = multiprocessing.get_context("spawn")
    for name in given.cases:
        for value in CASES[names[name]]:
            with spawn.Pool(1) as pool:
                found = pool.apply(names[name], [value])
            lines.append({"case": name, "value": value} | found)
            print(f"{name:12} {value!s:26} " + "  ".join(map(_words, found.items())), flush=True)
    if given.cases != [*names]:
        print("not kept: only a whole run is a result")
        return
    path = RESULTS.with_name("scaling.json")
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"machine": about, "lines": lines}, indent=1) + "\n")
    print(f"kept in {path.relative_to(ROOT)}")


def _start(workload: Workload, made: nn.Module) -> tuple[Simulation, ServerState]:
    return federation(workload, made, people(*draw(workload)), 1 + ROUNDS)


def _rounds(simulation: Simulation, state: ServerState) -> dict[str, Any]:
    times = []
    began = time.perf_counter()
    for _ in simulation.run(state):
        times.append(time.perf_counter() - began)
        began = time.perf_counter()
    round_ = statistics.median(times[1:])
    return {"round": round_, "rounds_per_second": 1 / round_, "peak_mib": peak_mib()}


def _seconds(action: Callable[[], object]) -> float:
    return statistics.median(_once(action) for _ in range(ROUNDS))


def _cpu_seconds(action: Callable[[], object], times: int = ROUNDS) -> float:
    """Of the calling thread, the least of several: a busy machine only ever adds to it."""
    action()
    return min(_once(action, time.thread_time) for _ in range(times))


def _once(action: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    began = clock()
    action()
    return clock() - began


def _words(pair: tuple[str, Any]) -> str:
    if isinstance(pair[1], str):
        return f"{pair[0]} {pair[1]}"
    return f"{pair[0]} {pair[1]:,.4g}" if isinstance(pair[1], float) else f"{pair[0]} {pair[1]:,}"


if __name__ == "__main__":
    main()
