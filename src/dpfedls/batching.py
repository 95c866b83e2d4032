"""Layers of many clients at once, faster than vmap's own way.

Inside ``client_layers``, layers called under vmap with weights of each client's own become one
batched product each (linear), or kernels of ours on a GPU (convolution and pooling in bfloat16, for
which the vendor's library has no fast path when every client has other weights). Any other call,
and any other layer, goes its usual way: results agree, only the time differs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


class client_layers(TorchFunctionMode):  # noqa: N801 - used in a with statement, like no_grad
    """Where a layer has a faster way for many clients, take it."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is nn.functional.linear and len(args) == 3 and args[2] is not None:
            return _Linear.apply(*args)
        if func is nn.functional.conv2d and len(args) == 7 and _on_tensor_cores(args[0]):
            *operands, stride, padding, dilation, groups = args
            plain = (*stride, *dilation, groups) == (1, 1, 1, 1, 1)
            if plain and not isinstance(padding, str):
                return _Convolution.apply(*operands, padding)
        if func is nn.functional.max_pool2d and _on_tensor_cores(args[0]):
            size = kwargs.get("kernel_size", args[1] if len(args) > 1 else None)
            if _is_tiling(args[0], size, kwargs):
                return _MaxPool.apply(args[0], size)[0]  # pyright: ignore[reportOptionalSubscript]
        return func(*args, **kwargs)


def _on_tensor_cores(tensor: Tensor) -> bool:
    return tensor.is_cuda and tensor.dtype == torch.bfloat16


def _is_tiling(images: Tensor, size: Any, others: dict[str, Any]) -> bool:
    """Whether windows of this size lie side by side and cover the images exactly."""
    rest = {k: v for k, v in others.items() if k not in ("kernel_size", "stride")}
    usual = {"padding": 0, "dilation": 1, "ceil_mode": False, "return_indices": False}
    return (
        isinstance(size, int)
        and others.get("stride") in (None, size)
        and all(usual.get(key) == value for key, value in rest.items())
        and images.shape[-1] % size == 0 == images.shape[-2] % size
    )


def _lead(info: Any, in_dims: tuple[Any, ...], inputs: tuple[Any, ...]) -> list[Any]:
    """The inputs with clients as the first dimension; what all share is seen by each."""
    return [
        part
        if not isinstance(part, Tensor)
        else part.expand(info.batch_size, *part.shape)
        if dim is None
        else part.movedim(dim, 0)
        for part, dim in zip(inputs, in_dims, strict=True)
    ]


class _Linear(torch.autograd.Function):
    """The weights' gradient comes out in the weights' own layout, so no pass turns it round."""

    @staticmethod
    def forward(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        if weight.dim() == 2:  # nothing here is a client's own
            return nn.functional.linear(inputs, weight, bias)
        return torch.baddbmm(bias[:, None], _rows(inputs), weight.mT).view(*inputs.shape[:-1], -1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])

    @staticmethod
    def backward(ctx: Any, *d_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (inputs, weight), d_out = ctx.saved_tensors, d_outputs[0]
        if weight.dim() == 2:
            inputs, weight, d_out = inputs[None], weight[None], d_out[None]
        d_rows, wanted = _rows(d_out), ctx.needs_input_grad[0]
        gradients = (
            torch.bmm(d_rows, weight).view(inputs.shape) if wanted else None,
            torch.bmm(d_rows.mT, _rows(inputs)),
            d_rows.sum(dim=1),
        )
        if ctx.saved_tensors[1].dim() == 2:
            return tuple(None if g is None else g[0] for g in gradients)
        return gradients

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Any, int]:
        return _Linear.apply(*_lead(info, in_dims, inputs)), 0


def _rows(tensor: Tensor) -> Tensor:
    return tensor.reshape(len(tensor), -1, tensor.shape[-1])


