r"""Reference answers for potentials on the counts of nested subsets, for thousands of variables.

The model and the arguments are those of :mod:`~pyro_structured.testing.brute_force`, without batches: ``logits`` of
shape ``(D,)`` and ``count_logits`` of shape ``(sum of |s| + 1,)``; the subsets must be nested. Generating polynomials
of the counts are multiplied in ball arithmetic (Arb), in which every number carries a bound on its error:
functions return the float64 number next to the exact answer, or raise an ``ArithmeticError``. This needs `python-flint
<https://pypi.org/project/python-flint/>`_, which is not installed along with the package.

**References**

Fredrik Johansson (2017): *Arb: efficient arbitrary-precision midpoint-radius interval arithmetic.* IEEE Transactions on
Computers 66(8).
"""

__all__ = ["Beliefs", "CountLogProbs", "beliefs", "hessian_vector_product", "log_partition", "poisson_binomial"]

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from pyro_structured.testing.polynomial_tree import Numbers, PolynomialTree, ball, total

Subsets = Iterable[Iterable[int]]
# Relative precision of a result in bits, and half of the absolute one of a tiny result; float64 has 53.
_RESULT_BITS = 64
_Result = TypeVar("_Result")


class Beliefs(NamedTuple):
    """Posterior quantities: ``log_partition`` of shape ``()``, ``marginal_logits`` of shape ``(D,)``, and
    ``count_marginals``, the probabilities of all counts of all subsets, shape ``(sum of |s| + 1,)``. All are float64.
    """

    log_partition: Tensor
    marginal_logits: Tensor
    count_marginals: Tensor


class CountLogProbs(NamedTuple):
    """Logarithms of P(K = k), P(K <= k) and P(K > k) for k = 0 ... D, each of shape ``(D + 1,)``, float64."""

    log_prob: Tensor
    log_cdf: Tensor
    log_survival: Tensor


def log_partition(logits: Tensor, count_logits: Tensor, subsets: Subsets | None = None, precision: int = 400) -> Tensor:
    """Computes the logarithm of the partition function; arguments as the module says.

    :param int precision: Bits of the computation.
    :return: Shape ``()``; -inf where no vector is possible.
    :raises ArithmeticError: if the precision was too low for an answer correct in the last bit.

    Example::

        >>> log_partition(torch.tensor([0.0, 1.0]), torch.tensor([0.0, 2.0, 5.0]))
        tensor(6.0682, dtype=torch.float64)
    """
    return _at_precision(precision, lambda: _rounded([_tree(logits, count_logits, subsets).log_partition()])[0])


def beliefs(logits: Tensor, count_logits: Tensor, subsets: Subsets | None = None, precision: int = 400) -> Beliefs:
    """Computes the partition function and all posterior marginals; arguments as the module says.

    About 10 seconds for 4,096 variables with logits between -50 and 50, and 2 for moderate ones.

    :param int precision: Bits of the computation.
    :return: The log partition function, posterior log-odds and count probabilities.
    :raises ArithmeticError: if the precision was too low for answers correct in the last bit.
    :raises ValueError: if no vector is possible.

    Example::

        >>> at_most_one = torch.tensor([0.0, 0.0, -torch.inf, -torch.inf])
        >>> beliefs(torch.zeros(3), at_most_one).marginal_logits.exp()
        tensor([0.3333, 0.3333, 0.3333], dtype=torch.float64)
    """

    def compute() -> Beliefs:
        tree = _tree(logits, count_logits, subsets)
        if tree.log_partition() is None:
            raise ValueError("count_logits: expected at least one vector of positive probability")
        tree.pass_down()
        return Beliefs(
            _rounded([tree.log_partition()])[0],
            _rounded(tree.marginal_logits()),
            _rounded([p for table in tree.count_marginals() for p in table]),
        )

    return _at_precision(precision, compute)


