"""Layers of many clients at once, faster than vmap's own way.

Inside ``client_layers``, layers called under vmap with separate weights per client become one
batched product each (linear, cross-entropy, the LSTM's recurrence), or kernels of ours on a GPU
(convolution and pooling in bfloat16, for which the vendor's library has no fast path when every
client has its own weights). Any other call, and any other layer, is left to torch: results agree,
only the time differs. No operation here adds across the first dimension, the clients.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from dpfedls.engine.recurrence import Recurrence, recurrence


class client_layers(TorchFunctionMode):  # noqa: N801 - used in a with statement, like no_grad
    """Override layers that have a faster form for many clients."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        chosen = _FASTER[func](*args, **(kwargs or {})) if func in _FASTER else None
        if chosen is None:
            return func(*args, **(kwargs or {}))
        return _OfClients.apply(partial(func, *args, **(kwargs or {})), *chosen)


class _OfClients(torch.autograd.Function):
    """Overrides vmap's rule by an operation on tensors whose first dimension is the clients."""

    @staticmethod
    def forward(plain: Any, many: Any, *inputs: Any) -> Any:
        return plain()  # outside of vmap: nothing here is per client, so nothing here is trained

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> Any:
        _, many, *parts = inputs
        led = [
            part
            if not isinstance(part, Tensor)
            else part.expand(info.batch_size, *part.shape)
            if dim is None
            else part.movedim(dim, 0)
            for part, dim in zip(parts, in_dims[2:], strict=True)
        ]
        return many.apply(*led), 0


# Each function below overrides one of torch: given its arguments, an operation and its inputs, or
# None to leave the call to torch. Parameters have torch's names, since callers may use them.


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:  # noqa: A002
    return (Linear, input, weight, bias) if weight.dim() == 2 else None


def _cross_entropy(input: Tensor, target: Tensor, **options: Any) -> Any:  # noqa: A002
    usual = {"weight": None, "ignore_index": -100, "reduction": "none", "label_smoothing": 0.0}
    named = {key: value for key, value in options.items() if key in usual}
    if named == usual and input.dim() == 2 and not target.is_floating_point():
        return CrossEntropy, input, target
    return None


def _conv2d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1,  # noqa: A002
    padding: Any = 0, dilation: Any = 1, groups: int = 1,
) -> Any:  # fmt: skip
    plain = groups == 1 and stride in (1, (1, 1)) and dilation in (1, (1, 1))
    if plain and isinstance(padding, tuple) and on_tensor_cores(input):
        return Convolution, input, weight, bias, padding
    return None


def _max_pool2d(input: Tensor, kernel_size: Any, stride: Any = None, **options: Any) -> Any:  # noqa: A002
    usual = {"padding": 0, "dilation": 1, "ceil_mode": False, "return_indices": False}
    if usual | options == usual and tiles(input, kernel_size, stride) and on_tensor_cores(input):
        return MaxPool, input, kernel_size
    return None


def _recurrence(driven: Tensor, weight: Tensor, bias: Tensor) -> Any:
    return Recurrence, driven, weight, bias


def tiles(images: Tensor, size: Any, stride: Any) -> bool:
    """Whether windows of this size tile the images exactly, without overlap."""
    # Positions in a window are stored as bytes, hence the 16.
    alike = isinstance(size, int) and size <= 16 and stride in (None, size)
    return alike and images.shape[-1] % size == 0 == images.shape[-2] % size


def on_tensor_cores(tensor: Tensor) -> bool:
    """Whether our kernels take this tensor."""
    return tensor.is_cuda and tensor.dtype == torch.bfloat16


_FASTER = {
    functional.linear: _linear,
    functional.cross_entropy: _cross_entropy,
    functional.conv2d: _conv2d,
    functional.max_pool2d: _max_pool2d,
    recurrence: _recurrence,
}


class Linear(torch.autograd.Function):
    """The gradient of the weights has the layout of the weights, so nothing needs a transpose."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        ctx.has_bias = bias is not None
        rows, transposed = _rows(inputs), weight.mT
        out = (
            rows.bmm(transposed) if bias is None else torch.baddbmm(bias[:, None], rows, transposed)
        )
        # Not a view: the layer after this one may write in place.
        return (
            out
            if inputs.dim() == 3
            else torch.ops.aten._unsafe_view(out, [*inputs.shape[:-1], weight.shape[1]])
        )

    @staticmethod
    def backward(ctx: Any, *d_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (inputs, weight), d_rows = ctx.saved_tensors, _rows(d_outputs[0])
        return (
            d_rows.bmm(weight).view(inputs.shape) if ctx.needs_input_grad[0] else None,
            d_rows.mT.bmm(_rows(inputs)),
            d_rows.sum(dim=1) if ctx.has_bias else None,
        )


def _rows(tensor: Tensor) -> Tensor:
    return tensor.reshape(len(tensor), -1, tensor.shape[-1])


class CrossEntropy(torch.autograd.Function):
    """One loss per sample, in four operations; under vmap torch splits its own into many more."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, labels: Tensor) -> Tensor:
        logarithms, counted = scores.log_softmax(dim=-1), labels != _IGNORED
        ctx.save_for_backward(labels, logarithms, counted)
        chosen = logarithms.gather(-1, labels.clamp(min=0)[..., None]).squeeze(-1)
        return -chosen * counted

    @staticmethod
    def backward(ctx: Any, *d_outputs: Tensor) -> tuple[Tensor, None]:
        labels, logarithms, counted = ctx.saved_tensors
        d_losses = (d_outputs[0] * counted)[..., None]
        gradient = logarithms.exp().mul_(d_losses)  # (softmax − one-hot) · d_losses
        return gradient.scatter_add_(-1, labels.clamp(min=0)[..., None], -d_losses), None


