"""Whether vmap can train a model: tried once, on made-up samples, against the slow twin.

Nothing of anybody's is looked at but the shape and dtype of a sample, which all have in common, so
which engine trains is public.
"""

from __future__ import annotations

import copy
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from dpfedls.engine.engine import first_line
from dpfedls.engine.looped import LoopedUpdate
from dpfedls.engine.vmapped import VmappedUpdate
from dpfedls.errors import InputError
from dpfedls.local_sgd import LocalSGD, Rows, Tree
from dpfedls.people.lazy import example
from dpfedls.people.samples import each
from dpfedls.people.stateful import kept, snapshot


class NotVmapped(Exception):
    """vmap cannot train this model; the text is the reason, in one line."""


def probe(update: VmappedUpdate) -> None:
    """Refuse what vmap cannot train, or trains otherwise than the slow twin does."""
    if not update.data.sizes.any():
        raise NotVmapped("nobody has a sample")
    # What they keep of made-up samples is not people's.
    model, loss = copy.deepcopy((update.model, update.loss))
    before = snapshot(model, loss)
    params = update.layout.read(model)
    data = MadeUp.like(update.data, params.device)
    # One step of a batch that is short: what fills it must not change what is learned from it.
    local = LocalSGD(steps=1, batch_size=3, projection="final", precision=update.local.precision)
    parts = (model, loss, update.layout, data, local)
    asked = (params, np.arange(2), 0, 0, 1.0)
    vmapped = VmappedUpdate(*parts)
    try:
        with _all_bits():
            twin = LoopedUpdate(*parts)
            expected = twin(*asked)
    except InputError:
        raise
    except Exception as error:
        raise NotVmapped(f"the model fails on made-up samples, {_where(error)}") from error
    try:
        with warnings.catch_warnings(), _all_bits():
            warnings.simplefilter("ignore")  # of slow rules: still faster than one by one
            found = vmapped(*asked)
    except Exception as error:
        raise NotVmapped(_where(error)) from error
    if stateful := kept(before, snapshot(model, loss)):
        raise NotVmapped(f"{stateful} from one call to the next")
    changed = [name for name, tensor in vmapped.constants.items() if tensor._version]
    if changed:
        raise NotVmapped(f"buffer {changed[0]!r} changes when the model runs")
    if found.isnan().any() and not expected.isnan().any():  # attention to nothing: 0 ÷ 0
        raise NotVmapped(
            "it gives NaN for samples of zeros, where one by one it does not; if 0 is padding, let "
            "its mask leave one position: mask[:, 0] = False"
        )
    rounding = _rounding(local.precision, params)
    with _all_bits():
        nearby = twin(_rounded(params, rounding), *asked[1:])
    if not _alike(found, expected, nearby, rounding):
        raise NotVmapped("it learns otherwise from a short batch: samples of a batch depend on it")


@dataclass(frozen=True)
class MadeUp:
    """Two clients of two made-up samples."""

    features: Tree
    targets: Tree
    starts: np.ndarray = field(default_factory=lambda: np.array([0, 2]))
    sizes: np.ndarray = field(default_factory=lambda: np.array([2, 2]))

    @classmethod
    def like(cls, data: Rows, device: torch.device) -> MadeUp:
        """Of the shape and dtype that all people's samples have.

        Fractions between 0 and 1, which are probabilities too, and zeros for whole numbers, which
        are tokens and labels too.
        """
        rng = torch.Generator().manual_seed(0)

        def samples(like: Tensor) -> Tensor:
            shape = (4, *like.shape[1:])
            drawn = torch.rand(shape, generator=rng).to(like)
            return drawn if like.is_floating_point() else torch.zeros_like(drawn)

        return cls(*tree_map_only(Tensor, samples, each(lambda v: v.to(device), example(data))))

    def take(self, rows: Tensor, padded: bool = False) -> tuple[Tree, Tree]:
        """As ``ClientData.take``."""
        rows = torch.where(rows < 0, ~rows, rows)
        return tree_map_only(Tensor, lambda part: part[rows], (self.features, self.targets))


def _alike(found: Tensor, expected: Tensor, nearby: Tensor, rounding: float) -> bool:
    """To rounding; what is not a number for both is alike.

    ``nearby`` is the twin's update from weights that were rounded. Where that alone moves it, as
    where pixels are all equal and each is the maximum that pooling takes, a gap means nothing.
    """
    broken = expected.isnan()
    if not torch.equal(found.isnan(), broken):
        return False
    gap, length, moved = (
        (t[~broken]).nan_to_num().norm() for t in (found - expected, expected, nearby - expected)
    )
    return bool(gap <= rounding * length + 4 * moved)


def _rounded(params: Tensor, rounding: float) -> Tensor:
    """Weights as far from these as their last bits in a precision that errs so much."""
    rng = torch.Generator().manual_seed(0)
    noise = torch.randn(params.shape, generator=rng).to(params)
    return params * (1 + rounding / 50 * noise)


def _rounding(precision: str, params: Tensor) -> float:
    """How far the two may be apart: more does something else than round. Bits are a 50th of it.

    They sum in other orders, and in bfloat16 round after every operation. On a GPU torch may round
    float32 to TF32, three bits finer than bfloat16, and our convolutions do not.
    """
    if precision == "bfloat16":
        return 0.2
    return 0.2 / 8 if params.is_cuda else 1e-3


@contextmanager
def _all_bits() -> Iterator[None]:
    """float32 in convolutions on a GPU, which torch would round to TF32 unless told otherwise."""
    try:
        before = torch.backends.cudnn.allow_tf32
    except RuntimeError:  # somebody has chosen for each kind of layer, and it stays so
        yield
        return
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before


def _where(error: BaseException) -> str:
    """What an exception says, and the innermost layer it comes from."""
    frames = (frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__))
    layers = [type(owner).__name__ for owner in frames if isinstance(owner, nn.Module)]
    said = first_line(error)
    return f"{layers[-1]} cannot ({said})" if layers else said
