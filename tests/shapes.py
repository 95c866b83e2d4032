"""The run-time checker of types and shapes, used in the tests only."""

from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))  # an int passes for a float
