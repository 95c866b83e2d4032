"""Whether a model can learn from samples: tried on two of them, then looked for in all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from dpfedls.errors import InputError
from dpfedls.people.losses import Loss, cross_entropy
from dpfedls.people.samples import Features, Samples, as_input, each, leaves

_ROWS = 2**14  # not all at once: the data may be most of the memory


@torch.no_grad()
def check_fit(model: nn.Module, samples: Samples, where: str, loss: Loss) -> int | None:
    """Try the model and the loss on two samples; how many classes there are for cross-entropy."""
    features = each(lambda values: as_input(values[:2]).cpu().clone(), samples[0])
    targets = as_input(samples[1][:2]).cpu()
    try:
        outputs = _constant_outputs(model, features)
    except _Failed as failed:
        raise InputError(_cannot_be_fed(model, features, where, failed)) from failed
    # Samples that are no numbers are refused by name, in check_values.
    sound = all(bool(torch.isfinite(values).all()) for values in leaves((features, targets)))
    if sound and isinstance(outputs, Tensor) and not torch.isfinite(outputs).any():
        raise InputError(
            f"the model returns {outputs.flatten()[0]:g} for samples of {where}; an update that"
            " is no number counts as zero: look for a log, a root or a division"
        )
    if loss is not cross_entropy:
        losses, again = (_losses(model, features, targets, where, loss) for _ in range(2))
        if not _same(losses, again):
            raise InputError(
                "loss answers the same outputs and targets differently each time, so one person's "
                "samples would change what others learn; make it a function of these two alone, "
                "without a counter or anything drawn at random"
            )
        _check_losses(losses, where, sound)
        return None
    if targets.is_floating_point() or targets.dim() != 1:
        several = _is_whole(targets) and targets[0].numel() > 1
        mean = ", the mean over positions, if each has a label" if several else ""
        raise InputError(
            f"{where} has targets of {targets.dtype} and {targets.dim()} dimensions; cross-entropy "
            f"needs one integer label a sample: use {_as_labels(targets)}, or pass loss=…{mean}"
        )
    if not isinstance(outputs, Tensor) or outputs.dim() != 2 or len(outputs) != len(targets):
        got = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise InputError(
            f"the model returns {got} for {len(targets)} samples of {where}; cross-entropy needs "
            "one score a class for each: change the last layer, or pass loss=…"
        )
    return outputs.shape[1]


@torch.no_grad()
def check_values(
    model: nn.Module, samples: Samples, where: str, loss: Loss, classes: int | None
) -> None:
    """Refuse numbers that are none, tokens that the model does not know, labels it cannot give."""
    _check_finite(leaves(samples[0]), where, "features", "remove or fix them")
    mend = "remove or fix them, or mark what is missing by a number that your loss leaves out"
    _check_finite([samples[1]], where, "targets", mend)
    _check_tokens(model, samples[0], where)
    labels = as_input(samples[1])
    if classes is None:
        _check_labels(model, samples[0], labels, where, loss)
        return
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        relabel = "use y - 1" if low > 0 and high == classes else "relabel"
        mend = f"labels must be 0 to {classes - 1}: {relabel}, or widen the last layer"
        if classes == 1:
            mend = "for two classes give it two, or pass loss=…, as docs/your-data.md has it"
        elif low < 0:
            mend = f"labels must be 0 to {classes - 1}: {_leave_out(low)}"
        raise InputError(
            f"{where} has labels from {low} to {high}, but the model has {classes} outputs; {mend}"
        )


def _check_labels(
    model: nn.Module, features: Features, labels: Tensor, where: str, loss: Loss
) -> None:
    """Try a loss of somebody's own on the smallest and the largest label.

    The engines would not: under vmap torch takes class -1 for the last one, and says nothing.
    """
    if not _is_whole(labels):
        return
    by_row = labels.reshape(len(labels), -1)
    rows = torch.stack([by_row.amin(dim=1).argmin(), by_row.amax(dim=1).argmax()])
    tried = each(lambda values: as_input(values[rows]).cpu(), features)
    _losses(model, tried, labels[rows].cpu(), where, loss)


def _losses(model: nn.Module, features: Features, targets: Tensor, where: str, loss: Loss) -> Any:
    outputs = None
    try:
        with torch.enable_grad():
            outputs = _run(model, features)
            return loss(outputs, targets)
    except Exception as error:
        raise InputError(
            f"loss fails on the model's outputs for samples of {where} ({_first_line(error)}); "
            f"outputs have {_said(outputs)}, targets {_said(targets)}{_mend(outputs, targets)}"
        ) from error


def _leave_out(label: int) -> str:
    """How to mend a negative label, which stands for none."""
    if label == _IGNORED:
        return (
            f"{_IGNORED} marks what torch leaves out; leave these samples out, or pass "
            'loss=torch.nn.CrossEntropyLoss(reduction="none"), which does'
        )
    return "leave out samples that have none, and number the classes from 0"


_IGNORED = -100  # ignore_index of torch's losses


def _check_losses(losses: Any, where: str, sound: bool) -> None:
    """Refuse a loss of which nothing can be learned: every update would count as zero."""
    if not isinstance(losses, Tensor):  # said where training needs it
        return
    if not losses.requires_grad:
        raise InputError(
            f"loss has no gradient at the model's outputs for samples of {where}; nothing can be "
            "learned from it: leave out .detach(), .item(), argmax and comparisons"
        )
    if sound and not torch.isfinite(losses).any():
        raise InputError(
            f"loss is {losses.flatten()[0]:g} at the model's outputs for samples of {where}, and "
            "an update that is no number counts as zero; look for a log, a root or a division"
        )


def _check_finite(tensors: list[Tensor], where: str, what: str, mend: str) -> None:
    for values in tensors:
        parts = values.split(_ROWS) if values.is_floating_point() else ()
        broken = [~torch.isfinite(as_input(p)).unsqueeze(-1).flatten(1).all(dim=1) for p in parts]
        rows = torch.cat(broken).nonzero().flatten().tolist() if broken else []
        if rows:
            raise InputError(
                f"{where} has {len(rows)} samples with NaN or infinite {what}, the first at row "
                f"{rows[0]}; they would spoil every average: {mend}"
            )


def _check_tokens(model: nn.Module, features: Features, where: str) -> None:
    """Try the smallest and the largest whole number of every position.

    A model that can be fed these two can be fed all: what it looks up lies between them. One that
    cannot may have other reasons, so it is then tried on the samples themselves.
    """
    whole = [v for v in leaves(features) if _is_whole(v)]
    if not whole or _runs(model, each(_extremes, features)):
        return
    try:
        for start in range(0, len(whole[0]), _ROWS):
            _run(model, each(lambda v, at=start: as_input(v[at : at + _ROWS]).cpu(), features))
    except _Failed as failed:
        whole = list(map(as_input, whole))
        low, high = min(int(v.min()) for v in whole), max(int(v.max()) for v in whole)
        raise InputError(
            f"{where} has tokens from {low} to {high}, which the model cannot be fed: {failed}; "
            "renumber them, or widen the layer"
        ) from failed


def _extremes(values: Tensor) -> Tensor:
    """Two samples: the smallest and the largest whole number of every position."""
    values = as_input(values)
    if not _is_whole(values):
        return values[:1].expand(2, *values.shape[1:]).cpu()
    return torch.stack([values.amin(dim=0), values.amax(dim=0)]).cpu()


def _is_whole(values: Tensor) -> bool:
    return not values.is_floating_point() and values.dtype != torch.bool


def _constant_outputs(model: nn.Module, features: Features) -> Any:
    """The model's outputs, once it is seen that running it draws nothing and changes nothing."""
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    given = leaves(each(Tensor.clone, features))
    with torch.random.fork_rng(devices=[]):
        outputs = _run(model, features)
        if not all(map(_same, leaves(features), given)):
            raise InputError(
                "the model changes its inputs in place, and they are people's own samples; let it "
                "make new ones: x = x * 2, not x.mul_(2), and no inplace=True in its first layer"
            )
        again = _run(model, features)
        _runs(model, each(torch.zeros_like, features))
    for name, buffer in model.named_buffers():
        if not _same(buffer, before[name]):
            raise InputError(
                f"buffer {name!r} changes when the model runs and would leave without noise; keep "
                "it constant, or set its module to .eval()"
            )
    if not all(map(_same, leaves(outputs), leaves(again))):
        raise InputError(
            "the model answers the same samples differently each time, so a run could not be "
            "repeated; take out what it draws at random, such as functional.dropout"
        )
    return outputs


