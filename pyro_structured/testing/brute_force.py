r"""Reference answers for potentials on the counts of subsets, by enumerating all binary vectors.

Nothing here is fast or shares code with the distributions: every function sums over all :math:`2^D` vectors of the
model

.. math::
    p(y) \propto \exp\Big(\sum_{d=1}^{D} x_d y_d + \sum_{s \in \mathcal{S}} f_s\big(\sum_{d \in s} y_d\big)\Big).

The arguments are those of :class:`~pyro_structured.distributions.RecursiveCardinality`: ``logits`` hold :math:`x`,
shape ``(..., D)``, where an infinite one fixes its variable without a weight of its own; ``count_logits`` hold the
tables :math:`f_s` one after the other, shape ``(..., sum of |s| + 1)``, -inf included; ``subsets`` are the integers in
every subset (any ones, nested or not), and ``None`` stands for one subset of all variables. Results are differentiable.
They are computed in float64, on the arguments' device.
"""

__all__ = [
    "binary_vectors",
    "condition",
    "count_marginals",
    "entropy",
    "log_partition",
    "log_probs",
    "log_weights",
    "marginal_log_prob",
    "marginal_logits",
    "marginals",
    "mode",
]

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from pyro_structured.foundation.ops.vmap_rows import broadcast_shapes
from pyro_structured.foundation.structures.argument_checks import (
    check_dense,
    check_last_axis,
    check_size,
    checked_batch,
)

Subsets = Iterable[Iterable[int]]


