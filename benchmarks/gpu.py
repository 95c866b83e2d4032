"""One local step of many clients on a GPU: the paper's CNN and LSTM, all at once and one by one.

    python benchmarks/gpu.py [cnn] [lstm] [--profile]

Prints milliseconds a step, memory, the distance from the slow twin in float32, and what one client
after another would take. With --profile also where the time goes, by kernel.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from dpfedls.engine.vmapped import VmappedUpdate
from dpfedls.local_sgd import LocalSGD, LoopedUpdate
from dpfedls.parameters import Layout
from dpfedls.people.clients import ClientData
from dpfedls.people.losses import cross_entropy
from dpfedls.tasks.models import character_lstm, cnn

# model, how many clients, features of so many samples, steps timed, clip norm, learning rate
CASES: dict[
    str, tuple[Callable[[], nn.Module], int, Callable[[int], Tensor], int, float, float]
] = {
    "cnn": (cnn, 100, lambda n: torch.randn(n, 3, 32, 32), 6, 0.7, 0.1),
    "lstm": (
        lambda: character_lstm(80),
        195,
        lambda n: torch.randint(80, (n, 80), dtype=torch.uint8),
        2,
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
    classes = 10 if name == "cnn" else 80
    data = ClientData(
        draw(clients * size).cuda(),
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
    twin = update(LoopedUpdate, 2, "float32")(params, few, 0, 1, clip)
    found = update(VmappedUpdate, 2, precision)(params, few, 0, 1, clip)
    distance = float((found - twin).norm() / twin.norm())
    together = update(VmappedUpdate, steps, precision)
    seconds = min(_timed(lambda: together(params, everyone, 0, 1, clip)) for _ in range(PASSES))
    one = update(LoopedUpdate, steps, precision)
    alone = _timed(lambda: one(params, everyone[:10], 0, 1, clip)) * clients / 10
    print(
        f"{name} {precision}: {clients} clients x {BATCH}: {1e3 * seconds / steps:.2f} ms a step, "
        f"one after another {1e3 * alone / steps:.0f} ms, "
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


def _timed(action: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    began = time.perf_counter()
    action()
    torch.cuda.synchronize()
    return time.perf_counter() - began


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=[*CASES])
    parser.add_argument("--profile", action="store_true")
    given = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("benchmarks/gpu.py needs a GPU that torch can see; there is none here")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    for case in given.cases:
        for kind in ("float32", "bfloat16"):
            measure(case, kind, given.profile)
