"""What ``dpfedls reproduce`` can make. Nothing is imported before it is asked for."""

from __future__ import annotations

import importlib

from dpfedls.errors import InputError, unknown
from dpfedls.paper.item import Item, Maker, Options

# name: (module:function in this package, title)
ITEMS = {
    "table1": ("table1:make", "Table 1: the rates, as formulas with values"),
    "table2": ("tables:table2", "Table 2: MNIST, logistic regression"),
    "table3": ("tables:table3", "Table 3: CNN on SVHN"),
    "table4": ("tables:table4", "Table 4: James–Stein and thresholding, CNN on SVHN"),
    "table5": ("tables:table5", "Table 5: orders of flattening, CNN on SVHN"),
    "table6": ("tables:table6", "Table 6: Shakespeare, LSTM"),
    "server-rates-mnist": ("server_rates:mnist", "best server rate of each method: MNIST"),
    "server-rates-demo": (
        "server_rates:demo",
        "best server rate of each method: 5,000 MNIST images",
    ),
    "server-rates-cnn": (
        "server_rates:cnn",
        "best server rate of each method: CNN on SVHN",
    ),
    "svhn-cells": ("svhn_cells:make", "every cell of the CNN on SVHN that was run"),
    "server-rates-lstm": ("server_rates:lstm", "best server rate of each method: Shakespeare"),
    "choices-mnist": ("choices:mnist", "one setting at a time: MNIST"),
    "realised-cohort": (
        "realised_cohort:make",
        "Algorithm 1's own denominator, which is NOT private: MNIST",
    ),
    "fourier": ("figures.fourier:make", "Fourier magnitudes of the aggregated update"),
    "fourier-mnist": (
        "figures.fourier:mnist",
        "Fourier magnitudes of the aggregated update: MNIST",
    ),
    "mnist-curves": ("figures.curves:mnist", "training curves: MNIST"),
    "svhn-curves": ("figures.curves:svhn", "training curves: CNN on SVHN"),
    "shakespeare-curves": ("figures.curves:shakespeare", "training curves: Shakespeare"),
    "stability": ("figures.stability:make", "training under large noise and learning rates"),
    "attack": ("figures.attack:make", "AUC of the threshold attack by round"),
    "attack-svhn5k": (
        "figures.attack:small",
        "AUC of the threshold attack by round: 5,000 SVHN images",
    ),
    "accountants": ("figures.accountants:make", "closed forms against accountants"),
    "lemmas": ("figures.lemmas:make", "the two inequalities of the lemmas"),
    "plane": ("figures.plane:make", "gradient descent in the plane, with and without smoothing"),
    "sine": ("figures.sine:make", "sin(x) denoised"),
}


_OF_LINES = {
    *(f"table{n}" for n in range(2, 7)),
    *("mnist-curves", "svhn-curves", "shakespeare-curves", "attack", "attack-svhn5k", "stability"),
}
_IN_PART = _OF_LINES | {"svhn-cells"}  # --finished: the cells that are there
_OF_CELLS = {  # --only: the cells asked for
    *_OF_LINES,
    *(f"server-rates-{task}" for task in ("mnist", "demo", "cnn", "lstm")),
    *("choices-mnist", "realised-cohort"),
}


def chosen(name: str) -> list[str]:
    """The item of that name, or every one for ``all``."""
    if name == "all":
        return list(ITEMS)
    if name not in ITEMS:
        raise unknown("item", name, [*ITEMS, "all"])
    return [name]


def make(name: str, options: Options) -> Item:
    """Make one item."""
    if options.only and name not in _OF_CELLS:
        raise InputError(
            f"--only {options.only[0]!r} has no meaning for {name}, which is made whole or not at "
            "all; leave it out"
        )
    if options.finished and name not in _IN_PART:
        raise InputError(
            f"--finished has no meaning for {name}, which cannot be shown with cells missing; "
            f"leave it out, or ask for one of {', '.join(sorted(_IN_PART))}"
        )
    module, function = ITEMS[name][0].split(":")
    maker: Maker = getattr(importlib.import_module(f"dpfedls.paper.{module}"), function)
    return maker(options)
