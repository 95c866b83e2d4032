"""The spectrum of A_σ⁻¹ = (I + σL)⁻¹ on a ring, and what smoothing does to a noisy vector.

With s = √(1 + 4σ) and a = arsinh(1/(2√σ)), Poisson summation over the ring gives
Σ_i 1/(c + 4σ sin²(πi/d)) = d·coth(d·a(c))/√(c² + 4σc), a(c) = arsinh(√c/(2√σ)). At c = 1 this is
d_σ; minus its derivative in c is d̃_σ. Both are sums of positive terms, so nothing cancels.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpfedls.errors import InputError, require_not_negative

Floats: TypeAlias = NDArray[np.float64]

_CHUNK = 1 << 20  # terms summed at a time, so that memory does not grow with the dimension


class Risk(NamedTuple):
    """The two parts of E‖v̂ − v‖² (Proposition 1)."""

    bias: float
    variance: float

    @property
    def total(self) -> float:
        """The mean squared error."""
        return self.bias + self.variance


def eigenvalues(dim: int, strength: float) -> Floats:
    """Λ_i of A_σ⁻¹ for i = 0 … d − 1, in the order of the Fourier basis (Theorem 3)."""
    _check(dim, strength)
    return _eigenvalues(np.arange(dim), dim, strength)


def smallest_eigenvalue(dim: int, strength: float) -> float:
    """Λ_min: 1/(1 + 4σ) on an even ring, a little more on an odd one (Theorem 3)."""
    _check(dim, strength)
    # The frequency nearest to ½ is (d − 1)/(2d) when d is odd, and sin(π/2 − π/2d) = cos(π/2d).
    highest = math.cos(math.pi / (2 * dim)) if dim % 2 else 1.0
    return 1 / (1 + 4 * strength * highest**2)


def effective_dimension(dim: int, strength: float, power: Literal[1, 2] = 1) -> float:
    """d_σ = Σ Λ_i (power 1) or d̃_σ = Σ Λ_i² (power 2), in closed form (Theorems 4 to 6)."""
    _check(dim, strength)
    if power not in (1, 2):
        raise InputError(f"power must be 1 (d_σ) or 2 (d̃_σ), got {power}; others have no use here")
    if strength == 0:
        return float(dim)
    s = math.sqrt(1 + 4 * strength)
    x = dim * math.asinh(0.5 / math.sqrt(strength))
    coth = 1 / math.tanh(x)
    if power == 1:
        return dim * coth / s
    csch_squared = 4 * math.exp(-2 * x) / math.expm1(-2 * x) ** 2  # sinh would overflow
    return dim * ((1 + 2 * strength) / s**3 * coth + dim / (2 + 8 * strength) * csch_squared)


def effective_dimension_by_sum(dim: int, strength: float, power: Literal[1, 2] = 1) -> float:
    """The same by its definition, term by term."""
    _check(dim, strength)
    starts = range(0, dim, _CHUNK)
    chunks = (np.arange(start, min(start + _CHUNK, dim)) for start in starts)
    return math.fsum(float(np.sum(_eigenvalues(i, dim, strength) ** power)) for i in chunks)


def squared_norm(vector: ArrayLike, strength: float) -> float:
    """‖v‖² in A_σ; of w⁰ − w* it is D_σ (Theorem 4)."""
    v = np.asarray(vector, dtype=np.float64).reshape(-1)
    _check(v.size, strength)
    return float(v @ v + strength * np.sum((v - np.roll(v, 1)) ** 2))


def risk(vector: ArrayLike, noise_stddev: float, strength: float) -> Risk:
    """Bias and variance of smoothing v + N(0, ν² I) (Proposition 1)."""
    v = np.asarray(vector, dtype=np.float64).reshape(-1)
    _check(v.size, strength)
    require_not_negative("noise_stddev", noise_stddev, "it is the noise on each coordinate")
    power = np.abs(np.fft.fft(v, norm="ortho")) ** 2
    # 1 − Λ without cancellation for small σλ: σλ/(1 + σλ).
    scaled = strength * _laplacian(np.arange(v.size), v.size)
    bias = float(np.sum((scaled / (1 + scaled)) ** 2 * power))
    return Risk(bias, noise_stddev**2 * effective_dimension(v.size, strength, 2))


def _eigenvalues(i: NDArray[np.integer], dim: int, strength: float) -> Floats:
    return 1 / (1 + strength * _laplacian(i, dim))


def _laplacian(i: NDArray[np.integer], dim: int) -> Floats:
    # 2 − 2 cos(2πi/d), written so that low frequencies keep their digits.
    return 4 * np.sin(np.pi * i / dim) ** 2


def _check(dim: int, strength: float) -> None:
    if not (isinstance(dim, int) and dim >= 1):
        raise InputError(
            f"dim must be a whole number >= 1, got {dim}; it is the number of parameters"
        )
    require_not_negative("strength", strength, "0 switches smoothing off")
