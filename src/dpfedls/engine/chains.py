"""Models that are a chain of known layers, computed for many clients without vmap.

vmap works for any model, but what it does in Python for every layer costs more than a small layer
itself. A chain (``nn.Sequential``, or one layer alone) of the layers below is computed directly on
tensors led by the clients. Nothing here adds across clients, and tests hold it to vmap's result.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

import torch
from torch import Tensor, nn

from dpfedls.engine.batching import (
    WIDEST,
    Convolution,
    Linear,
    MaxPool,
    embedding,
    on_tensor_cores,
)
from dpfedls.engine.layers import (
    convolution_options,
    plain_padding,
    plain_window,
    pool_options,
)
from dpfedls.parameters import Layout

Chain: TypeAlias = Callable[[Mapping[str, Tensor], Tensor], Tensor]
"""``chain(tensors, inputs)``: each client's outputs from its own tensors and inputs."""


def chain_of(model: nn.Module, layout: Layout) -> Chain | None:
    """How to compute the model for many clients; None where it is no chain of known layers."""
    layers = layers_of(model, layout)
    if layers is None or not all(_known(layer) for layer, _ in layers):
        return None

    def run(tensors: Mapping[str, Tensor], values: Tensor) -> Tensor:
        for layer, prefix in layers:
            own = [tensors.get(prefix + name) for name in ("weight", "bias")]
            values = _LAYERS.get(type(layer), _as_it_is)(layer, values, *own)
        return values

    return run


def layers_of(model: nn.Module, layout: Layout) -> list[tuple[nn.Module, str]] | None:
    """The layers of a chain, each with the prefix of its parameters, in the order to run them.

    None where the model is none: something hooked, frozen, shared or not trained at all.
    """
    layers = _pooled_first(list(_leaves(model, "")))
    names = {prefix + name for layer, prefix in layers for name, _ in layer.named_parameters()}
    if names != set(layout.names) or any(_hooked(x) or not _plain(x) for x, _ in layers):
        return None
    return layers


def _leaves(module: nn.Module, prefix: str) -> Iterator[tuple[nn.Module, str]]:
    if type(module) is nn.Sequential and not _hooked(module):
        for name, child in module._modules.items():  # named_children leaves out what is used twice
            if child is not None:
                yield from _leaves(child, f"{prefix}{name}.")
    elif getattr(module, "inplace", False):  # what autograd keeps must not be written over
        module = copy.copy(module)
        module.inplace = False  # pyright: ignore[reportArgumentType]
        yield module, prefix
    else:
        yield module, prefix


def _pooled_first(layers: list[tuple[nn.Module, str]]) -> list[tuple[nn.Module, str]]:
    """ReLU after pooling: the same values and gradients from a quarter of the work."""
    order = list(layers)
    for k, (first, second) in enumerate(itertools.pairwise(layers)):
        if type(first[0]) is nn.ReLU and type(second[0]) is nn.MaxPool2d:
            order[k], order[k + 1] = second, first
    return order


def _known(layer: nn.Module) -> bool:
    """By exact type: what a subclass does along its first dimension would mix clients."""
    return type(layer) in _LAYERS or type(layer) in _POINTWISE or serves_many(layer)


def serves_many(layer: nn.Module) -> bool:
    """Whether a layer without weights says of itself that it minds no leading dimensions."""
    free = getattr(layer, "any_leading_dimensions", False)
    return free and not any(True for _ in layer.parameters())


def _hooked(layer: nn.Module) -> bool:
    """Whether somebody listens in, or has given this one layer another forward."""
    before, after = layer._forward_pre_hooks, layer._forward_hooks
    back = (layer._backward_pre_hooks, layer._backward_hooks)
    return any((before, after, *back)) or "forward" in vars(layer)


def _plain(layer: nn.Module) -> bool:
    """Whether a layer's options are those that the functions below heed."""
    if isinstance(layer, nn.Conv2d):
        return layer.padding_mode == "zeros"
    if isinstance(layer, nn.MaxPool2d):
        return not layer.return_indices
    if isinstance(layer, nn.Embedding):
        return layer.max_norm is None and not layer.scale_grad_by_freq
    return not isinstance(layer, nn.Flatten) or (layer.start_dim, layer.end_dim) == (1, -1)


def _as_it_is(layer: nn.Module, values: Tensor, *_: Tensor | None) -> Tensor:
    return layer(values)


def _linear(layer: nn.Linear, values: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return Linear.apply(values, weight, bias)  # pyright: ignore[reportReturnType]


def _conv2d(layer: nn.Conv2d, values: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    padding = plain_padding(weight.shape, *convolution_options(layer))
    if padding is not None and on_tensor_cores(values):
        return Convolution.apply(values, weight, bias, padding)  # pyright: ignore[reportReturnType]
    # One client after another: each convolution is large enough, and none needs a transpose first.
    options = (layer.stride, layer.padding, layer.dilation, layer.groups)
    biases = [None] * len(weight) if bias is None else bias.unbind()
    parts = zip(values.unbind(), weight.unbind(), biases, strict=True)
    return torch.stack([nn.functional.conv2d(x, w, b, *options) for x, w, b in parts])  # pyright: ignore[reportCallIssue, reportArgumentType]


def _max_pool2d(layer: nn.MaxPool2d, values: Tensor, *_: Tensor | None) -> Tensor:
    side = plain_window(values.shape, *pool_options(layer)) if on_tensor_cores(values) else None
    if side is not None and side <= WIDEST:
        return MaxPool.apply(values, side)  # pyright: ignore[reportReturnType]
    return _per_sample(layer, values)


def _per_sample(layer: nn.Module, values: Tensor, *_: Tensor | None) -> Tensor:
    """A layer without weights that expects one dimension of samples, here of all clients."""
    return layer(values.flatten(0, 1)).unflatten(0, values.shape[:2])


def _layer_norm(
    layer: nn.LayerNorm, values: Tensor, weight: Tensor | None, bias: Tensor | None
) -> Tensor:
    values = nn.functional.layer_norm(values, layer.normalized_shape, eps=layer.eps)
    for scale, apply in ((weight, torch.mul), (bias, torch.add)):
        if scale is not None:
            middle = (1,) * (values.dim() - scale.dim())
            values = apply(values, scale.view(len(scale), *middle, *layer.normalized_shape))
    return values


def _embedding(layer: nn.Embedding, values: Tensor, weight: Tensor, _: None) -> Tensor:
    return embedding(values, weight, layer.padding_idx)


def _flatten(layer: nn.Flatten, values: Tensor, *_: Tensor | None) -> Tensor:
    return values.flatten(2)


_POINTWISE = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish,
    nn.Tanh, nn.Hardtanh, nn.Sigmoid, nn.LogSigmoid, nn.Hardsigmoid, nn.Hardswish,
    nn.Softplus, nn.Softsign, nn.Identity,
)  # fmt: skip
_LAYERS: dict[type[nn.Module], Callable[..., Tensor]] = {
    nn.Linear: _linear,
    nn.Conv2d: _conv2d,
    nn.MaxPool2d: _max_pool2d,
    nn.AvgPool2d: _per_sample,
    nn.AdaptiveAvgPool2d: _per_sample,
    nn.Flatten: _flatten,
    nn.LayerNorm: _layer_norm,
    nn.Embedding: _embedding,
}
