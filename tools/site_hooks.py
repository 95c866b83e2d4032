"""What mkdocs does not know: links to files that are not on the site, and the tutorial notebook."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError  # pyright: ignore[reportMissingImports]
from mkdocs.structure.files import File  # pyright: ignore[reportMissingImports]

sys.path.insert(0, str(Path(__file__).parent))
import notebook

ROOT = Path(__file__).parents[1]
_LINK = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+[^)#]+)\)")


def on_files(files: Any, config: Any, **_: Any) -> Any:
    """The notebook is a page too; the file itself lies beside it, to be taken along."""
    page = notebook.markdown(notebook.read())
    files.append(File.generated(config, "tutorial.md", content=page))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """A link out of docs/ becomes the path in the repository; one to the notebook, its page."""
    here = (ROOT / "docs" / page.file.src_uri).parent

    def named(link: re.Match[str]) -> str:
        target = (here / link[2]).resolve()
        if target.is_relative_to(ROOT / "docs"):
            return link[0]
        if not target.exists():
            raise PluginError(f"{page.file.src_uri} links to {link[2]}, which is not there")
        path = target.relative_to(ROOT)
        return f"`{path}`" if link[1] in str(path) else f"{link[1]} (`{path}`)"

    return _LINK.sub(named, markdown.replace("](tutorial.ipynb)", "](tutorial.md)"))