def binary_vectors(num_variables: int) -> Tensor:
    """Lists all binary vectors in lexicographic order.

    :param int num_variables: Number of variables D.
    :return: Zeros and ones, shape ``(2 ** D, D)``, float64.

    Example::

        >>> binary_vectors(2).tolist()
        [[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]
    """
    check_size("num_variables", num_variables, 0)
    places = 2 ** torch.arange(num_variables - 1, -1, -1)
    return (torch.arange(2**num_variables).unsqueeze(-1) // places % 2).double()


def _counts(values: Tensor, subsets: Subsets | None) -> list[Tensor]:
    """The count of every subset in every vector, each of shape ``(2 ** D,)``."""
    families: Sequence[Iterable[int]] = [range(values.shape[-1])] if subsets is None else list(subsets)
    return [values[:, [int(d) for d in subset]].sum(-1).long() for subset in families]


def _sizes(num_variables: int, subsets: Subsets | None) -> list[int]:
    return [num_variables] if subsets is None else [len(list(subset)) for subset in subsets]


def log_weights(logits: Tensor, count_logits: Tensor, subsets: Subsets | None = None) -> Tensor:
    """Computes the exponent of the mass function for every vector; arguments as the module says.

    :return: Shape ``batch + (2 ** D,)``, in the order of :func:`binary_vectors`; -inf for impossible vectors.

    Example::

        >>> log_weights(torch.tensor([1.0, 2.0]), torch.tensor([0.0, 10.0, 20.0])).tolist()
        [0.0, 12.0, 11.0, 23.0]
    """
    subsets = None if subsets is None else [list(subset) for subset in subsets]
    for name, given in (("logits", logits), ("count_logits", count_logits)):
        if not isinstance(given, Tensor) or not given.dim():
            raise ValueError(f"{name}: expected a tensor with an axis, got {given!r}")
        check_dense(name, given)
    check_last_axis("count_logits", count_logits, sum(size + 1 for size in _sizes(logits.shape[-1], subsets)))
    checked_batch(logits=logits.shape[:-1], count_logits=count_logits.shape[:-1])
    logits, count_logits = logits.double(), count_logits.double()
    values = binary_vectors(logits.shape[-1]).to(logits.device)
    clamped = logits.isinf()
    contradicted = clamped.unsqueeze(-2) & (values.bool() != (logits > 0).unsqueeze(-2))
    result = (values * logits.masked_fill(clamped, 0.0).unsqueeze(-2)).sum(-1)
    tables = count_logits.split([size + 1 for size in _sizes(values.shape[-1], subsets)], -1)
    for table, counts in zip(tables, _counts(values, subsets), strict=True):
        result = result + table[..., counts]
    # Without any table, its batch axes would be missed.
    batch = broadcast_shapes(logits.shape[:-1], count_logits.shape[:-1])
    return result.masked_fill(contradicted.any(-1), -math.inf).expand(batch + values.shape[:1])


def log_partition(logits: Tensor, count_logits: Tensor, subsets: Subsets | None = None) -> Tensor:
    """Computes the logarithm of the partition function Z; arguments as the module says.

    :return: Shape ``batch``; -inf where no vector is possible.

    Example::

        >>> log_partition(torch.zeros(3), torch.zeros(4)).exp()
        tensor(8.0000, dtype=torch.float64)
    """
    return torch.logsumexp(log_weights(logits, count_logits, subsets), -1)


def log_probs(logits: Tensor, count_logits: Tensor, subsets: Subsets | None = None) -> Tensor:
    """Computes the table of all log-probabilities; arguments as the module says.

    :return: Shape ``batch + (2 ** D,)``, in the order of :func:`binary_vectors`.

    Example::

        >>> log_probs(torch.zeros(2), torch.tensor([0.0, 0.0, -math.inf])).exp().tolist()  # at most one
        [0.33..., 0.33..., 0.33..., 0.0]
    """
    return torch.log_softmax(log_weights(logits, count_logits, subsets), -1)


def marginals(logits: Tensor, count_logits: Tensor, subsets: Subsets | None = None) -> Tensor:
    """Computes the probability that each variable is 1; arguments as the module says.

    :return: Shape ``batch + (D,)``.

    Example::

        >>> marginals(torch.zeros(3), torch.tensor([0.0, 0.0, -math.inf, -math.inf])).tolist()  # at most one
        [0.25, 0.25, 0.25]
    """
    table = log_probs(logits, count_logits, subsets)
    return table.exp() @ binary_vectors(logits.shape[-1]).to(table)


def marginal_logits(logits: Tensor, count_logits: Tensor, subsets: Subsets | None = None) -> Tensor:
    """Computes the posterior log-odds of every variable; arguments as the module says.

    :return: Shape ``batch + (D,)``; accurate where a probability is near 0 or 1, infinite where it is 0 or 1.

    Example::

        >>> marginal_logits(torch.tensor([50.0, -50.0]), torch.zeros(3)).tolist()
        [50.0, -50.0]
    """
    weights = log_weights(logits, count_logits, subsets).unsqueeze(-2)
    on = binary_vectors(logits.shape[-1]).T.bool().to(weights.device)
    log_on = torch.logsumexp(weights.masked_fill(~on, -math.inf), -1)
    log_off = torch.logsumexp(weights.masked_fill(on, -math.inf), -1)
    return log_on - log_off


def count_marginals(logits: Tensor, count_logits: Tensor, subsets: Subsets | None = None) -> Tensor:
    """Computes the probabilities of all counts of all subsets; arguments as the module says.

    :return: Shape ``batch + (sum of |s| + 1,)``, in the order of ``count_logits``.

    Example::

        >>> count_marginals(torch.zeros(2), torch.zeros(5), [[0], [0, 1]]).tolist()
        [0.5, 0.5, 0.25, 0.5, 0.25]
    """
    subsets = None if subsets is None else [list(subset) for subset in subsets]
    probs = log_probs(logits, count_logits, subsets).exp()
    values = binary_vectors(logits.shape[-1]).to(probs.device)
    parts = [probs[..., :0]]
    for counts, size in zip(_counts(values, subsets), _sizes(values.shape[-1], subsets), strict=True):
        parts.append(probs.new_zeros(probs.shape[:-1] + (size + 1,)).index_add(-1, counts, probs))
    return torch.cat(parts, -1)


def mode(logits: Tensor, count_logits: Tensor, subsets: Subsets | None = None) -> Tensor:
    """Finds a most probable vector, the first one in lexicographic order; arguments as the module says.

    :return: Zeros and ones, shape ``batch + (D,)``.

    Example::

        >>> mode(torch.tensor([1.0, 2.0]), torch.tensor([0.0, 0.0, -math.inf])).tolist()
        [0.0, 1.0]
    """
    best = log_weights(logits, count_logits, subsets).argmax(-1)
    return binary_vectors(logits.shape[-1]).to(best.device)[best]


def entropy(logits: Tensor, count_logits: Tensor, subsets: Subsets | None = None) -> Tensor:
    """Computes the entropy in nats; arguments as the module says.

    :return: Shape ``batch``.

    Example::

        >>> entropy(torch.zeros(2), torch.zeros(3)).exp()
        tensor(4., dtype=torch.float64)
    """
    table = log_probs(logits, count_logits, subsets)
    possible = table > -math.inf
    return -(table.exp() * table.masked_fill(~possible, 0.0)).sum(-1)


def _agrees(value: Tensor, observed: Tensor, num_variables: int) -> Tensor:
    """Whether every vector agrees with the observed entries, shape ``batch + (2 ** D,)``."""
    vectors = binary_vectors(num_variables).to(value.device)
    shape = broadcast_shapes(value.shape, observed.shape, (num_variables,))
    value, observed = value.expand(shape).unsqueeze(-2), observed.expand(shape).unsqueeze(-2)
    return ((vectors == value) | ~observed).all(-1)


def marginal_log_prob(
    value: Tensor, observed: Tensor, logits: Tensor, count_logits: Tensor, subsets: Subsets | None = None
) -> Tensor:
    """Computes the log-probability of some entries, all others summed out; further arguments as the module says.

    :param Tensor value: Zeros and ones, shape ``(..., D)``; entries that are not observed are ignored.
    :param Tensor observed: Booleans of a shape that broadcasts with ``value``.
    :return: The batch shape of all arguments; -inf where the entries are impossible.

    Example::

        >>> marginal_log_prob(torch.ones(2), torch.tensor([True, False]), torch.zeros(2), torch.zeros(3)).exp()
        tensor(0.5000, dtype=torch.float64)
    """
    table = log_probs(logits, count_logits, subsets)
    agrees = _agrees(value, observed, logits.shape[-1])
    return torch.logsumexp(table.masked_fill(~agrees, -math.inf), -1)


def condition(
    value: Tensor, observed: Tensor, logits: Tensor, count_logits: Tensor, subsets: Subsets | None = None
) -> Tensor:
    """Computes the table of all log-probabilities given some entries; arguments as for :func:`marginal_log_prob`.

    :return: Shape ``batch + (2 ** D,)``, in the order of :func:`binary_vectors`; NaN where the entries are impossible.

    Example::

        >>> condition(torch.ones(2), torch.tensor([True, False]), torch.zeros(2), torch.zeros(3)).exp().tolist()
        [0.0, 0.0, 0.5, 0.5]
    """
    table = log_probs(logits, count_logits, subsets)
    agrees = _agrees(value, observed, logits.shape[-1])
    return torch.log_softmax(table.masked_fill(~agrees, -math.inf), -1)
