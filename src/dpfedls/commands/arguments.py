"""The help of positional arguments, which click 8.5 takes from typer's.

Typer 0.20 sets an argument's help and then calls click's constructor, which now has a help of its
own and sets it to None. Later versions of typer cannot be used yet (see pyproject.toml).
"""

from __future__ import annotations

import click
import typer
from typer.utils import get_params_from_function


def restore_help(app: typer.Typer, group: click.Command) -> None:
    """Give each argument of the group's commands the help that the app's functions state."""
    assert isinstance(group, click.Group)
    for made in app.registered_commands:
        assert made.callback is not None
        stated = get_params_from_function(made.callback)
        name = made.name or made.callback.__name__.replace("_", "-")
        for param in group.commands[name].params:
            if isinstance(param, click.Argument):
                param.help = stated[str(param.name)].default.help
    for inner in app.registered_groups:
        assert inner.typer_instance is not None
        restore_help(inner.typer_instance, group.commands[str(inner.name)])
