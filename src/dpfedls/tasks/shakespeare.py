"""Shakespeare's plays, one speaking role a client: next-character prediction (Section 6.3).

The text is the 1994 edition that LEAF's benchmark reads, and the rules are LEAF's (Caldas et al.
2018): indentation tells who speaks, a role's lines are joined, and every window of 80 characters
with the one that follows is a sample. The edition is for personal use and is not shipped. People
are divided as they are by nature: what a role says is its own.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from dpfedls.errors import InputError
from dpfedls.people.clients import ClientData
from dpfedls.randomness import SeededStreams
from dpfedls.tasks.files import data_file
from dpfedls.tasks.models import character_lstm
from dpfedls.tasks.reading import gunzip, reading
from dpfedls.tasks.task import Task

WINDOW = 80
LEAST_TRAINED = 100  # roles with fewer training samples are left out: 975 remain


def make(num_clients: int, streams: SeededStreams) -> Task:
    """A role's windows in order: 70 % are trained on, 10 % validate, the last 20 % are the test.

    Fewer than all 975 roles are drawn at random.
    """
    text, alphabet, bounds = _read()
    if num_clients > len(bounds):
        raise InputError(
            f"plan.num_clients = {num_clients}, but {len(bounds)} roles speak enough to take part; "
            f"use at most {len(bounds)}"
        )
    if num_clients < len(bounds):
        kept = streams.generator("partition").permutation(len(bounds))[:num_clients]
        bounds = bounds[np.sort(kept)]
    windows, following = text.unfold(0, WINDOW, 1)[:-1], text[WINDOW:]  # views of one text
    samples = bounds[:, 1] - bounds[:, 0] - WINDOW
    trained, validated, tested = ((share * samples).astype(np.int64) for share in (0.7, 0.1, 0.2))

    def pick(begins: np.ndarray, counts: np.ndarray) -> tuple[Tensor, Tensor]:
        rows = [np.arange(b, b + n) for b, n in zip(begins, counts, strict=True)]
        kept = torch.from_numpy(np.concatenate(rows))
        return windows[kept], following[kept]

    return Task(
        ClientData(windows, following, bounds[:, 0], trained),
        character_lstm(alphabet),
        test=pick(bounds[:, 1] - WINDOW - tested, tested),
        validation=pick(bounds[:, 0] + trained, validated),
        test_from="the roles that are trained on, the last fifth of what each says",
    )


_UNPACKED = 2**26  # bytes: several times the text


@functools.cache
def _read() -> tuple[Tensor, int, np.ndarray]:
    """The text as small numbers, how many characters there are, each role's begin and end."""
    path = data_file("shakespeare", "t8.shakespeare.txt.gz")
    with reading(path):
        said = speeches(gunzip(path, _UNPACKED).decode())
    said = {name: s for name, s in said.items() if 0.7 * (len(s) - WINDOW) >= LEAST_TRAINED}
    letters = sorted(set("".join(said.values())))
    code = {letter: k for k, letter in enumerate(letters)}
    text = torch.tensor([code[letter] for letter in "".join(said.values())], dtype=torch.uint8)
    ends = np.cumsum([len(s) for s in said.values()])
    return text, len(letters), np.stack([np.concatenate([[0], ends[:-1]]), ends], axis=1)


def speeches(text: str) -> dict[str, str]:
    """Everything each role says, by ``PLAY_ROLE``."""
    lines_of: dict[str, list[str]] = defaultdict(list)
    for play, role, line in _spoken_lines(text):
        lines_of[re.sub(r"[^A-Za-z0-9]", "_", f"{play}_{role}")].append(line)
    # A role that speaks two lines or fewer is a passer-by.
    said = {name: " ".join([*lines, ""]) for name, lines in lines_of.items() if len(lines) > 2}
    return {name: re.sub(r"   *", " ", lines) for name, lines in said.items()}


def _spoken_lines(text: str) -> Iterator[tuple[str, str, str]]:
    """(play, role, line) for every spoken line, in order."""
    lines = [line.rstrip() for line in text.splitlines()]
    by_lines = [i for i, line in enumerate(lines) if "by William Shakespeare" in line]
    # The sonnets come first and have no roles; what follows the last play is the licence.
    for begin, end in itertools.pairwise(by_lines[1:]):
        above = (lines[begin - back].strip() for back in range(2, 8))
        title = next(line for line in above if line)
        indent = "" if title == "THE COMEDY OF ERRORS" else "  "  # one play is set flush left
        role = None
        for line in lines[begin + 1 : end]:
            spoken = re.match(rf"{indent}([a-zA-Z][a-zA-Z ]*)\. (.*)", line)
            continued = re.match(rf"{indent * 2}(.*)", line)
            if spoken:
                role = spoken[1].upper()
                if not indent and role.startswith("ACT "):
                    role = None
                else:
                    yield title, role, spoken[2]
            elif role and continued:
                if not indent and continued[1].startswith("<"):
                    role = None
                else:
                    yield title, role, continued[1]