class _Convolution(torch.autograd.Function):
    """(b, c, h, w) and (o, c, ky, kx) to (b, o, h', w'), computed with channels last."""

    @staticmethod
    def forward(images: Tensor, weight: Tensor, bias: Tensor | None, padding: Any) -> Tensor:
        if images.dim() == 4:  # nothing here is a client's own
            return nn.functional.conv2d(images, weight, bias, padding=padding)
        from dpfedls.kernels import convolve

        patches, kernels, padding = _as_patches(images, weight, padding)
        return convolve(patches, kernels, bias, padding).permute(0, 1, 4, 2, 3)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        images, weight, bias, ctx.padding = inputs
        ctx.save_for_backward(images, weight)
        ctx.has_bias = bias is not None

    @staticmethod
    def backward(ctx: Any, *d_outputs: Tensor) -> tuple[Tensor | None, ...]:
        from dpfedls.kernels import convolve, correlate

        images, weight = ctx.saved_tensors
        alone = images.dim() == 4
        if alone:
            images, weight = images[None], weight[None]
        d_out = (d_outputs[0][None] if alone else d_outputs[0]).permute(0, 1, 3, 4, 2).contiguous()
        d_images, (_, _, channels, side_y, side_x) = None, weight.shape
        if ctx.needs_input_grad[0]:
            # The input's gradient is a convolution too, with the kernels turned round.
            turned = weight.flip(-2, -1).permute(0, 3, 4, 1, 2).contiguous()
            rest = (side_y - 1 - ctx.padding[0], side_x - 1 - ctx.padding[1])
            d_images = convolve(d_out, turned, None, rest).permute(0, 1, 4, 2, 3)
        patches, kernels, padding = _as_patches(images, weight, ctx.padding)
        d_kernels = correlate(patches, d_out, (kernels.shape[1], kernels.shape[2]), padding)
        d_kernels = d_kernels.view(len(weight), side_y, side_x, -1, weight.shape[1])[..., :channels, :]
        d_weight = d_kernels.permute(0, 4, 3, 1, 2)
        d_bias = d_out.sum(dim=(1, 2, 3)) if ctx.has_bias else None
        gradients = (d_images, d_weight, d_bias)
        if alone:
            gradients = tuple(None if g is None else g[0] for g in gradients)
        return *gradients, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Any, int]:
        return _Convolution.apply(*_lead(info, in_dims, inputs)), 0


def _as_patches(
    images: Tensor, weight: Tensor, padding: tuple[int, int]
) -> tuple[Tensor, Tensor, tuple[int, int]]:
    """(n, b, y, x, c) and (n, ky, kx, c, o), of enough channels to fill a product.

    Few channels, as of an image, are too few: then the pixels along the kernel's width count as
    channels of one. Neighbouring patches overlap in memory, so nothing is copied but a margin.
    """
    images, kernels = images.permute(0, 1, 3, 4, 2), weight.permute(0, 3, 4, 2, 1)
    clients, side_y, side_x, channels, outputs = kernels.shape
    if channels >= _FEW:
        return images.contiguous(), kernels.contiguous(), padding
    short = -channels % 4  # rows of eight bytes are read whole
    images = nn.functional.pad(images, (0, short, padding[1], padding[1]))
    kernels = nn.functional.pad(kernels, (0, 0, 0, short))
    channels += short
    places = images.shape[3] - side_x + 1
    shape = (*images.shape[:3], places, side_x * channels)
    patches = images.as_strided(shape, (*images.stride()[:3], channels, 1))
    return patches, kernels.reshape(clients, side_y, 1, side_x * channels, outputs), (padding[0], 0)


_FEW = 16


class _MaxPool(torch.autograd.Function):
    """The largest of each tile of (b, c, h, w), and which of the tile's places it stood at."""

    @staticmethod
    def forward(images: Tensor, size: int) -> tuple[Tensor, Tensor]:
        from dpfedls.kernels import largest

        if images.dim() == 4:
            return tuple(part[0] for part in largest(images[None], size))  # pyright: ignore[reportReturnType]
        return largest(images, size)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])
        ctx.size = inputs[1]

    @staticmethod
    def backward(ctx: Any, *d_outputs: Tensor) -> tuple[Tensor | None, ...]:
        from dpfedls.kernels import largest_backward

        d_out, (places,) = d_outputs[0], ctx.saved_tensors
        if d_out.dim() == 4:
            return largest_backward(d_out[None], places[None], ctx.size)[0], None
        return largest_backward(d_out, places, ctx.size), None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Any, Any]:
        return _MaxPool.apply(*_lead(info, in_dims, inputs)), (0, 0)
