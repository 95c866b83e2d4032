"""A model called with other weights than its own."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.func import functional_call


def call_with(model: nn.Module, tensors: dict[str, Tensor], inputs: Any) -> Any:
    """The outputs, with these tensors in place of the parameters and buffers of their names.

    A name stands for its tensor wherever the model has it. ``functional_call`` would find these
    places too, but where one *module* has two names it leaves its tensors behind in the model.
    """
    first: dict[int, str] = {}
    given: dict[str, Tensor] = {}
    for prefix, module in model.named_modules():  # each once, whatever names it has
        own = {"prefix": prefix, "recurse": False, "remove_duplicate": False}
        for name, tensor in (*module.named_parameters(**own), *module.named_buffers(**own)):
            known = first.setdefault(id(tensor), name)
            if known in tensors:
                given[name] = tensors[known]
    return functional_call(model, given, (inputs,), tie_weights=False)
