"""Columns of a pandas frame or of a data set: features, targets and owners, as arrays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from torch.utils.data import default_collate

from dpfedls.errors import InputError, unknown

Columns = tuple[Any, Any, Any]
"""Features, targets and users, one row a sample each."""


def frame_columns(
    frame: Any, user: str, target: str, features: str | Sequence[str] | None
) -> Columns:
    """Of a pandas frame: the features are one float32 matrix."""
    names = _names(list(frame.columns), user, target, features)
    for name in (user, target, *names):
        if bool(frame[name].isna().any()):
            raise InputError(
                f"column {name!r} has missing values, the first at row "
                f"{int(np.argmax(np.asarray(frame[name].isna())))}; a model cannot read them: fill "
                f"them, or leave them out by frame.dropna(subset=[{name!r}])"
            )
    for name in (target, *names):
        if frame[name].dtype.kind not in "biuf":
            codes = f"frame[{name!r}].astype('category').cat.codes"
            columns = f"pandas.get_dummies(frame, columns=[{name!r}]), or its codes by {codes}"
            raise InputError(
                f"column {name!r} holds {frame[name].dtype}, not numbers, and models read numbers: "
                f"use {codes if name == target else columns}"
            )
    x = np.empty((len(frame), len(names)), dtype=np.float32)
    for k, name in enumerate(names):
        x[:, k] = frame[name].to_numpy(dtype=np.float32)
    whole = frame[target].dtype.kind != "f"
    y = frame[target].to_numpy(dtype=np.int64 if whole else np.float32)
    return x, y, frame[user]


def dataset_columns(
    dataset: Any, user: str, target: str, features: str | Sequence[str] | None
) -> Columns:
    """Of a Hugging Face data set by column, of a torch data set item by item."""
    if hasattr(dataset, "column_names"):
        names = _names(dataset.column_names, user, target, features)
        arrays = dataset.with_format("numpy")
        return _inputs(arrays, names, features), arrays[target][:], arrays[user][:]
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise InputError(
            f"a {type(dataset).__name__} has no items by number; give a map-style data set, with "
            "__getitem__ and __len__"
        )
    items = [dataset[i] for i in range(len(dataset))]
    if not items:
        raise InputError("the data set holds no items; there is nobody to train on")
    if all(isinstance(item, dict) for item in items):
        names = _names(list(items[0]), user, target, features)
        users = [item[user] for item in items]
        kept = [{name: item[name] for name in (target, *names)} for item in items]
        columns = collated(kept, "the data set")
        return _inputs(columns, names, features), columns[target], plain(users)
    if all(isinstance(item, tuple | list) and len(item) == 3 for item in items):
        x, y = collated([tuple(item[:2]) for item in items], "the data set")
        return x, y, plain([item[2] for item in items])
    raise InputError(
        "items of the data set are neither dicts nor (features, target, user); each sample needs "
        f"an owner: return {{'x': …, {target!r}: …, {user!r}: …}}"
    )


def collated(items: list[Any], where: str) -> Any:
    """Items as one batch: tuples stay tuples, dicts stay dicts, their leaves become tensors."""
    try:
        batch = default_collate(items)
    except (TypeError, RuntimeError, KeyError) as error:
        raise InputError(
            f"samples of {where} cannot be stacked ({str(error).splitlines()[0][:200]}); all train "
            "one model, so return tensors of one shape"
        ) from error
    return _tuples(batch)


def plain(users: list[Any]) -> list[Any]:
    """Owners as plain labels: a tensor of one number is that number."""
    return [user.item() if hasattr(user, "item") else user for user in users]


def _tuples(batch: Any) -> Any:
    """Torch makes lists of tuples; here a list would be data and a tuple is several inputs."""
    if isinstance(batch, dict):
        return {name: _tuples(part) for name, part in batch.items()}
    return tuple(_tuples(part) for part in batch) if isinstance(batch, list | tuple) else batch


def _inputs(columns: Any, names: list[str], asked: str | Sequence[str] | None) -> Any:
    """One array where there is one column, or a dict of them, as the model will get it."""
    if len(names) == 1 and (asked is None or isinstance(asked, str)):
        return columns[names[0]][:]
    return {name: columns[name][:] for name in names}


def _names(
    there: Iterable[str], user: str, target: str, features: str | Sequence[str] | None
) -> list[str]:
    """The feature columns: those named, or all but the user's and the target's."""
    there = list(there)
    named = [features] if isinstance(features, str) else features
    for name in (user, target, *(named or ())):
        if name not in there:
            raise unknown("column", str(name), map(str, there))
    names = list(named) if named else [name for name in there if name not in (user, target)]
    for name in (user, target, *names):
        if there.count(name) > 1:
            raise InputError(
                f"there are {there.count(name)} columns named {name!r}, and a name must say which "
                "one is meant: rename them, or keep the first of each by frame = "
                "frame.loc[:, ~frame.columns.duplicated()]"
            )
    if not names:
        raise InputError(
            f"there is no column of features beside {user!r} and {target!r}; a model needs inputs: "
            "name them by features=[…]"
        )
    if user in names or target in names:
        raise InputError(
            f"features names {user if user in names else target!r}, which is the owner or the "
            "target; a model must not read either: leave it out"
        )
    return names
