"""Sentences of earlier statements, so that a run of an earlier version can still be verified.

A sentence that is worded anew goes into ``REWORDED``; one that is said for the first time goes into
``ADDED``. Both stay for good. Any other sentence is one that no version of this code has written.
"""

from __future__ import annotations

from typing import Any

REWORDED = {
    "noise level, denominator and number of rounds do not depend on anybody's data": (
        "noise multiplier, denominator and number of rounds do not depend on anybody's data"
    ),
    "for ever, whatever else they know": "at any time, with any other knowledge",
    "they count their own and know whether the last person was drawn": (
        "together they can work out who was sampled"
    ),
    "one person is one client and appears only once": (
        "one person is one client and appears only once, with the same data if a run is resumed"
    ),
    "samples are well formed: a malformed one stops a run before it starts, for all to see": (
        "samples in memory are well formed: a malformed one stops a run before it starts, for all "
        "to see; a person whose samples are loaded later and are malformed counts as zero"
    ),
}
ADDED = {
    "how many people there are is public: rate, denominator and δ may follow it, and a person who "
    "is not there leaves an empty place",
    "rates and units of inputs chosen by test samples, if these belong to the people trained on",
}


def in_present_words(stated: Any, present: Any) -> Any:
    """What an earlier statement says, as this version words it; ``present`` is what it would say.

    Guarantees: changes nothing but whole sentences that an earlier version wrote, each into the one
    that took its place, and lists that lack a sentence which came later.
    """
    if isinstance(stated, str) and isinstance(present, str):
        return REWORDED.get(stated, stated)
    if isinstance(stated, dict) and isinstance(present, dict):
        return {key: in_present_words(value, present.get(key)) for key, value in stated.items()}
    if isinstance(stated, list) and isinstance(present, list) and present:
        said = [in_present_words(item, present[0]) for item in stated]  # items are all of one kind
        for place, sentence in enumerate(present):
            if isinstance(sentence, str) and sentence in ADDED and sentence not in said:
                said.insert(place, sentence)
        return said
    return stated
