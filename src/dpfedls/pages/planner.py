"""The planner: one offline page that says what a plan costs while its sliders move."""

from __future__ import annotations

from dpfedls.pages.html import asset, page

_RECORDED = f"const RECORDED = {asset('recorded.json')};\n"  # by tools/recorded.py


def planner_page() -> bytes:
    """The whole page, its accountant inside."""
    return page(
        "Plan a run",
        asset("planner.html"),
        style=asset("planner.css"),
        script="".join([_RECORDED, *map(asset, ("accountant.js", "recorded.js", "planner.js"))]),
    )
