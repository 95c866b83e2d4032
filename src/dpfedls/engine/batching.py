"""Layers of many clients at once, faster than vmap's own way.

Inside ``client_layers``, layers called under vmap with separate weights per client become one
batched product each (linear, attention, cross-entropy, the LSTM's recurrence), or kernels of ours
on a GPU (convolution and pooling, for which the vendor's library has no fast path when every client
has its own weights). An embedding keeps each client to its own rows, which vmap's
rule does not. Any other call, and any other layer, is left to torch: results agree, only the time
differs. No operation here adds across the first dimension, the clients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch._C._functorch import is_batchedtensor  # pyright: ignore[reportMissingModuleSource]
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from dpfedls.engine.layers import plain_padding, plain_window
from dpfedls.engine.recurrence import Recurrence, recurrence


class client_layers(TorchFunctionMode):  # noqa: N801 - used in a with statement, like no_grad
    """Override layers that have a faster form for many clients."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is functional.multi_head_attention_forward and not args[0].is_cuda:
            # Asked for the weights too, it goes by products; its fused kernel has no rule for vmap.
            outputs, weights = func(*args, **kwargs | {"need_weights": True})
            return outputs, weights if kwargs.get("need_weights", True) else None
        chosen = _FASTER[func](*args, **kwargs) if func in _FASTER else None
        if chosen is None:
            return func(*args, **kwargs)
        return _OfClients.apply(partial(func, *args, **kwargs), *chosen)


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
        return many(*led), 0


Chosen: TypeAlias = tuple[Callable[..., Any], *tuple[Any, ...]] | None
"""What overrides a call of torch: an operation and its inputs, or None to leave it to torch."""


# Parameters of the functions below have torch's names, since callers may use them.


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Chosen:  # noqa: A002
    own = weight.dim() == 2 and of_each_client(weight)
    return (Linear.apply, input, weight, bias) if own else None


def _embedding(
    input: Tensor, weight: Tensor, padding_idx: int | None = None, max_norm: float | None = None,  # noqa: A002
    norm_type: float = 2.0, scale_grad_by_freq: bool = False, sparse: bool = False,
) -> Chosen:  # fmt: skip
    if not of_each_client(weight):
        return None
    if max_norm is not None or scale_grad_by_freq:
        raise NotImplementedError("an embedding with max_norm or scale_grad_by_freq")
    return embedding, input, weight, padding_idx


def _torchs_embedding(
    weight: Tensor, indices: Tensor, padding_idx: int = -1, *options: Any
) -> Chosen:
    """Below the functional one: -1 stands for no padding."""
    return _embedding(
        indices, weight, None if padding_idx < 0 else padding_idx, None, 2.0, *options
    )


def _embedding_bag(
    input: Tensor, weight: Tensor, offsets: Tensor | None = None, max_norm: float | None = None,  # noqa: A002
    norm_type: float = 2.0, scale_grad_by_freq: bool = False, mode: str = "mean",
    sparse: bool = False, per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False, padding_idx: int | None = None,
) -> Chosen:  # fmt: skip
    plain = input.dim() == 2 and per_sample_weights is None and mode in ("mean", "sum")
    if not plain or max_norm is not None or scale_grad_by_freq or not of_each_client(weight):
        return None
    return partial(embedding_bag, mode=mode), input, weight, padding_idx


def _attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, **options: Any,
) -> Chosen:  # fmt: skip
    if dropout_p or not query.dim() == key.dim() == value.dim() == 4:
        return None
    run = partial(functional.scaled_dot_product_attention, is_causal=is_causal, **options)
    return partial(attention, run), query, key, value, attn_mask


def _cross_entropy(input: Tensor, target: Tensor, **options: Any) -> Chosen:  # noqa: A002
    usual = {"weight": None, "ignore_index": -100, "reduction": "none", "label_smoothing": 0.0}
    named = {key: value for key, value in options.items() if key in usual}
    if named == usual and input.dim() == 2 and not target.is_floating_point():
        return CrossEntropy.apply, input, target
    return None


def _conv2d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1,  # noqa: A002
    padding: Any = 0, dilation: Any = 1, groups: int = 1,
) -> Chosen:  # fmt: skip
    plain = plain_padding(weight.shape, stride, padding, dilation, groups)
    if plain is None or not on_tensor_cores(input) or not of_each_client(weight):
        return None
    return Convolution.apply, input, weight, bias, plain


def _max_pool2d(input: Tensor, *options: Any, **named: Any) -> Chosen:  # noqa: A002
    side = plain_window(input.shape, *options, **named) if on_tensor_cores(input) else None
    return None if side is None or side > WIDEST else (MaxPool.apply, input, side)


def _recurrence(driven: Tensor, weight: Tensor, bias: Tensor) -> Chosen:
    return Recurrence.apply, driven, weight, bias


def on_tensor_cores(tensor: Tensor) -> bool:
    """Whether our kernels take this tensor."""
    if not tensor.is_cuda or tensor.dtype not in (torch.bfloat16, torch.float32):
        return False
    # Older cards have no products of bfloat16, by which float32 is multiplied as well.
    return tensor.dtype == torch.bfloat16 or torch.cuda.get_device_capability(tensor.device)[0] >= 8


def of_each_client(tensor: Tensor) -> bool:
    """Whether each client has its own: a frozen tensor is everybody's, and vmap shares its work."""
    return is_batchedtensor(tensor)


