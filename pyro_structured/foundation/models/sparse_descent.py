"""Minima of smooth functions with an L1 penalty, by L-BFGS with bounds."""

__all__ = ["Descent", "descend"]

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.optimize import Bounds, minimize

from pyro_structured.foundation.ops.progress import progress_bar

# Number of pairs of steps and gradient changes that L-BFGS remembers.
MEMORY = 20
# Largest number of evaluations, which is never reached: the number of iterations is the limit.
MOST_EVALUATIONS = 10**9


class Descent(NamedTuple):
    """Result of a descent.

    :ivar numpy.ndarray vector: Parameters after the last iteration.
    :ivar int num_iterations: Number of iterations.
    :ivar slope: Largest absolute entry of the projected gradient; ``None`` after an interrupt from the keyboard.
    """

    vector: np.ndarray
    num_iterations: int
    slope: float | None


class _Split:
    """Penalised entries are differences of parts of at least 0, whose sums are linear."""

    def __init__(self, function: Callable[[np.ndarray], tuple[float, np.ndarray]], prices: np.ndarray) -> None:
        self.function, self.size = function, len(prices)
        self.split = prices.nonzero()[0]
        self.prices = prices[self.split]
        self.lower = np.full(self.size + len(self.split), -np.inf)
        self.lower[self.split] = self.lower[self.size :] = 0.0

    def slope(self, parts: np.ndarray, gradient: np.ndarray) -> float:
        """Largest absolute entry of the projected gradient."""
        return float(np.abs(np.where(gradient > 0, np.minimum(parts - self.lower, gradient), gradient)).max(initial=0))

    def part(self, vector: np.ndarray) -> np.ndarray:
        parts = np.concatenate([vector, np.maximum(-vector[self.split], 0)])
        parts[self.split] = np.maximum(parts[self.split], 0)
        return parts

    def join(self, parts: np.ndarray) -> np.ndarray:
        vector: np.ndarray = parts[: self.size].copy()
        vector[self.split] -= parts[self.size :]
        return vector

    def gradient(self, parts: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = self.function(self.join(parts))
        negative = self.prices - gradient[self.split]
        gradient[self.split] += self.prices
        cost = self.prices @ (parts[self.split] + parts[self.size :])
        return value + float(cost), np.concatenate([gradient, negative])


def descend(
    function: Callable[[np.ndarray], tuple[float, np.ndarray]],
    start: np.ndarray,
    prices: np.ndarray,
    tol: float,
    max_iter: int,
    after: Callable[[np.ndarray], None] = lambda vector: None,
) -> Descent:
    """Minimises a function plus ``prices`` times the absolute values of its arguments.

    L-BFGS-B keeps the bounds of the positive and negative parts of entries that have a price: zeros are exact, and only
    the tolerance is approximate. An interrupt from the keyboard ends the iterations.

    :param function: Value and gradient, which may be changed, for a vector of parameters.
    :param numpy.ndarray start: The first vector, shape ``(n,)``.
    :param numpy.ndarray prices: Numbers of at least 0, shape ``(n,)``.
    :param float tol: Largest absolute entry of the projected gradient of a solution.
    :param int max_iter: Largest number of iterations.
    :param after: Called with the vector after every iteration.

    Example::

        >>> descend(lambda x: (0.5 * ((x - 1) ** 2).sum(), x - 1), np.zeros(2), np.array([0.5, 2.0]), 1e-9, 99).vector
        array([0.5, 0. ])
    """
    split = _Split(function, prices)
    reached, number = split.part(start), 0
    limits = {"maxiter": max_iter, "maxfun": MOST_EVALUATIONS, "maxcor": MEMORY, "gtol": tol, "ftol": 0}
    bounds = Bounds(split.lower, np.inf) if len(split.lower) else None
    with progress_bar(total=max_iter, desc="L-BFGS", unit="iteration") as bar:

        def keep(parts: np.ndarray) -> None:
            nonlocal reached, number
            reached, number = parts.copy(), number + 1
            after(split.join(reached))
            bar.update()

        try:
            solution = minimize(
                split.gradient, reached, jac=True, method="L-BFGS-B", bounds=bounds, callback=keep, options=limits
            )
        except KeyboardInterrupt:
            return Descent(split.join(reached), number, None)
    # Without any parameters, the solution has no gradient.
    slope = split.slope(solution.x, solution.get("jac", solution.x))
    return Descent(split.join(reached), number, slope)
