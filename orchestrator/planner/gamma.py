"""Quantiles of the Gamma distribution, with the standard library alone.

The regularised lower incomplete gamma function by its series and its continued fraction (Abramowitz and Stegun 6.5.29 and
6.5.31, the latter evaluated by Lentz's method), inverted by bisection on a bracket that always holds the answer.
"""

from __future__ import annotations

import math


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
    low, high = 0.0, shape + 1.0
    while gamma_cdf(shape, high) < probability:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        if high - low <= 1e-12 * high:
            break
        if gamma_cdf(shape, middle) < probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2


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