def _same(one: Any, other: Any) -> bool:
    if not isinstance(one, Tensor):
        return True
    return torch.equal(one.nan_to_num(), other.nan_to_num())


class _Failed(Exception):
    """A model that raised; the text says which layer, on what, and what it said."""


def _runs(model: nn.Module, features: Features) -> bool:
    try:
        _run(model, features)
    except _Failed:
        return False
    return True


def _run(model: nn.Module, features: Features) -> Any:
    """The model's outputs, or which of its layers failed."""
    running: list[tuple[str, nn.Module, Any]] = []

    def leave(*_: Any) -> None:
        running.pop()

    hooks = []
    for name, module in model.named_modules():
        enter = lambda module, given, name=name: running.append((name, module, given))  # noqa: E731
        hooks += [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]
    try:
        return model(features)
    except Exception as error:
        name, module, given = running[-1] if running else ("", model, (features,))
        layer = f"module {name!r} ({type(module).__name__}{_range(module)})" if name else "it"
        shapes = ", ".join(str(tuple(v.shape)) for v in leaves(given) if isinstance(v, Tensor))
        raise _Failed(
            f"{layer}, given {shapes or 'nothing'}, says {_first_line(error)!r}"
        ) from error
    finally:
        for hook in hooks:
            hook.remove()


