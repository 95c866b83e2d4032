"""Portions to evaluate: all samples in order, and as many as a card's memory bears."""

from __future__ import annotations

import pytest
import torch

from dpfedls.people.samples import portion, portions

GIB = 2**30


def test_batches_hold_every_sample_once_and_in_order():
    features, targets = torch.arange(4_500).view(-1, 1), torch.arange(4_500).to(torch.uint8)
    parts = list(portions((features, targets), torch.device("cpu")))
    assert [len(y) for _, y in parts] == [2000, 2000, 500]
    assert torch.equal(torch.cat([x for x, _ in parts]), features)
    assert all(y.dtype == torch.int64 for _, y in parts)


@pytest.mark.parametrize(
    ("taken", "memory", "expected"),
    [
        (GIB, 8 * GIB, 2_000),  # a small card stays as it was
        (GIB, 16 * GIB, 2_000),
        (GIB, 139 * GIB, 16_000),  # a sixteenth is 8.7 GiB
        (0, 139 * GIB, 2**16),  # a tiny model: bounded all the same
    ],
)
def test_a_batch_takes_at_most_a_sixteenth_of_the_card(taken, memory, expected):
    assert portion(taken, memory) == expected


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_has_larger_batches_after_the_first():
    samples = torch.zeros(200_000, 1), torch.zeros(200_000, dtype=torch.int64)
    sizes = [len(y) for _, y in portions(samples, torch.device("cuda"))]
    assert sizes[:2] == [2000, 2**16]
    assert sum(sizes) == 200_000
