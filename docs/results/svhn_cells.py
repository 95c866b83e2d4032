"""Every cell of the CNN on SVHN that was run, by seed: python docs/results/svhn_cells.py OUT.

OUT is the folder of ``dpfedls reproduce``. A grid can be cut short; this lists what there is, so
that rates tried for one method only can be seen too.
"""

import json
import statistics
import sys
import tomllib
from collections import defaultdict
from pathlib import Path

cells = defaultdict(dict)
for folder in sorted((Path(sys.argv[1]) / "runs").glob("svhn-cnn-*")):
    recipe = tomllib.loads((folder / "recipe.toml").read_text(encoding="utf-8"))
    lines = (folder / "rounds.jsonl").read_text(encoding="utf-8").splitlines()
    if len(lines) < recipe["plan"]["rounds"]:
        continue  # not finished
    place = (
        {"poisson": "Poisson", "fixed": "uniform"}[recipe["plan"]["sampler"]["kind"]],
        recipe["plan"]["noise_multiplier"],
        recipe["denoiser"].get("strength", 0.0),
        recipe["server_rate"],
    )
    cells[place][recipe["seed"]] = json.loads(lines[-1])["accuracy"]

names = ("sampling", "noise_multiplier", "strength", "server_rate")
rows = [
    dict(zip(names, place, strict=True)) | {"accuracy_by_seed": dict(sorted(found.items()))}
    for place, found in sorted(cells.items())
]
Path(__file__).with_name("svhn-cells.json").write_text(json.dumps(rows, indent=1) + "\n")
print("| sampling | z | σ | η_g | seeds | test accuracy (%) |\n|---|---|---|---|---|---|")
for row in rows:
    found = [100 * value for value in row["accuracy_by_seed"].values()]
    place = " | ".join(f"{row[name]:g}" for name in names[1:])
    print(f"| {row['sampling']} | {place} | {len(found)} | {statistics.mean(found):.2f} |")
