"""requirements.lock: what ``make setup`` installs, with the SHA-256 of every file it may come as.

``python tools/lock.py``, or ``make lock``, after a change of constraints.txt or of pyproject.toml.
uv resolves for all platforms and Python versions at once. torch is left out, and what its GPU
builds bring: whether a CPU or a GPU build is offered, and with which hash, depends on where one
installs; its version is pinned in constraints.txt.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements.lock"
EXTRAS = ("attack", "demo", "digits", "flower", "report", "secure", "svhn")  # as in make setup
UNHASHED = re.compile(r"(torch|triton|(nvidia|cuda)-.*)")
_HEAD = "# Made by tools/lock.py: change constraints.txt or pyproject.toml, then make lock.\n"


def locked(text: str) -> dict[str, tuple[str, list[str]]]:
    """The version and the hashes of each package of a lock; one with a marker counts too."""
    found = {}
    for entry in _entries(text):
        name, version = re.match(r"([\w.-]+)==([^\s;]+)", entry).groups()  # type: ignore[union-attr]
        found[name] = (version, re.findall(r"--hash=sha256:([0-9a-f]{64})", entry))
    return found


def _entries(text: str) -> list[str]:
    """A requirement and the lines of its hashes, each."""
    lines = "\n".join(line for line in text.splitlines() if line and not line.startswith("#"))
    return re.split(r"\n(?=\S)", lines)


def main() -> None:
    """Resolve, drop what has no hash that holds everywhere, write."""
    build = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["build-system"]["requires"]
    words = ["pip", "compile", "pyproject.toml", "-", "--constraint", "constraints.txt"]
    words += [word for extra in EXTRAS for word in ("--extra", extra)]
    words += ["--group", "dev", "--universal", "--python-version", "3.11", "--generate-hashes"]
    words += ["--no-header", "--no-annotate", "--quiet"]
    done = subprocess.run(
        [str(Path(sys.executable).with_name("uv")), *words],
        input="\n".join([*build, "editables"]),  # the last one is hatchling's, for --editable
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"uv could not resolve what pyproject.toml asks for: {done.stderr.strip()}")
    kept = [entry for entry in _entries(done.stdout) if not UNHASHED.match(entry.split("==")[0])]
    LOCK.write_text(_HEAD + "\n".join(kept) + "\n", "utf-8")
    print(f"{LOCK.name}: {len(kept)} packages")


if __name__ == "__main__":
    main()
