"""One local step of many clients on a GPU: a small model, the paper's CNN and its LSTM.

    python benchmarks/gpu.py [small] [cnn] [lstm] [round] [--profile]

Prints milliseconds a step, as it comes and without CUDA graphs, memory, the distance from the slow
twin in float32, and what one client after another would take. With --profile also where the time
goes, by kernel. "round" is a whole round of the CNN with ledger and checkpoint, and its parts.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dpfedls import FixedSizeSampling, LaplacianSmoothing, PrivacyPlan, server, train
from dpfedls.engine import engine
from dpfedls.engine.looped import LoopedUpdate
from dpfedls.engine.replay import one_by_one
from dpfedls.engine.vmapped import VmappedUpdate
from dpfedls.local_sgd import LocalSGD
from dpfedls.parameters import Layout
from dpfedls.people.clients import ClientData
from dpfedls.people.losses import cross_entropy
from dpfedls.runs import run
from dpfedls.runs.folder import RunFolder
from dpfedls.tasks.models import character_lstm, cnn, mlp

# model, how many clients, features of so many samples, steps timed, clip norm, learning rate
CASES: dict[
    str, tuple[Callable[[], nn.Module], int, Callable[[int], Tensor], int, float, float]
] = {
    "small": (
        lambda: mlp(784, 140, 10),
        50,
        lambda n: torch.randn(n, 784, device="cuda"),
        20,
        0.7,
        0.1,
    ),
    "cnn": (cnn, 100, lambda n: torch.randn(n, 3, 32, 32, device="cuda"), 12, 0.7, 0.1),
    "lstm": (
        lambda: character_lstm(80),
        195,
        lambda n: torch.randint(80, (n, 80), dtype=torch.uint8, device="cuda"),
        12,
        5.0,
        1.47,
    ),
}
BATCH, PASSES = 50, 3


def measure(name: str, precision: str, profile: bool) -> None:
    """Print one line, and the kernels' times if asked."""
    make, clients, draw, steps, clip, rate = CASES[name]
    torch.manual_seed(0)
    model = make().cuda()
    size = BATCH * steps
    classes = 80 if name == "lstm" else 10
    data = ClientData(
        draw(clients * size),
        torch.randint(classes, (clients * size,)).cuda(),
        np.arange(0, clients * size, size),
        np.full(clients, size),
    )
    layout, everyone = Layout.of(model), np.arange(clients)
    params = layout.read(model)

    def update(kind: type, steps: int, precision: str) -> VmappedUpdate:
        local = LocalSGD(
            steps=steps,
            batch_size=BATCH,
            learning_rate=rate,
            weight_decay=4e-5,
            precision=precision,  # pyright: ignore[reportArgumentType]
        )
        return kind(model, cross_entropy, layout, data, local)

    few = everyone[:3]
    torch.backends.cudnn.allow_tf32 = False  # the twin in all its bits
    twin = update(LoopedUpdate, 2, "float32")(params, few, 0, 1, clip)
    torch.backends.cudnn.allow_tf32 = True
    found = update(VmappedUpdate, 2, precision)(params, few, 0, 1, clip)
    distance = float((found - twin).norm() / twin.norm())
    together, launched = (update(VmappedUpdate, steps, precision) for _ in range(2))
    vars(launched)["_run"] = one_by_one
    seconds, without = (
        min(_timed(partial(way, params, everyone, 0, 1, clip)) for _ in range(PASSES))
        for way in (together, launched)
    )
    one = update(LoopedUpdate, 2, precision)
    alone = _timed(lambda: one(params, everyone[:10], 0, 1, clip)) * clients / 10 / 2
    print(
        f"{name} {precision}: {clients} clients x {BATCH}: {1e3 * seconds / steps:.2f} ms a step, "
        f"without graphs {1e3 * without / steps:.2f}, one client after another {1e3 * alone:.0f}, "
        f"{torch.cuda.max_memory_allocated() / 2**30:.1f} GiB, "
        f"{distance:.1e} from the twin after two steps",
        flush=True,
    )
    if profile:
        activities = [torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities) as found:
            _timed(lambda: together(params, everyone, 0, 1, clip))
        kernels = sorted(found.key_averages(), key=lambda k: -k.self_device_time_total)
        for kernel in kernels[:12]:
            print(f"  {kernel.self_device_time_total / 1e3 / steps:7.3f} ms  {kernel.key[:80]}")


def whole_round() -> None:
    """Print a round of the CNN in bfloat16: 100 clients of 300 images, 10 epochs, and its parts."""
    people, images, rounds = 400, 300, 6
    data = ClientData(
        torch.rand(people * images, 3, 32, 32),
        torch.randint(10, (people * images,)),
        np.arange(0, people * images, images),
        np.full(people, images),
    )
    plan = PrivacyPlan(
        num_clients=people,
        rounds=rounds,
        clip_norm=0.7,
        noise_multiplier=1.0,
        sampler=FixedSizeSampling(cohort=100),
    )
    local = LocalSGD(epochs=10, batch_size=BATCH, learning_rate=0.1, precision="bfloat16")
    test = (torch.rand(26_000, 3, 32, 32), torch.randint(10, (26_000,)))
    parts: list[dict[str, float]] = [{}]
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        for owner, name in (
            (VmappedUpdate, "__call__"),
            (engine, "clipped_sum"),
            (server, "denoise"),
            (run, "evaluate"),
            (RunFolder, "record"),
        ):
            patch.setattr(owner, name, _added(getattr(owner, name), name, parts))
        began = [time.perf_counter()]

        def told(_: object) -> None:
            began.append(time.perf_counter())
            parts.append({})

        train(
            model=cnn(), clients=data, plan=plan, local=local, denoiser=LaplacianSmoothing(),
            test=test, test_from="made up", evaluate_every=rounds, folder=f"{folder}/run",
            device="cuda", watch=[told],
        )  # fmt: skip
    for k in range(1, rounds):
        found = ", ".join(f"{name} {1e3 * s:.1f}" for name, s in parts[k].items())
        print(f"round {k + 1}: {1e3 * (began[k + 1] - began[k]):.0f} ms, of which {found}")


def _added(function: Callable, name: str, parts: list[dict[str, float]]) -> Callable:
    """The function, its seconds added to the last of the parts."""

    def timed(*args: object, **named: object) -> object:
        torch.cuda.synchronize()
        began = time.perf_counter()
        found = function(*args, **named)
        torch.cuda.synchronize()
        parts[-1][name] = parts[-1].get(name, 0.0) + time.perf_counter() - began
        return found

    return timed


def _timed(action: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    began = time.perf_counter()
    action()
    torch.cuda.synchronize()
    return time.perf_counter() - began


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=[*CASES, "round"])
    parser.add_argument("--profile", action="store_true")
    given = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("benchmarks/gpu.py needs a GPU that torch can see; there is none here")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    for case in given.cases:
        if case == "round":
            whole_round()
            continue
        for kind in ("float32", "bfloat16"):
            measure(case, kind, given.profile)
