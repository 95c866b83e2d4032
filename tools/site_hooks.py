"""What mkdocs does not know: pages link to files of the repository that are not on the site."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError  # pyright: ignore[reportMissingImports]

ROOT = Path(__file__).parents[1]
_LINK = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+[^)#]+)\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """A link out of docs/ becomes the path in the repository, which must be there."""
    here = (ROOT / "docs" / page.file.src_uri).parent

    def named(link: re.Match[str]) -> str:
        target = (here / link[2]).resolve()
        if target.is_relative_to(ROOT / "docs"):
            return link[0]
        if not target.exists():
            raise PluginError(f"{page.file.src_uri} links to {link[2]}, which is not there")
        path = target.relative_to(ROOT)
        return f"`{path}`" if link[1] in str(path) else f"{link[1]} (`{path}`)"

    return _LINK.sub(named, markdown)
