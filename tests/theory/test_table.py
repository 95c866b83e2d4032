from __future__ import annotations

import math

import pytest

from dpfedls import theory
from problems import PROBLEM, changed


def test_every_row_of_table_1_evaluates():
    target = theory.Target(epsilon=2.0, delta=1e-5, accuracy=0.01, samples=10)
    rows = theory.table_1(PROBLEM, target)
    assert len(rows) == 9
    assert [row["part"] for row in rows] == ["utility"] * 5 + ["communication"] * 4
    dashes = [(row["strongly_convex"] is None, row["non_convex"] is None) for row in rows]
    assert [sum(column) for column in zip(*dashes, strict=True)] == [2, 3]
    values = [row[name] for row in rows for name in ("strongly_convex", "non_convex")]
    assert all(value > 0 for value in values if value is not None)
    # As in the paper's caption, logarithms are left out of single cells.
    marked = [str(row["strongly_convex_formula"]).endswith("‡") for row in rows]
    assert marked == [False] * 6 + [True] * 3
    assert not any(str(row["non_convex_formula"]).endswith("‡") for row in rows)


def test_table_1_values_by_hand():
    problem = changed(strength=2.0, dim=10)
    target = theory.Target(epsilon=2.0, delta=1e-5, accuracy=0.01, samples=10)
    values = [
        (row["strongly_convex"], row["non_convex"]) for row in theory.table_1(problem, target)
    ]
    d1, d2, n, log = *(theory.effective_dimension(10, 2.0, p) for p in (1, 2)), 1e4, math.log(1e5)
    mu, spread = 0.5 / 9, 0.7 / 500 + 0.99 * 0.16 / 100
    expected = [
        (10 * math.log(1e9) ** 3 / (0.5 * n**2 * 4), None),
        (10 * math.log(n) * log / (0.5 * n**2 * 4), math.sqrt(10 * log) / (n * 2)),
        (None, math.sqrt(10 * log) / (n * 10 * 2)),
        (None, math.sqrt(d2 * log) / (n * 2)),
        (d1 * math.log(n) * log / (mu * n**2 * 4), math.sqrt(d2 * log) / (n * 2)),
        (0.7 / (0.25 * n * 5 * 0.01) + 0.16 * 5 / (0.25 * 0.01), None),
        ((0.86 / (n * 5 * 0.01) + (math.sqrt(0.7) + 0.4) / 0.1 + n * 2.25) / 0.5, None),
        ((spread / 0.01 + 0.4 / 0.1 + 2.25) / 0.5, spread / 1e-4 + 0.4 / 1e-3 + 2.25 / 0.01),
        (
            ((spread + d1 * 36 / 1e4) / 0.01 + 0.4 / 0.1 + 9 * 2.25) / mu,
            (spread + d2 * 36 / 1e4) / 1e-4 + 0.4 / 1e-3 + 9 * 2.25 / 0.01,
        ),
    ]
    for row, hands in zip(values, expected, strict=True):
        for found, hand in zip(row, hands, strict=True):
            assert found == (None if hand is None else pytest.approx(hand, rel=1e-9))


def test_dp_fed_ls_without_noise_and_smoothing_is_fed_avg():
    target = theory.Target(epsilon=2.0, delta=1e-5, accuracy=0.01)
    rows = theory.table_1(changed(strength=0.0, noise_multiplier=0.0), target)
    for name in ("strongly_convex", "non_convex"):
        assert rows[-1][name] == pytest.approx(rows[-2][name])
        assert rows[4]["non_convex"] == rows[1]["non_convex"]  # upper part: d̃_0 = d


def test_table_1_is_corollary_1_where_the_table_takes_constants_to_be_one():
    problem = changed(smoothness=1.0, distance=1.0, initial_gap=1.0)
    target = theory.Target(epsilon=2.0, delta=1e-5, accuracy=0.003)
    last = theory.table_1(problem, target)[-1]
    for name, case in (("strongly_convex", "strongly-convex"), ("non_convex", "non-convex")):
        terms = theory.communication(problem, case, 0.003)
        assert last[name] == pytest.approx(sum(terms.values()))
