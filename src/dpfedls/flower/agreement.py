"""Who holds whom, agreed beforehand: people by the public key of their node.

Without it nodes are believed, and one that lies can shut honest nodes out or take their weight.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import tomli_w
from cryptography.hazmat.primitives import serialization as ser

from dpfedls.errors import InputError

Agreement = Mapping[str, Sequence[int]]
"""A node's public key, as in its .pub file → the numbers of the people it holds."""


def read_agreement(path: Path) -> dict[str, list[int]]:
    """Lines ``"ecdsa-sha2-nistp384 AAAA…" = [3, [10, 19]]`` of TOML: 3, and 10 to 19."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8-sig"))
        return {key_name(key): _numbers(people) for key, people in values.items()}
    except FileNotFoundError as error:
        raise InputError(
            f"roster {path} is not there; without it nodes would be believed about whom they hold: "
            'put it there, or set roster = "" to believe them'
        ) from error
    except (ValueError, TypeError, RecursionError) as error:
        raise InputError(
            f"{path} is no roster ({error}); write a line for each node: the text of its .pub file "
            "in quotes = [numbers of people, or [first, last]]"
        ) from error


def write_agreement(path: Path, agreed: Agreement) -> None:
    """Write what ``read_agreement`` reads."""
    values = {key: list(people) for key, people in agreed.items()}
    path.write_text(tomli_w.dumps(values), encoding="utf-8")


def key_name(text: str) -> str:
    """A public key in OpenSSH's form, without the comment behind it."""
    parts = text.split()
    if len(parts) < 2:
        raise ValueError(f"{text!r:.40} is no public key")
    return " ".join(parts[:2])


def flower_key_name(public_key: bytes) -> str:
    """The same name of a key as Flower keeps it; nobody's where a node has none."""
    try:
        key = ser.load_pem_public_key(public_key)
        return key.public_bytes(ser.Encoding.OpenSSH, ser.PublicFormat.OpenSSH).decode()
    except ValueError:
        return ""


def _numbers(people: object) -> list[int]:
    if not isinstance(people, list):
        raise ValueError(f"{people!r:.40} is no list of people")
    found: list[int] = []
    for item in people:
        first, last = item if isinstance(item, list) else (item, item)
        if type(first) is not int or type(last) is not int or not 0 <= first <= last < 2**31:
            raise ValueError(f"{item!r:.40} is neither a person's number nor [first, last]")
        found += range(first, last + 1)
    return found
