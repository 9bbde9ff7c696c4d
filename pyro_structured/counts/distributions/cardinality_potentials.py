r"""Tables of log-potentials on the number c of ones among n binary variables (Tarlow et al. 2012, Section 4.2).

Each function returns the log-potentials of the counts :math:`c = 0, \dots, n`, a tensor of shape ``(..., n + 1)``:
pass it as ``count_logits`` to :class:`~pyro_structured.distributions.RecursiveCardinality`, or, for nested subsets,
several through
:meth:`NestedSubsets.pack <pyro_structured.structures.NestedSubsets.pack>`. Parameters may be tensors of any shape, with
gradients; the table gets their shape in front. Tables can be added.
"""

__all__ = [
    "at_least",
    "at_most",
    "between",
    "competition",
    "consistency",
    "exactly",
    "for_sizes",
    "group_sparsity",
    "noisy_or",
    "normal_fraction",
    "parity",
    "smoothness",
]

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from pyro_structured.foundation.ops.vmap_rows import broadcast_shapes
from pyro_structured.foundation.structures.argument_checks import check_dense, check_size


def exactly(n: int, k: int | Tensor) -> Tensor:
    r"""Allows only the count k: :math:`f(c) = 0` for :math:`c = k`, otherwise :math:`-\infty`.

    :param int n: Number of variables.
    :param k: A count in ``range(n + 1)``, or a tensor of counts.
    :raises ValueError: if a count is out of range.

    Example::

        >>> exactly(2, 1)
        tensor([-inf, 0., -inf])
    """
    k = _bound("k", k, n)
    return between(n, k, k)


def at_least(n: int, k: int | Tensor) -> Tensor:
    """Allows only counts of at least k; arguments as for :func:`exactly`.

    Example::

        >>> at_least(2, 1)
        tensor([-inf, 0., 0.])
    """
    return between(n, _bound("k", k, n), n)


def at_most(n: int, k: int | Tensor) -> Tensor:
    """Allows only counts of at most k; arguments as for :func:`exactly`. Inference then costs O(nk) at most.

    Example::

        >>> at_most(2, 1)
        tensor([0., 0., -inf])
    """
    return between(n, 0, _bound("k", k, n))


def between(n: int, low: int | Tensor, high: int | Tensor) -> Tensor:
    """Allows only counts from ``low`` to ``high``, both included.

    :param int n: Number of variables.
    :param low: Smallest count, in ``range(n + 1)``.
    :param high: Largest count, in ``range(n + 1)``, at least ``low``.
    :raises ValueError: if a count is out of range, no count is allowed, or the shapes do not broadcast.

    Example::

        >>> between(3, 1, 2)
        tensor([-inf, 0., 0., -inf])
    """
    low, high = _together(low=_bound("low", low, n), high=_bound("high", high, n))
    if bool((low > high).any()):
        raise ValueError(f"high: expected counts of at least low, {low}, got {high}")
    counts = _counts(n, low)
    outside = (counts < low.unsqueeze(-1)) | (counts > high.unsqueeze(-1))
    return torch.zeros(outside.shape, device=outside.device).masked_fill(outside, -math.inf)


def parity(n: int, odd: bool = False) -> Tensor:
    """Allows only even counts, or only odd ones, as the checks of an error-correcting code do.

    :param int n: Number of variables.
    :param bool odd: Whether the count has to be odd.
    :raises ValueError: if it is not a bool.

    Example::

        >>> parity(3)
        tensor([0., -inf, 0., -inf])
    """
    _check_bool("odd", odd)
    counts = _counts(n, torch.zeros(()))
    return torch.zeros_like(counts).masked_fill(counts % 2 != int(odd), -math.inf)


def noisy_or(n: int, outcome: bool, leak: float | Tensor, strength: float | Tensor) -> Tensor:
    r"""Log-likelihood of a binary outcome t that every active variable may cause (Equation 5).

    .. math::
        P(t = 1 \mid c) = 1 - (1 - \epsilon)(1 - \lambda)^c.

    :param int n: Number of variables.
    :param bool outcome: The observed t.
    :param leak: Probability :math:`\epsilon` in [0, 1) of the outcome without any cause.
    :param strength: Probability :math:`\lambda` in [0, 1) that one active variable causes it.
    :raises ValueError: if a probability is not in [0, 1), the outcome is not a bool, or the shapes do not broadcast.

    Example::

        >>> noisy_or(2, True, leak=0.0, strength=0.5).exp()
        tensor([0.0000, 0.5000, 0.7500])
    """
    _check_bool("outcome", outcome)
    parameters = {"leak": _floating("leak", leak), "strength": _floating("strength", strength)}
    for name, value in parameters.items():
        if not bool(((value >= 0) & (value < 1)).all()):
            raise ValueError(f"{name}: expected probabilities in [0, 1), got {value}")
    leak, strength = (parameter.unsqueeze(-1) for parameter in _together(**parameters))
    failed = torch.log1p(-leak) + _counts(n, strength) * torch.log1p(-strength)
    if not outcome:
        return failed
    # log(1 - exp(x)) without a NaN in the derivative where no cause is active.
    impossible = failed == 0
    return (-torch.expm1(failed.masked_fill(impossible, -1.0))).log().masked_fill(impossible, -math.inf)


