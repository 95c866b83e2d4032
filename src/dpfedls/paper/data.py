"""What the runs of an item were trained on, in words for its title."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from dpfedls.tasks import svhn

_STAND_IN = "generated street digits, a stand-in for SVHN: NOT SVHN"

# Other tasks go by their own name. What a person holds may depend on how many share the data.
_NAMES: dict[str, str | Callable[[int], str]] = {
    "mnist5k-logistic": "5,000 MNIST images",
    "mnist-logistic": "MNIST",
    "shakespeare-lstm": "Shakespeare",
    "street-digits-attack": _STAND_IN,
    "street-digits-cnn": _STAND_IN,
    "street-digits-cnn-pretrained": _STAND_IN,
    "svhn5k-cnn": "5,000 images of SVHN",
    "svhn-attack": lambda clients: f"{svhn.ATTACKED * clients:,} images of SVHN",
    "svhn-cnn": partial(svhn.about, svhn.TRAIN),
    "svhn-cnn-scratch": partial(svhn.about, svhn.TRAIN),
    "svhn-extra-cnn": partial(svhn.about, svhn.WITH_EXTRA),
    "svhn-extra-cnn-scratch": partial(svhn.about, svhn.WITH_EXTRA),
}


def describe(task: str, num_clients: int) -> str:
    """What a run of this task is trained on here and now."""
    name = _NAMES.get(task, task)
    return name if isinstance(name, str) else name(num_clients)
