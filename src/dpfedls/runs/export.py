"""A trained model to hand on: its weights, its privacy statement, and a card that tells of both.

Nothing else of a run leaves with it: no ledger, log or checkpoint.
"""

from __future__ import annotations

import logging
import re
import shutil
from pathlib import Path

from dpfedls.errors import InputError
from dpfedls.privacy.durable import make_folder, write_whole
from dpfedls.privacy.meaning import attack_curve, meaning
from dpfedls.privacy.wording import text
from dpfedls.runs.curves import shown
from dpfedls.runs.folder import is_free, read_recipe, read_rounds
from dpfedls.runs.load import require_model
from dpfedls.runs.record import last_metrics
from dpfedls.runs.report import read_notes
from dpfedls.runs.seal import STATEMENT, sealed_files
from dpfedls.runs.verify import read_statement, verify

log = logging.getLogger("dpfedls")
MODEL, CARD = "model.safetensors", "README.md"
_TITLE = "A model trained with differential privacy"


def export(folder: Path, out: Path) -> list[Path]:
    """Write the model of a finished run, its statement and its card into a new folder."""
    if problems := verify(folder)["problems"]:
        raise InputError(
            f"{folder} failed verification: {problems[0]}; nothing was written; all of it is "
            f"listed by: dpfedls privacy verify {folder}"
        )
    require_model(folder)
    if read_statement(folder)["mode"] == "simulation":
        log.warning("a simulation: its noise came from a seed, so this model protects nobody")
    if not is_free(out):
        raise InputError(f"{out} already holds files; nothing was touched: choose another folder")
    make_folder(out)
    for name in (MODEL, STATEMENT):
        shutil.copyfile(folder / name, out / name)
    write_whole(out / CARD, card(folder).encode())
    return [out / name for name in (MODEL, STATEMENT, CARD)]


def card(folder: Path) -> str:
    """What somebody who is given the weights has to know, as a model card in Markdown."""
    recipe, facts = read_recipe(folder), read_statement(folder)
    notes = read_notes(folder)
    model = notes.get("model", {})
    curve = attack_curve(facts, recipe.plan.spent(facts["mechanism"]["rounds_paid"]))
    rounds = read_rounds(folder)
    made = f"{len(rounds)} of {recipe.plan.rounds} rounds"
    lines = [
        f"- Data: {recipe.task}, {recipe.plan.num_clients:,} people, {made}.",
        f"- Method: {recipe.method}.",
        f"- Made by: {', then '.join(notes.get('made_by', []))}.",
    ]
    if model:
        lines.append(f"- Model: {model['class']}, {model['parameters']:,} trained parameters.")
    lines += [
        f"- Test {name}: {shown(name, value)}." for name, value in last_metrics(rounds).items()
    ]
    lines.append(f"- SHA-256 of `{MODEL}`: `{sealed_files(facts)[MODEL]}`.")
    about = "\n".join(lines)
    simulated = facts["mode"] == "simulation"
    title = "A simulated model: nobody is protected" if simulated else _TITLE
    statement = re.sub("^#", "##", text(facts), flags=re.M)  # below the card's own heading
    return f"""---
library_name: dpfedls
tags: [{"" if simulated else "differential-privacy, "}federated-learning]
---

# {title}

{about}

```python
import dpfedls

model = dpfedls.load("this folder", model)  # your module, as it was trained
```

## What its ε means for a person

{meaning(facts, curve)}

{statement}
"""
