"""The base of everything a recipe can name: a frozen value that is its own configuration."""

from __future__ import annotations

import msgspec


class Component(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"
):
    """A frozen, comparable value; in TOML a table whose ``kind`` names the class."""
