"""The same plan on real machines: DP-Fed-LS on Flower's SuperLink and SuperNodes."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from dpfedls.errors import InputError

if TYPE_CHECKING:
    from dpfedls.flower.client import client_app as client_app
    from dpfedls.flower.strategy import DPFedLS as DPFedLS

__all__ = ["DPFedLS", "client_app"]

_HOMES = {"DPFedLS": "strategy", "client_app": "client"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'dpfedls.flower' has no attribute {name!r}")
    require_flower()
    return getattr(importlib.import_module(f"dpfedls.flower.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return list(__all__)


def require_flower() -> None:
    """Refuse, with the remedy, to go on without Flower."""
    try:
        importlib.import_module("flwr.serverapp.strategy")
    except ImportError as error:
        raise InputError(
            "deployment needs Flower 1.41 or later, which is not installed; "
            "run: pip install 'dpfedls[flower]'"
        ) from error
