"""``dpfedls planner``: a page to choose a plan on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpfedls.commands.output import Json, answer


def planner(
    out: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path("planner.html"),
    json: Json = False,
) -> None:
    """One offline page: move sliders, read ε, take the plan along as a recipe or a link."""
    from dpfedls.pages.planner import planner_page
    from dpfedls.privacy.durable import write_whole

    write_whole(out, planner_page())
    answer({"planner": str(out)}, json, f"planner: {out}")