def smoothness(n: int, strength: float | Tensor) -> Tensor:
    r"""Prefers the variables to be on together or off together: convex, :math:`f(c) = a\,(2c/n - 1)^2`.

    :param int n: Number of variables, at least 1.
    :param strength: The difference a, in nats, between the ends and the middle; a negative one is :func:`competition`.

    Example::

        >>> smoothness(4, 1.0)
        tensor([1.0000, 0.2500, 0.0000, 0.2500, 1.0000])
    """
    strength = _floating("strength", strength).unsqueeze(-1)
    return strength * (2 * _counts(n, strength) / n - 1) ** 2


def competition(n: int, strength: float | Tensor) -> Tensor:
    r"""Prefers about half of the variables to be on: concave, :math:`f(c) = -a\,(2c/n - 1)^2`.

    Arguments as for :func:`smoothness`.

    Example::

        >>> competition(2, 1.0)
        tensor([-1., -0., -1.])
    """
    return -smoothness(n, strength)


def group_sparsity(n: int, spike: float | Tensor) -> Tensor:
    """Prefers the whole group to be off: a spike at 0, and no preference among other counts (Section 4.2.2).

    :param int n: Number of variables.
    :param spike: Log-potential of the count 0, -inf to forbid it; nested groups make hierarchical sparsity.

    Example::

        >>> group_sparsity(2, 3.0)
        tensor([3., 0., 0.])
    """
    spike = _floating("spike", spike).unsqueeze(-1)
    return torch.where(_counts(n, spike) == 0, spike, 0.0)


def consistency(n: int, strength: float | Tensor, tolerance: int = 1) -> Tensor:
    r"""Rewards equal labels: the (robust) :math:`P^n` potential of Kohli, Ladicky and Torr (2009).

    .. math::
        f(c) = a \max\big(0,\ 1 - \min(c, n - c) / q\big).

    :param int n: Number of variables.
    :param strength: Reward a, in nats, for all variables being equal.
    :param int tolerance: Number q of dissenting variables at which the reward has gone; 1 is the strict :math:`P^n`
        Potts potential, more makes it robust.
    :raises ValueError: if the tolerance is not positive.

    Example::

        >>> consistency(4, 2.0, tolerance=2)
        tensor([2., 1., 0., 1., 2.])
    """
    check_size("tolerance", tolerance)
    strength = _floating("strength", strength).unsqueeze(-1)
    counts = _counts(n, strength)
    return strength * (1 - torch.minimum(counts, n - counts) / tolerance).clamp(min=0)


def normal_fraction(n: int, mean: float | Tensor, scale: float | Tensor) -> Tensor:
    r"""Prefers a fraction of the variables: :math:`f(c) = -(c/n - \mu)^2 / (2\sigma^2)`.

    The printed formulas of Section 6.3, :math:`(\mu - c/D)/2\sigma^2`, lack the square that "Normal" and Figure 8 mean.

    :param int n: Number of variables, at least 1.
    :param mean: Preferred fraction :math:`\mu`.
    :param scale: Standard deviation :math:`\sigma > 0` of the fraction.
    :raises ValueError: if the scale is not positive, or the shapes do not broadcast.

    Example::

        >>> normal_fraction(2, mean=0.5, scale=0.5)
        tensor([-0.5000, -0.0000, -0.5000])
    """
    mean, scale = _together(mean=_floating("mean", mean), scale=_floating("scale", scale))
    if not bool((scale > 0).all()):
        raise ValueError(f"scale: expected positive numbers, got {scale}")
    mean, scale = mean.unsqueeze(-1), scale.unsqueeze(-1)
    return -(((_counts(n, mean) / n - mean) / scale) ** 2) / 2