def hessian_vector_product(
    logits: Tensor,
    count_logits: Tensor,
    direction: tuple[Tensor, Tensor],
    subsets: Subsets | None = None,
    precision: int = 1200,
) -> tuple[Tensor, Tensor]:
    """Computes the product of a vector with the Hessian of the log partition function.

    The product is the derivative of the posterior probabilities along the vector, computed as a central difference over
    a step of ``2 ** -200``, whose error is of the order of the step's square. Infinite parameters are constants.

    :param direction: The vector that multiplies the Hessian: a part in the shape of ``logits``, and one in that of
        ``count_logits``.
    :param int precision: Bits of the computation.
    :return: The products for ``logits`` and for ``count_logits``, float64.
    :raises ArithmeticError: if the precision was too low.

    Example::

        >>> along = (torch.ones(2), torch.zeros(3))
        >>> hessian_vector_product(torch.zeros(2), torch.zeros(3), along)[0].tolist()
        [0.25, 0.25]
    """

    def compute() -> tuple[Tensor, Tensor]:
        step = ball(2.0**-200)

        def moved(parameters: Tensor, along: Tensor, sign: int) -> Numbers:
            pairs = zip(parameters.tolist(), along.tolist(), strict=True)
            return [x if np.isinf(x) else ball(x) + sign * step * ball(v) for x, v in pairs]

        def probabilities(sign: int) -> tuple[Numbers, Numbers]:
            x, f = moved(logits.detach(), direction[0], sign), moved(count_logits.detach(), direction[1], sign)
            tree = PolynomialTree(x, f, subsets)
            tree.pass_down()
            return tree.marginals(), [p for table in tree.count_marginals() for p in table]

        def quotient(up: Numbers, down: Numbers) -> Tensor:
            return _rounded([(u - d) / (2 * step) for u, d in zip(up, down, strict=True)])

        (up, count_up), (down, count_down) = probabilities(1), probabilities(-1)
        clamped = logits.isinf()
        return quotient(up, down).masked_fill(clamped, 0.0), quotient(count_up, count_down)

    return _at_precision(precision, compute)


def poisson_binomial(logits: Tensor, precision: int = 400) -> CountLogProbs:
    """Computes the distribution of the count of independent binary variables, far tails included.

    :param Tensor logits: Log-odds of the variables, shape ``(D,)``, infinite ones included.
    :param int precision: Bits of the computation.
    :return: Logarithms of probabilities and of cumulative ones, from below and from above.
    :raises ArithmeticError: if the precision was too low for answers correct in the last bit.

    Example::

        >>> poisson_binomial(torch.zeros(2)).log_prob.exp().tolist()
        [0.25, 0.5, 0.25]
    """

    def compute() -> CountLogProbs:
        tree = _tree(logits, torch.zeros(len(logits) + 1), None)
        weights = tree.root_weights()
        whole = total(weights)
        below = np.cumsum(np.array(weights, dtype=object)).tolist()
        above = np.cumsum(np.array(weights[:0:-1], dtype=object)).tolist()[::-1] + [ball(0.0)]
        return CountLogProbs(*(_rounded([_log(w / whole) for w in table]) for table in (weights, below, above)))

    return _at_precision(precision, compute)


def _tree(logits: Tensor, count_logits: Tensor, subsets: Subsets | None) -> PolynomialTree:
    if logits.dim() != 1 or count_logits.dim() != 1:
        shapes = f"{tuple(logits.shape)} and {tuple(count_logits.shape)}"
        raise ValueError(f"logits, count_logits: expected vectors without batch axes, got shapes {shapes}")
    x, f = ([v if np.isinf(v) else ball(v) for v in p.detach().double().tolist()] for p in (logits, count_logits))
    return PolynomialTree(x, f, subsets)


def _at_precision(precision: int, compute: Callable[[], _Result]) -> _Result:
    from flint import ctx

    with ctx.workprec(precision):
        return compute()


def _log(weight: Any) -> Any:
    return None if weight.is_zero() else weight.log()


def _rounded(numbers: Sequence[Any]) -> Tensor:
    """Rounds balls to float64; ``None`` stands for -inf. Refuses balls that are too large to know the last bit."""
    values = []
    for number in numbers:
        if number is None or isinstance(number, float):
            values.append(-np.inf if number is None else number)
            continue
        size = max(abs(float(number.mid())), 2.0**-_RESULT_BITS)
        if not float(number.rad()) <= 2.0**-_RESULT_BITS * size:
            raise ArithmeticError(f"precision: expected enough bits for a result correct in the last bit, got {number}")
        values.append(float(number.mid()))
    return torch.tensor(values, dtype=torch.float64)
