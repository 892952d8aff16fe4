"""Quantiles of the Gamma distribution, with the standard library alone.

The regularised lower incomplete gamma function by its series and its continued fraction (Abramowitz and Stegun 6.5.29 and
6.5.31, the latter evaluated by Lentz's method), inverted by Halley's method: three or four evaluations where bisection takes
forty. It starts at the cube of Wilson and Hilferty (1931, Abramowitz and Stegun 26.4.17) and is kept within a bracket that
always holds the answer.
"""

from __future__ import annotations

import math
from statistics import NormalDist


def gamma_cdf(shape: float, x: float) -> float:
    """P(X <= x) for X ~ Gamma(shape, 1)."""
    assert shape > 0
    if x <= 0:
        return 0.0
    log_factor = shape * math.log(x) - x - math.lgamma(shape)
    if x < shape + 1:
        return _series(shape, x) * math.exp(log_factor)
    return 1.0 - _continued_fraction(shape, x) * math.exp(log_factor)


def gamma_quantile(shape: float, probability: float) -> float:
    """x with P(X <= x) = probability for X ~ Gamma(shape, 1), to twelve digits."""
    assert 0 < probability < 1
    low, high = 0.0, math.inf
    x = _near_quantile(shape, probability)
    for _ in range(200):
        error = gamma_cdf(shape, x) - probability
        if error < 0:
            low = x
        else:
            high = x
        step = error / math.exp((shape - 1) * math.log(x) - x - math.lgamma(shape))
        step /= 1 - 0.5 * min(1.0, step * ((shape - 1) / x - 1))
        better = x - step
        if not low <= better <= high:
            better = (low + high) / 2 if high < math.inf else 2 * x
        if abs(better - x) <= 1e-7 * better:
            return better              # each step cubes the error: this one left nothing of it
        x = better
    return x


def _near_quantile(shape: float, probability: float) -> float:
    """Within some per cent, for a start. Below shape 1 the power of the density's left end is nearer than the cube."""
    if shape < 1:
        return math.exp((math.log(probability) + math.lgamma(shape + 1)) / shape)
    ninth = 1 / (9 * shape)
    cube = 1 - ninth + NormalDist().inv_cdf(probability) * math.sqrt(ninth)
    return shape * max(cube, 0.01) ** 3


def _series(shape: float, x: float) -> float:
    term = total = 1.0 / shape
    denominator = shape
    while abs(term) > abs(total) * 1e-16:
        denominator += 1
        term *= x / denominator
        total += term
    return total


def _continued_fraction(shape: float, x: float) -> float:
    tiny = 1e-300
    b = x + 1 - shape
    c, d = 1 / tiny, 1 / b
    value = d
    for i in range(1, 10_000):
        a = -i * (i - shape)
        b += 2
        d = 1 / (a * d + b or tiny)
        c = b + a / c or tiny
        step = d * c
        value *= step
        if abs(step - 1) < 1e-15:
            break
    return value
