"""Messages of the Chit-Chat Challenge by the people who sent them: next-character prediction.

A person is a sender, of whom there are 1,315; a sample is one character of what they sent and the
four before it. Most people sent little and a few very much (1 to 25,272 messages), so at most
``MOST_SAMPLES`` characters of one person count, drawn at random. The alphabet is fixed here: one
gathered from the messages would tell that somebody used a rare character.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from importlib import resources

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from dpfedls.errors import InputError
from dpfedls.metrics import accuracy
from dpfedls.people.clients import ClientData
from dpfedls.people.grouping import Groups, bounded
from dpfedls.people.losses import cross_entropy
from dpfedls.randomness import SeededStreams
from dpfedls.tasks.partition import held_out
from dpfedls.tasks.task import Task

WINDOW = 4
MOST_SAMPLES = 200
# Small letters, since case is mostly noise here; the first one ends a message, the last is any
# character that is not listed.
ALPHABET = "\n abcdefghijklmnopqrstuvwxyz0123456789.,?!'\"()-:;*/\0"


def make(num_clients: int, streams: SeededStreams) -> Task:
    """Senders drawn at random to train on; the others, bounded likewise, validate and test."""
    names, text, starts, sizes = _read()
    windows, following = text.unfold(0, WINDOW, 1)[:-1], text[WINDOW:]  # views of one text
    trained, validate, test = held_out(len(names), num_clients, streams.generator("partition"))
    seed = int(streams.generator("contribution").integers(2**31))

    def bound(people: np.ndarray) -> ClientData:
        labels = [names[j] for j in people]
        groups = Groups(labels, starts[people], sizes[people], None)
        _, begins, counts, order = bounded(groups, MOST_SAMPLES, seed)
        return ClientData(windows, following, begins, counts, order, MOST_SAMPLES)

    def samples(people: np.ndarray) -> tuple[Tensor, Tensor]:
        rows = bound(people).order
        assert rows is not None
        return windows[torch.from_numpy(rows)], following[torch.from_numpy(rows)]

    return Task(
        bound(trained),
        model(),
        test=samples(test),
        validation=samples(validate),
        metrics={"accuracy": accuracy, "perplexity": perplexity},
        test_from=f"{len(test)} people who are not trained on",
    )


def model(embedding: int = 8, hidden: int = 64) -> nn.Module:
    """The next character from the last few, by one hidden layer (Bengio et al. 2003)."""
    return nn.Sequential(
        nn.Embedding(len(ALPHABET), embedding),
        nn.Flatten(),
        nn.Linear(WINDOW * embedding, hidden),
        nn.ReLU(),
        nn.Linear(hidden, len(ALPHABET)),
    )


def perplexity(outputs: Tensor, targets: Tensor) -> Tensor:
    """Among how many equally likely characters the model seems to guess: e^(mean loss)."""
    return cross_entropy(outputs, targets).mean().exp()


@functools.cache
def _read() -> tuple[list[str], Tensor, np.ndarray, np.ndarray]:
    """Senders in the order of their names, all they sent as small numbers, where each one's is.

    Before what a person sent stand ``WINDOW`` ends of messages, so that the first character has a
    window of its own and no window has characters of two people. What row r predicts stands
    ``WINDOW`` further on.
    """
    try:
        file = resources.files("chitchat_dataset").joinpath("dataset.json")
    except ImportError as error:
        raise InputError(
            "the messages come inside the package chitchat-dataset, which is not installed; "
            "run: pip install 'dpfedls[chitchat]'"
        ) from error
    sent: dict[str, list[str]] = defaultdict(list)
    for conversation in msgspec.json.decode(file.read_bytes()).values():
        for turn in conversation["messages"]:
            for message in turn:
                sent[message["sender"]].append(message["text"].lower() + ALPHABET[0])
    names = sorted(sent)
    parts = ["".join(sent[name]) for name in names]
    sizes = np.array([len(part) for part in parts], dtype=np.int64)
    starts = np.cumsum(sizes + WINDOW) - (sizes + WINDOW)
    everything = "".join(ALPHABET[0] * WINDOW + part for part in parts)
    codes = np.full(256, len(ALPHABET) - 1, dtype=np.uint8)
    codes[[ord(letter) for letter in ALPHABET]] = np.arange(len(ALPHABET))
    letters = np.frombuffer(everything.encode("utf-32-le", "surrogatepass"), dtype="<u4")
    text = codes[np.minimum(letters, 255)]  # 255 is not in the alphabet, nor is what lies beyond
    return names, torch.from_numpy(text), starts, sizes
