"""What is installed is what was looked at: every file by its hash, every action by its commit."""

from __future__ import annotations

import re
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tools"))

import lock  # noqa: E402
import sbom  # noqa: E402

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
LOCKED = lock.locked(lock.LOCK.read_text("utf-8"))


def test_every_locked_package_has_the_pinned_version_and_hashes():
    pins = (line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines())
    pinned = {canonicalize_name(pin[0]): pin[1] for pin in pins if len(pin) == 2}
    for name, (locked, hashes) in LOCKED.items():
        assert locked == pinned[name], f"{name}: run make lock"
        assert hashes, name


def test_whatever_is_asked_for_is_locked_but_torch():
    """Whose hash depends on the build that is offered."""
    extras = PROJECT["project"]["optional-dependencies"]
    asked = [
        *PROJECT["project"]["dependencies"],
        *PROJECT["dependency-groups"]["dev"],
        *PROJECT["build-system"]["requires"],
        *(line for extra in lock.EXTRAS for line in extras[extra]),
    ]
    names = {canonicalize_name(Requirement(line).name) for line in asked}
    assert names - LOCKED.keys() == {"torch"}, "run make lock"


def test_setup_installs_by_hash_the_extras_that_are_locked():
    recipe = (ROOT / "Makefile").read_text("utf-8")
    assert "--no-deps --require-hashes --requirement requirements.lock" in recipe
    assert f'--editable ".[{",".join(lock.EXTRAS)}]" --group dev' in recipe


@pytest.mark.parametrize("path", sorted((ROOT / ".github" / "workflows").glob("*.yml")))
def test_actions_are_named_by_their_commit(path):
    used = re.findall(r"uses: *(\S+)", path.read_text("utf-8"))
    assert used
    assert [one for one in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", one)] == []


def test_the_bill_lists_what_the_product_needs_and_nothing_else():
    made = sbom.bill()
    parts = {part["name"]: part for part in made["components"]}
    assert (made["bomFormat"], made["specVersion"]) == ("CycloneDX", "1.6")
    assert made["metadata"]["component"]["name"] == "dpfedls"
    assert {"torch", "numpy", "flwr", "cryptography", "randomgen"} <= parts.keys()
    assert not {"pytest", "ruff", "hypothesis"} & parts.keys()
    references = {part["bom-ref"] for part in (*parts.values(), made["metadata"]["component"])}
    for link in made["dependencies"]:
        assert {link["ref"], *link["dependsOn"]} <= references
    for name, part in parts.items():
        assert part["version"] == version(name)
        assert part["licenses"], name
        assert ("hashes" in part) == (name != "torch")
