"""Documentation that cannot be wrong for long: its code runs, its tables are the source's."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest

import dpfedls

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
BLOCK = re.compile(r"(<!-- not run: .+? -->\n)?```python\n(.*?)```", re.S)


def code(page: Path) -> str:
    """All Python of a page as one program; blocks marked as not run are left out."""
    return "\n".join(block for mark, block in BLOCK.findall(page.read_text("utf-8")) if not mark)


@pytest.mark.parametrize("page", [page for page in PAGES if code(page)], ids=lambda page: page.stem)
def test_the_code_of_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(code(page), page.name, "exec"), {"__name__": "__main__"})


def test_the_tutorial_prints_what_it_shows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(ROOT / "tools")
    import notebook

    shown = notebook.read()
    assert notebook.printed(shown) == notebook.kept(shown), "python tools/notebook.py renews it"
    assert (tmp_path / "compare.html").is_file()
    assert [line for line in notebook.markdown(shown).splitlines() if line == "```text"]


def test_most_code_is_run_and_what_is_not_says_why():
    found = [mark for page in PAGES for mark, _ in BLOCK.findall(page.read_text("utf-8"))]
    assert len(found) >= 8
    assert sum(map(bool, found)) <= 3


def test_every_key_of_a_recipe_is_described():
    tool = runpy.run_path(str(ROOT / "tools" / "recipe_page.py"))
    page = (ROOT / "docs" / "recipe.md").read_text("utf-8")
    assert page == tool["page"](), "docs/recipe.md is old: run python tools/recipe_page.py"
    bare = re.findall(r"^\| `([\w.]+)` .*\|  \|$", page, re.M)
    assert not bare, f"say in a comment beside the field what it is: {bare}"
    (block,) = re.findall(r"```toml\n(.*?)```", page, re.S)
    from dpfedls.runs import recipes

    example = recipes.tomllib.loads(block)
    assert recipes.decode(example, "docs/recipe.md", []).plan.rounds == 20


def test_the_reference_has_every_public_name():
    page = (ROOT / "docs" / "api.md").read_text("utf-8")
    for name in dpfedls.__all__:
        assert re.search(rf"^::: dpfedls\.[\w.]+\.{name}$", page, re.M), name
    for place in re.findall(r"^::: ([\w.]+)$", page, re.M):
        module, _, name = place.rpartition(".")
        assert hasattr(sys.modules.get(module) or __import__(module, fromlist=["_"]), name), place


def test_every_page_is_on_the_site_and_every_link_leads_somewhere():
    """make docs says the same, and more; this needs nothing installed."""
    listed = set(re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.M))
    made = {"tutorial.md"}  # by tools/site_hooks.py, from the notebook
    assert listed == made | {str(page.relative_to(ROOT / "docs")) for page in PAGES}
    for page in [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md"]:
        text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.S)
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if not target.startswith(("http", "#", "mailto:")):
                place = (page.parent / target.partition("#")[0]).resolve()
                assert place.exists(), (page.name, target)
