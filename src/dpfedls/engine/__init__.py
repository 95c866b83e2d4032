"""How clients are trained fast: every engine gives the results of the slow twin.

One door: ``choose`` finds the fastest engine that a model, its loss and the machine allow.
"""

from dpfedls.engine.choice import ENGINES, choose
from dpfedls.engine.engine import Engine

__all__ = ["ENGINES", "Engine", "choose"]