WIDEST = 16  # pixels of a window's side: the kernel keeps places in bytes
_FASTER: dict[Any, Callable[..., Chosen]] = {
    functional.linear: _linear,
    functional.embedding: _embedding,
    torch.embedding: _torchs_embedding,
    functional.embedding_bag: _embedding_bag,
    functional.scaled_dot_product_attention: _attention,
    functional.cross_entropy: _cross_entropy,
    functional.conv2d: _conv2d,
    functional.max_pool2d: _max_pool2d,
    recurrence: _recurrence,
}


def embedding(tokens: Tensor, weight: Tensor, padding_idx: int | None = None) -> Tensor:
    """(n, …) tokens and (n, v, d) rows to (n, …, d), NaN where there is no such row.

    vmap's own rule numbers the rows of all clients through and checks only the last number, so a
    token beyond the vocabulary would read, and train, the rows of the next client. NaN spoils the
    update of whoever has such a token, which clipping counts as zero, and nobody else's.
    """
    clients, size, _ = weight.shape
    known = (tokens >= 0) & (tokens < size)
    first = size * torch.arange(clients, device=tokens.device)
    places = torch.where(known, tokens, 0) + first.view(-1, *(1,) * (tokens.dim() - 1))
    rows = functional.embedding(places, weight.flatten(0, 1))
    if padding_idx is not None:  # its row is not trained
        padding = (tokens == padding_idx % size)[..., None]
        rows = torch.where(padding, rows.detach(), rows)
    return rows.masked_fill(~known[..., None], torch.nan)


def embedding_bag(tokens: Tensor, weight: Tensor, padding_idx: int | None, mode: str) -> Tensor:
    """(n, b, words) tokens to (n, b, d), the mean or sum of their rows; padding is no word."""
    rows = embedding(tokens, weight)
    words = tokens.new_full(tokens.shape[:2], tokens.shape[2])
    if padding_idx is not None:
        padding = tokens == padding_idx % weight.shape[1]
        rows = rows.masked_fill(padding[..., None], 0.0)
        words = (~padding).sum(dim=2)
    total = rows.sum(dim=2)
    return total / words.clamp(min=1)[..., None] if mode == "mean" else total


def attention(
    run: Callable[..., Tensor], query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None
) -> Tensor:
    """(n, b, heads, …): the fused operation, for which vmap has no rule, on all samples at once."""
    if mask is not None:
        middle = (1,) * (query.dim() - mask.dim())
        mask = mask.view(len(mask), *middle, *mask.shape[1:])
        mask = mask.expand(*query.shape[:2], *mask.shape[2:]).flatten(0, 1)
    parts = (part.flatten(0, 1) for part in (query, key, value))
    return run(*parts, attn_mask=mask).unflatten(0, query.shape[:2])


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
        from dpfedls.engine.kernels.halves import parts

        rows = parts(images.permute(0, 1, 3, 4, 2))
        ctx.save_for_backward(weight, *rows)
        ctx.padding, ctx.has_bias = padding, bias is not None
        patches, kernels, padding = _as_patches(rows, parts(weight), padding)
        return convolve(patches, kernels, bias, padding)

    @staticmethod
    def backward(ctx: Any, *d_outputs: Tensor) -> tuple[Tensor | None, ...]:
        from dpfedls.engine.kernels.convolution import convolve, correlate
        from dpfedls.engine.kernels.halves import parts

        weight, *rows = ctx.saved_tensors
        clients, outputs, channels, side_y, side_x = weight.shape
        d_out, d_images = d_outputs[0].permute(0, 1, 3, 4, 2).contiguous(), None
        d_parts = parts(d_out)
        if ctx.needs_input_grad[0]:
            # d_images is the convolution of d_out with kernels flipped in y and x.
            flipped = parts(weight.flip(-2, -1).permute(0, 3, 4, 1, 2))
            rest = (side_y - 1 - ctx.padding[0], side_x - 1 - ctx.padding[1])
            d_images = convolve(d_parts, flipped, None, rest)
        patches, kernels, padding = _as_patches(rows, (weight,), ctx.padding)
        side = (kernels[0].shape[1], kernels[0].shape[2])
        d_kernels = correlate(patches, d_parts, side, padding)
        d_kernels = d_kernels.view(clients, side_y, side_x, -1, outputs)[..., :channels, :]
        d_bias = d_out.sum(dim=(1, 2, 3)) if ctx.has_bias else None
        return d_images, d_kernels.permute(0, 4, 3, 1, 2), d_bias, None


def _as_patches(
    images: Sequence[Tensor], weights: Sequence[Tensor], padding: tuple[int, int]
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], tuple[int, int]]:
    """(n, b, y, x, c) and (n, ky, kx, c, o), with enough channels for an efficient product.

    An image has too few channels: then the pixels along the kernel's width are treated as channels
    of one pixel. Neighbouring patches overlap in memory, so only the padding makes a copy.
    """
    kernels = [weight.permute(0, 3, 4, 2, 1) for weight in weights]
    clients, side_y, side_x, channels, outputs = kernels[0].shape
    if channels >= _FEW:
        return tuple(images), tuple(k.contiguous() for k in kernels), padding
    short = -channels % 4  # four channels are eight bytes, which are loaded at once
    images = [nn.functional.pad(i, (0, short, padding[1], padding[1])) for i in images]
    kernels = [nn.functional.pad(k, (0, 0, 0, short)) for k in kernels]
    channels += short
    places = images[0].shape[3] - side_x + 1
    shape = (*images[0].shape[:3], places, side_x * channels)
    patches = (i.as_strided(shape, (*i.stride()[:3], channels, 1)) for i in images)
    flat = (k.reshape(clients, side_y, 1, side_x * channels, outputs) for k in kernels)
    return tuple(patches), tuple(flat), (padding[0], 0)


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
