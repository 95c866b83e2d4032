from __future__ import annotations

import pytest

from dpfedls.paper.published import published

COUNTS = {"table2": 32, "table3": 32, "table4": 16, "table5": 24, "table6": 32}


def test_every_published_accuracy_is_there_once():
    found = published().tables
    assert {
        name: sum(len(row) for part in table.parts.values() for row in part.accuracy)
        for name, table in found.items()
    } == COUNTS


@pytest.mark.parametrize("name", COUNTS)
def test_rows_and_columns_fit_the_accuracies(name):
    table = published().tables[name]
    assert list(table.parts) == ["uniform", "Poisson"]
    for part in table.parts.values():
        assert {len(part.accuracy)} == {len(values) for values in table.rows.values()}
        assert {len(row) for row in part.accuracy} == {4}
        assert {len(values) for values in part.columns.values()} == {4}
        assert "epsilon" in part.columns
        assert name == "table2" or "noise_multiplier" in part.columns


# Read off the paper's tables by hand: (table, part, row, column, accuracy).
SPOTS = [
    ("table2", "uniform", 0, 0, 78.41),
    ("table2", "Poisson", 2, 3, 85.87),
    ("table3", "uniform", 1, 1, 84.65),
    ("table3", "Poisson", 3, 0, 84.23),
    ("table4", "uniform", 0, 3, 61.77),
    ("table4", "Poisson", 1, 1, 16.96),
    ("table5", "uniform", 0, 1, 87.45),
    ("table5", "Poisson", 2, 3, 87.04),
    ("table6", "uniform", 3, 3, 43.95),
    ("table6", "Poisson", 0, 2, 40.19),
]


@pytest.mark.parametrize(("name", "part", "row", "column", "accuracy"), SPOTS)
def test_spots(name, part, row, column, accuracy):
    assert published().tables[name].parts[part].accuracy[row][column] == accuracy


def test_orders_as_in_table_3_repeat_its_numbers():
    """Table 5's BCWH is Table 3 at z = 1.1, as the paper says."""
    five, three = published().tables["table5"], published().tables["table3"]
    for name, part in five.parts.items():
        column = part.columns["order"].index("BCWH")
        theirs = three.parts[name].columns["noise_multiplier"].index(1.1)
        assert [row[column] for row in part.accuracy] == [
            row[theirs] for row in three.parts[name].accuracy[1:]
        ]


def test_the_fitted_lines():
    lines = published().lines
    assert (lines["theorem-1"].slope, lines["theorem-1"].intercept) == (-0.80, 3.31)
    accountant = lines["moments-accountant"]
    assert (accountant.slope, accountant.intercept) == (-0.73, 2.29)
