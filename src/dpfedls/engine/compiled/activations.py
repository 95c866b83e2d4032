"""Activations: one number in, one number out; NaN stays NaN, as in torch."""

from __future__ import annotations

import math

import numpy as np

from dpfedls.engine.compiled.arrays import ONE, TWO, ZERO
from dpfedls.engine.compiled.exponential import exponential
from dpfedls.engine.jit import jit

_HALF, _ROOT_HALF = np.float32(0.5), np.float32(math.sqrt(0.5))
_DENSITY = np.float32(1 / math.sqrt(2 * math.pi))  # of the standard normal at 0
_INNER, _CUBIC = np.float32(math.sqrt(2 / math.pi)), np.float32(0.044715)


@jit
def logistic(x):
    """``1 / (1 + e^-x)``."""
    return ONE / (ONE + exponential(-x))


def relu(sizes, options, weights, x, y, kept, work):
    """``y = max(x, 0)``."""
    for t in range(len(y)):
        y[t] = ZERO if x[t] < ZERO else x[t]


def relu_backward(sizes, options, weights, x, y, kept, d_y, d_x, work):
    """``dx = dy`` where y is above zero."""
    for t in range(len(d_x)):
        d_x[t] = ZERO if y[t] <= ZERO else d_y[t]
    return ZERO


def leaky_relu(sizes, options, weights, x, y, kept, work):
    """``y = x`` above zero, ``slope · x`` below."""
    for t in range(len(y)):
        y[t] = x[t] if x[t] > ZERO else options[0] * x[t]


def leaky_relu_backward(sizes, options, weights, x, y, kept, d_y, d_x, work):
    """``dx = dy`` above zero, ``slope · dy`` below."""
    for t in range(len(d_x)):
        d_x[t] = d_y[t] if x[t] > ZERO else options[0] * d_y[t]
    return ZERO


def elu(sizes, options, weights, x, y, kept, work):
    """``y = x`` above zero, ``α (e^x − 1)`` below."""
    for t in range(len(y)):
        y[t] = x[t] if x[t] > ZERO else options[0] * np.float32(math.expm1(x[t]))


def elu_backward(sizes, options, weights, x, y, kept, d_y, d_x, work):
    """``dx = dy`` above zero, ``dy · (y + α)`` below."""
    for t in range(len(d_x)):
        d_x[t] = d_y[t] if x[t] > ZERO else d_y[t] * (y[t] + options[0])
    return ZERO


def tanh(sizes, options, weights, x, y, kept, work):
    """``y = tanh x``."""
    for t in range(len(y)):
        y[t] = math.tanh(x[t])


def tanh_backward(sizes, options, weights, x, y, kept, d_y, d_x, work):
    """``dx = dy · (1 − y²)``."""
    for t in range(len(d_x)):
        d_x[t] = d_y[t] * (ONE - y[t] * y[t])
    return ZERO


def sigmoid(sizes, options, weights, x, y, kept, work):
    """``y = σ(x)``, the logistic function."""
    for t in range(len(y)):
        y[t] = logistic(x[t])


def sigmoid_backward(sizes, options, weights, x, y, kept, d_y, d_x, work):
    """``dx = dy · y (1 − y)``."""
    for t in range(len(d_x)):
        d_x[t] = d_y[t] * (y[t] * (ONE - y[t]))
    return ZERO


def silu(sizes, options, weights, x, y, kept, work):
    """``y = x σ(x)``."""
    for t in range(len(y)):
        y[t] = x[t] * logistic(x[t])


def silu_backward(sizes, options, weights, x, y, kept, d_y, d_x, work):
    """``dx = dy · σ (1 + x (1 − σ))``."""
    for t in range(len(d_x)):
        share = logistic(x[t])
        d_x[t] = d_y[t] * (share * (ONE + x[t] * (ONE - share)))
    return ZERO


def softplus(sizes, options, weights, x, y, kept, work):
    """``y = log(1 + e^(βx)) / β``, and x itself where βx is above the threshold."""
    beta, threshold = options[0], options[1]
    for t in range(len(y)):
        z = beta * x[t]
        y[t] = x[t] if z > threshold else np.float32(math.log1p(math.exp(z))) / beta


def softplus_backward(sizes, options, weights, x, y, kept, d_y, d_x, work):
    """``dx = dy · σ(βx)``, and dy itself above the threshold."""
    beta, threshold = options[0], options[1]
    for t in range(len(d_x)):
        z = beta * x[t]
        d_x[t] = d_y[t] if z > threshold else d_y[t] * logistic(z)
    return ZERO


def gelu(sizes, options, weights, x, y, kept, work):
    """``y = x Φ(x)``, Φ the normal distribution function, which is kept."""
    for t in range(len(y)):
        kept[t] = _HALF * (ONE + np.float32(math.erf(x[t] * _ROOT_HALF)))
    for t in range(len(y)):
        y[t] = x[t] * kept[t]


def gelu_backward(sizes, options, weights, x, y, kept, d_y, d_x, work):
    """``dx = dy · (Φ(x) + x φ(x))``, φ the normal density."""
    for t in range(len(d_x)):
        density = _DENSITY * exponential(-_HALF * (x[t] * x[t]))
        d_x[t] = d_y[t] * (kept[t] + x[t] * density)
    return ZERO


def tanh_gelu(sizes, options, weights, x, y, kept, work):
    """``y = x (1 + tanh u) / 2 = x σ(2u)`` with ``u = √(2/π) (x + 0.044715 x³)``."""
    for t in range(len(y)):
        u = _INNER * (x[t] + _CUBIC * (x[t] * x[t] * x[t]))
        y[t] = x[t] * logistic(TWO * u)


def tanh_gelu_backward(sizes, options, weights, x, y, kept, d_y, d_x, work):
    """``dx = dy · (σ + 2x σ (1 − σ) u')`` with ``u' = √(2/π) (1 + 3 · 0.044715 x²)``."""
    for t in range(len(d_x)):
        square = x[t] * x[t]
        share = logistic(TWO * _INNER * (x[t] + _CUBIC * (square * x[t])))
        inner = _INNER * (ONE + np.float32(3) * _CUBIC * square)
        d_x[t] = d_y[t] * (share + TWO * x[t] * share * (ONE - share) * inner)
    return ZERO