def _range(module: nn.Module) -> str:
    known = getattr(module, "num_embeddings", None)
    return f"{_KNOWS} 0 to {known - 1}" if isinstance(known, int) else ""


_KNOWS = ", which knows"


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__


def _cannot_be_fed(model: nn.Module, features: Features, where: str, failed: _Failed) -> str:
    """What to say; of whole numbers and masks first whether floats would do."""
    whole = [values for values in leaves(features) if not values.is_floating_point()]
    if whole:
        try:
            _constant_outputs(model, each(Tensor.float, features))
        except _Failed as as_floats:  # says more, but of layers that look whole numbers up
            failed = failed if _KNOWS in str(failed) else as_floats
        else:
            masks = all(values.dtype == torch.bool for values in whole)
            kind = "True and False" if masks else "whole numbers"
            pixels = "" if masks else ", and divide pixels by 255"
            return (
                f"{where} has features of {kind}, but the model needs floats; convert them with "
                f'x.float(), an array with x.astype("float32"){pixels}'
            )
    shapes = ", ".join(str(tuple(v.shape[1:])) for v in leaves(features))
    kind = "" if isinstance(features, Tensor) else f", as one {type(features).__name__}"
    mends = (mend for mend, change in _MENDS.items() if _would_fit(model, features, change))
    said = next((f"give {mend}, which fits" for mend in mends), "make model and features fit")
    if not isinstance(features, Tensor):
        stars = "**" if isinstance(features, dict) else "*"
        said = f"if it takes them apart, wrap it in a module whose forward(x) calls model({stars}x)"
    return f"the model cannot be fed a sample of {where}, of shape {shapes}{kind}: {failed}; {said}"


_MENDS: dict[str, Callable[[Tensor], Tensor]] = {
    "channels first by x.permute(0, 3, 1, 2).float()": lambda x: x.permute(0, 3, 1, 2),
    "one channel by x.unsqueeze(1).float()": lambda x: x.unsqueeze(1),
    "rows by x.flatten(1).float()": lambda x: x.flatten(1),
}


def _would_fit(model: nn.Module, features: Features, change: Callable[[Tensor], Tensor]) -> bool:
    """Whether the model takes them laid out otherwise, with outputs for each sample."""
    if not isinstance(features, Tensor) or features.dim() < 3:
        return False
    try:
        outputs = _run(model, change(features.float()))
    except (_Failed, RuntimeError):  # of five dimensions, say
        return False
    return isinstance(outputs, Tensor) and outputs.shape[:1] == features.shape[:1]


def _said(values: Any) -> str:
    if not isinstance(values, Tensor):
        return f"the type {type(values).__name__}"
    return f"shape {tuple(values.shape)}, {str(values.dtype).removeprefix('torch.')}"


def _as_labels(targets: Tensor) -> str:
    """How targets become one integer label a sample."""
    if targets.dim() == 1:
        return "y.long() or y.astype(int)"
    if targets[0].numel() == 1:
        return "y.ravel()"
    return "y.argmax(1) if they are one-hot"


def _mend(outputs: Any, targets: Tensor) -> str:
    """What usually has to be done to negative labels, or to the outputs of a model with one."""
    if _is_whole(targets) and int(targets.min()) < 0:
        low, high = int(targets.min()), int(targets.max())
        return f", from {low} to {high}; {_leave_out(low)}"
    if not isinstance(outputs, Tensor) or outputs.dim() != 2 or outputs.shape[1] != 1:
        return ""
    return "; try outputs.squeeze(-1) and targets.float()"
