"""A bill of materials of the package as installed: CycloneDX 1.6, as JSON.

``python tools/sbom.py FILE``, or ``make sbom``. It lists what ``dpfedls`` needs at run time with
the extras of ``make setup``, as far as this environment has it: name, version, licence, who needs
whom, and the hashes of requirements.lock. Tools of development are not part of the product.
"""

from __future__ import annotations

import json
import sys
import uuid
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

sys.path.insert(0, str(Path(__file__).parent))

from lock import EXTRAS, LOCK, locked

_PRODUCT = "dpfedls"
distribution = cache(metadata.distribution)  # looking for one takes a while


def bill() -> dict[str, Any]:
    """The same environment gives the same bill, byte for byte."""
    needs = _needs()
    hashes = locked(LOCK.read_text("utf-8"))
    parts = [_component(distribution(name), hashes) for name in sorted(needs) if name != _PRODUCT]
    links = [
        {"ref": _url(distribution(name)), "dependsOn": [_url(distribution(n)) for n in sorted(own)]}
        for name, own in sorted(needs.items())
    ]
    product = _component(distribution(_PRODUCT), {}) | {"type": "application"}
    made = {"metadata": {"component": product}, "components": parts, "dependencies": links}
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(made, sort_keys=True))
    head = {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1}
    return {**head, "serialNumber": f"urn:uuid:{serial}", **made}


def _needs() -> dict[str, set[str]]:
    """Each package that is reached from ours, and those it needs."""
    needs: dict[str, set[str]] = {}
    waiting = [(_PRODUCT, set(EXTRAS))]
    seen: set[tuple[str, str]] = set()
    while waiting:
        name, extras = waiting.pop()
        needs.setdefault(name, set())
        for line in distribution(name).requires or []:
            wanted = Requirement(line)
            asked = [e for e in ("", *extras) if _applies(wanted, e)]
            other = canonicalize_name(wanted.name)
            if not asked or not _installed(other):
                continue
            needs[name].add(other)
            new = {(other, extra) for extra in ("", *wanted.extras)} - seen
            seen |= new
            if new:
                waiting.append((other, {extra for _, extra in new if extra}))
    return needs


def _applies(wanted: Requirement, extra: str) -> bool:
    return wanted.marker is None or wanted.marker.evaluate({"extra": extra})


def _installed(name: str) -> bool:
    """Some are for other platforms."""
    try:
        return bool(distribution(name).version)
    except metadata.PackageNotFoundError:
        return False


def _url(part: metadata.Distribution) -> str:
    return f"pkg:pypi/{canonicalize_name(part.name)}@{part.version.replace('+', '%2B')}"


def _component(
    part: metadata.Distribution, hashes: dict[str, tuple[str, list[str]]]
) -> dict[str, Any]:
    about = part.metadata
    made: dict[str, Any] = {
        "type": "library",
        "bom-ref": _url(part),
        "name": canonicalize_name(part.name),
        "version": part.version,
        "purl": _url(part),
    }
    licence = about.get("License-Expression")
    if licence:
        made["licenses"] = [{"expression": licence}]
    elif named := about.get("License") or _classified(about.get_all("Classifier") or []):
        made["licenses"] = [{"license": {"name": " ".join(named.split())[:80]}}]
    version, known = hashes.get(made["name"], ("", []))
    if version == part.version:
        made["hashes"] = [{"alg": "SHA-256", "content": one} for one in known]
    return made


def _classified(lines: list[str]) -> str:
    found = [line.split(" :: ")[-1] for line in lines if line.startswith("License ::")]
    return " and ".join(found)


if __name__ == "__main__":
    target = Path(sys.argv[1])
    made = bill()
    target.write_text(json.dumps(made, indent=1) + "\n", "utf-8")
    print(f"{target}: {len(made['components'])} components")