def for_sizes(law: Callable[[int], Tensor], sizes: Sequence[int] | np.ndarray | Tensor) -> Tensor:
    """Tables for groups of several sizes, such as the padded bags of :class:`~pyro_structured.distributions.BagLabel`.

    :param law: Makes the table of n variables, shape ``(..., n + 1)``; it is called once for each size.
    :param sizes: Number of variables of each group, at least 1, shape ``(B,)``.
    :return: Shape ``(B, ..., D + 1)``, where D is the largest size; -inf for counts above a group's own size.
    :raises ValueError: if a size is no positive integer, or a table has another shape.

    Example::

        >>> for_sizes(lambda n: at_least(n, n // 2), [2, 4])  # half of the group
        tensor([[-inf, 0., 0., -inf, -inf],
                [-inf, -inf, 0., 0., 0.]])
    """
    numbers = _convert("sizes", sizes, "one or more positive integers, shape (B,)").cpu()
    wrong = numbers.dim() != 1 or numbers.is_floating_point() or numbers.dtype == torch.bool or not len(numbers)
    if wrong or bool(((numbers < 1) | (numbers >= 2**31)).any()):
        raise ValueError(f"sizes: expected one or more positive integers, shape (B,), got {sizes!r}")
    different, places = numbers.unique(return_inverse=True)
    tables = [_table(law, n) for n in different.tolist()]
    if len({table.shape[:-1] for table in tables}) > 1:
        raise ValueError(f"law: expected tables of one shape (..., n + 1), got {[tuple(t.shape) for t in tables]}")
    widths = [int(different[-1]) + 1 - table.shape[-1] for table in tables]
    padded = [pad(table, (0, width), value=-math.inf) for table, width in zip(tables, widths, strict=True)]
    return torch.stack(padded)[places.to(padded[0].device)]


def _table(law: Callable[[int], Tensor], n: int) -> Tensor:
    try:
        table = law(n)
    except TypeError as error:
        raise ValueError(f"law: expected a function of the number of variables, got another: {error}") from error
    if not isinstance(table, Tensor) or table.shape[-1:] != (n + 1,):
        got = tuple(table.shape) if isinstance(table, Tensor) else type(table).__name__
        raise ValueError(f"law: expected a tensor of shape (..., {n + 1}) for {n} variables, got {got}")
    return table


def check_counts(name: str, counts: int | Tensor, largest: int, device: torch.device | None = None) -> Tensor:
    """Makes a tensor of integers from 0 to ``largest``, or raises a ValueError with the argument's name."""
    tensor = _convert(name, counts, "an integer or an integer tensor", device)
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        raise ValueError(
            f"{name}: expected an integer or an integer tensor, got {tensor.dtype}; {name}.long() converts counts"
        )
    if not torch.compiler.is_compiling() and bool(((tensor < 0) | (tensor > largest)).any()):
        raise ValueError(f"{name}: expected counts between 0 and {largest}, the number of variables, got {tensor}")
    return tensor


def _bound(name: str, count: int | Tensor, n: int) -> Tensor:
    check_size("n", n)
    return check_counts(name, count, n)


def _check_bool(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"{name}: expected a bool, got {value!r}; torch.where chooses between two tables")


def _floating(name: str, parameter: float | Tensor) -> Tensor:
    tensor = _convert(name, parameter, "a number or a tensor")
    return tensor if tensor.is_floating_point() else tensor.to(torch.get_default_dtype())


def _convert(name: str, given: object, expected: str, device: torch.device | None = None) -> Tensor:
    try:
        tensor = torch.as_tensor(given, device=device)
    except (RuntimeError, TypeError, ValueError):
        raise ValueError(f"{name}: expected {expected}, got {given!r}") from None
    check_dense(name, tensor)
    return tensor


def _together(**pair: Tensor) -> tuple[Tensor, Tensor]:
    """Two parameters on one device, or a ValueError, with their names, unless their shapes broadcast."""
    (name, first), (other, second) = pair.items()
    try:
        broadcast_shapes(first.shape, second.shape)
    except RuntimeError:
        raise ValueError(
            f"{other}: expected a shape that broadcasts with that of {name}, {tuple(first.shape)}, got "
            f"{tuple(second.shape)}"
        ) from None
    device = (first + second).device
    return first.to(device), second.to(device)


def _counts(n: int, like: Tensor) -> Tensor:
    check_size("n", n)
    dtype = like.dtype if like.is_floating_point() else torch.get_default_dtype()
    return torch.arange(n + 1, dtype=dtype, device=like.device)