_IGNORED = -100  # torch's label for a sample that does not count


class Convolution(torch.autograd.Function):  # pragma: no cover - GPU, tests/engine/test_kernels.py
    """(n, b, c, h, w) and (n, o, c, ky, kx) to (n, b, o, h', w'), computed with channels last."""

    @staticmethod
    def forward(
        ctx: Any, images: Tensor, weight: Tensor, bias: Tensor | None, padding: tuple[int, int]
    ) -> Tensor:
        from dpfedls.engine.kernels.convolution import convolve

        ctx.save_for_backward(images, weight)
        ctx.padding, ctx.has_bias = padding, bias is not None
        patches, kernels, padding = _as_patches(images, weight, padding)
        return convolve(patches, kernels, bias, padding)

    @staticmethod
    def backward(ctx: Any, *d_outputs: Tensor) -> tuple[Tensor | None, ...]:
        from dpfedls.engine.kernels.convolution import convolve, correlate

        images, weight = ctx.saved_tensors
        clients, outputs, channels, side_y, side_x = weight.shape
        d_out, d_images = d_outputs[0].permute(0, 1, 3, 4, 2).contiguous(), None
        if ctx.needs_input_grad[0]:
            # d_images is the convolution of d_out with kernels flipped in y and x.
            flipped = weight.flip(-2, -1).permute(0, 3, 4, 1, 2).contiguous()
            rest = (side_y - 1 - ctx.padding[0], side_x - 1 - ctx.padding[1])
            d_images = convolve(d_out, flipped, None, rest)
        patches, kernels, padding = _as_patches(images, weight, ctx.padding)
        d_kernels = correlate(patches, d_out, (kernels.shape[1], kernels.shape[2]), padding)
        d_kernels = d_kernels.view(clients, side_y, side_x, -1, outputs)[..., :channels, :]
        d_bias = d_out.sum(dim=(1, 2, 3)) if ctx.has_bias else None
        return d_images, d_kernels.permute(0, 4, 3, 1, 2), d_bias, None


def _as_patches(
    images: Tensor, weight: Tensor, padding: tuple[int, int]
) -> tuple[Tensor, Tensor, tuple[int, int]]:
    """(n, b, y, x, c) and (n, ky, kx, c, o), with enough channels for an efficient product.

    An image has too few channels: then the pixels along the kernel's width are treated as channels
    of one pixel. Neighbouring patches overlap in memory, so only the padding makes a copy.
    """
    images, kernels = images.permute(0, 1, 3, 4, 2), weight.permute(0, 3, 4, 2, 1)
    clients, side_y, side_x, channels, outputs = kernels.shape
    if channels >= _FEW:
        return images.contiguous(), kernels.contiguous(), padding
    short = -channels % 4  # four channels are eight bytes, which are loaded at once
    images = nn.functional.pad(images, (0, short, padding[1], padding[1]))
    kernels = nn.functional.pad(kernels, (0, 0, 0, short))
    channels += short
    places = images.shape[3] - side_x + 1
    shape = (*images.shape[:3], places, side_x * channels)
    patches = images.as_strided(shape, (*images.stride()[:3], channels, 1))
    return patches, kernels.reshape(clients, side_y, 1, side_x * channels, outputs), (padding[0], 0)


_FEW = 16


class MaxPool(torch.autograd.Function):  # pragma: no cover - GPU, tests/engine/test_kernels.py
    """Max pooling of (n, b, c, h, w) by tiles."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, size: int) -> Tensor:
        from dpfedls.engine.kernels.pooling import largest

        out, places = largest(images, size)
        ctx.save_for_backward(places)
        ctx.size = size
        return out

    @staticmethod
    def backward(ctx: Any, *d_outputs: Tensor) -> tuple[Tensor | None, ...]:
        from dpfedls.engine.kernels.pooling import largest_backward

        return largest_backward(d_outputs[0], ctx.saved_tensors[0], ctx.size), None
