"""Passes through trees of latent variables, each above one observed variable, by matrix products for each level."""

__all__ = [
    "LatentTreeBeliefs",
    "LatentTreeLevels",
    "evidence_of_states",
    "evidence_of_weights",
    "expected_counts",
    "infer_latent_tree",
    "is_rough",
    "latent_marginals",
    "log_weights",
    "maximize_latent_tree",
    "observed_marginals",
    "sample_latent_tree",
    "tree_levels",
]

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_structured.foundation.ops.draws import draw_log
from pyro_structured.foundation.ops.log_space import logsumexp, safe_log
from pyro_structured.foundation.ops.requirements import any_true

# Largest deviation from 1 of the sum of probabilities that is rounding, in units of the last place.
ROUNDING = 2.0**17
# Largest number of terms that are computed at once where sums are computed term by term.
MOST_TERMS = 2**24


class LatentTreeLevels(NamedTuple):
    """Order of the variables in which parents come first, by their distances from the roots.

    :ivar Tensor order: Variables, level by level, shape ``(n,)``.
    :ivar Tensor places: Place of every variable in this order, shape ``(n,)``.
    :ivar sizes: Numbers of variables in the levels; the first level has the roots.
    :ivar above: For every level but the first, the places of the parents inside the level before.
    :ivar bool is_sorted: Whether the variables are numbered in this order.
    """

    order: Tensor
    places: Tensor
    sizes: tuple[int, ...]
    above: tuple[Tensor, ...]
    is_sorted: bool

    def to(self, device: torch.device) -> "LatentTreeLevels":
        """The order with its tensors on a device."""
        order, places, *above = (tensor.to(device) for tensor in (self.order, self.places, *self.above))
        return LatentTreeLevels(order, places, self.sizes, tuple(above), self.is_sorted)

    def split(self, tables: Tensor) -> tuple[Tensor, ...]:
        """Tables of the levels, from tables of all variables, shape ``(B, n, ..., ...)``."""
        ordered = tables if self.is_sorted else tables.index_select(1, self.order)
        levels: tuple[Tensor, ...] = ordered.split(self.sizes, 1)
        return levels

    def join(self, levels: Sequence[Tensor]) -> Tensor:
        """Tables of all variables, from those of the levels: inverse of :meth:`split`."""
        ordered = torch.cat(list(levels), 1)
        return ordered if self.is_sorted else ordered.index_select(1, self.places)


def tree_levels(parents: Sequence[int]) -> LatentTreeLevels:
    """Levels of a forest.

    :param parents: Parents of the variables; roots are their own parents, and nobody else is an ancestor of itself.

    Example::

        >>> tree_levels([1, 1, 1, 0])[2:4]
        ((1, 2, 1), (tensor([0, 0]), tensor([0])))
    """
    children: list[list[int]] = [[] for _ in parents]
    for variable, parent in enumerate(parents):
        if parent != variable:
            children[parent].append(variable)
    levels = [[variable for variable, parent in enumerate(parents) if parent == variable]]
    while below := [child for variable in levels[-1] for child in children[variable]]:
        levels.append(below)
    above = []
    for before, level in zip(levels, levels[1:], strict=False):
        place = {variable: index for index, variable in enumerate(before)}
        above.append(torch.tensor([place[parents[variable]] for variable in level]))
    listed = [variable for level in levels for variable in level]
    order, sizes = torch.tensor(listed), tuple(map(len, levels))
    return LatentTreeLevels(order, order.argsort(), sizes, tuple(above), listed == sorted(listed))


class LatentTreeBeliefs(NamedTuple):
    """Log-weights of evidence, level by level.

    :ivar Tensor log_z: Log-weight of all evidence, shape ``(B, S)``.
    :ivar beliefs: Evidence about a variable and all below it given its latent state, shapes ``(B, level, S, K)``.
    :ivar messages: The same given the parent's latent state; for roots, shape ``(B, level, S, 1)``.
    """

    log_z: Tensor
    beliefs: tuple[Tensor, ...]
    messages: tuple[Tensor, ...]


def evidence_of_states(emissions: Tensor, states: Tensor) -> Tensor:
    """Log-probabilities of observed states given the latent ones; 0 where a state is missing.

    :param Tensor emissions: Log-probabilities of the observed states (last axis) given the latent ones, shape ``(B, n,
        K, R)``.
    :param Tensor states: Integers below R, or R where one is missing, shape ``(B, n, S)`` or ``(1, n, S)``.
    :return: Shape ``(B, n, S, K)``.
    """
    batch, number, latent, observed = emissions.shape
    table = torch.nn.functional.pad(emissions.mT, (0, 0, 0, 1)).flatten(0, 2)
    places = torch.arange(batch * number, device=states.device).reshape(batch, number, 1) * (observed + 1) + states
    rows: Tensor = table.index_select(0, places.flatten())
    return rows.reshape(*places.shape, latent)


def evidence_of_weights(emissions: Tensor, weights: Tensor) -> Tensor:
    """Log-weights of evidence given the latent states; of the same shape as those of :func:`evidence_of_states`.

    :param Tensor weights: Log-weights of the observed states, shape ``(B, n, S, R)`` or ``(1, n, S, R)``.
    """
    products = _scaled_products(weights, emissions.mT.exp())
    return _summed_products(weights, emissions.mT) if any_true(is_rough(products.least)) else products.logs


def infer_latent_tree(transitions: Tensor, evidence: Tensor, levels: LatentTreeLevels) -> LatentTreeBeliefs:
    """Sums all variables out, from the last level to the roots.

    Products of matrices are scaled row by row. Where a sum is so small that terms can have been lost, all is computed
    again, in logarithms.

    :param Tensor transitions: Log-probabilities of the latent states (last axis) given the parent's, shape ``(B, n, K,
        K)``; for roots, only the first row is used. -inf for states that a variable does not have; in the rows of
        states that a parent does not have, any probabilities that are not all zero.
    :param Tensor evidence: Log-weights of the evidence about every variable given its latent state, shape ``(B, n, S,
        K)``.
    :param LatentTreeLevels levels: The tree.
    """
    upward = _infer(transitions, evidence, levels, False)
    if any_true(is_rough(upward.least)):
        upward = _infer(transitions, evidence, levels, True)
    return upward.beliefs


def log_weights(
    transitions: Tensor, evidence: Tensor, levels: LatentTreeLevels, exact: bool = False
) -> tuple[Tensor, Tensor]:
    """Log-weights of all evidence alone, without a look at values; arguments as for :func:`infer_latent_tree`.

    :param bool exact: As for :func:`expected_counts`.
    :return: Log-weights, shape ``(B, S)``, and numbers that :func:`is_rough` judges, shape ``(B, n, S)``.
    """
    upward = _infer(transitions, evidence, levels, exact)
    return upward.beliefs.log_z, upward.least


class _Products(NamedTuple):
    """Products of rows and matrices.

    :ivar Tensor logs: Logarithms of the products, shape ``(..., S, J)``.
    :ivar Tensor rows: The rows, relative to their largest entries, shape ``(..., S, I)``.
    :ivar Tensor sums: The products, relative to the same, shape ``(..., S, J)``.
    :ivar Tensor least: Smallest of the sums, shape ``(..., S)``.
    """

    logs: Tensor
    rows: Tensor
    sums: Tensor
    least: Tensor


class _Upward(NamedTuple):
    """Results of the pass to the roots.

    :ivar LatentTreeBeliefs beliefs: The log-weights.
    :ivar products: Those of each level, the last one first.
    :ivar Tensor least: Smallest sums, which :func:`is_rough` takes, shape ``(B, n, S)``.
    """

    beliefs: LatentTreeBeliefs
    products: list[_Products]
    least: Tensor


def _infer(transitions: Tensor, evidence: Tensor, levels: LatentTreeLevels, exact: bool) -> _Upward:
    tables, beliefs = levels.split(transitions if exact else transitions.exp()), list(levels.split(evidence))
    products = list[_Products]()
    for depth in reversed(range(len(tables))):
        table = (tables[depth] if depth else tables[depth][..., :1, :]).mT
        products.append(_exact_products(beliefs[depth], table) if exact else _scaled_products(beliefs[depth], table))
        if depth:
            beliefs[depth - 1] = beliefs[depth - 1].index_add(1, levels.above[depth - 1], products[-1].logs)
    messages = tuple(product.logs for product in reversed(products))
    found = LatentTreeBeliefs(messages[0].sum(1).squeeze(-1), tuple(beliefs), messages)
    return _Upward(found, products, torch.cat([product.least for product in products], 1))


def _scaled_products(rows: Tensor, matrices: Tensor) -> _Products:
    """Products of matrices, scaled row by row.

    :param Tensor rows: Logarithms, shape ``(..., S, I)``.
    :param Tensor matrices: Numbers from 0 to 1, shape ``(..., I, J)``.
    """
    peak = _peak(rows)
    shares = (rows - peak).exp()
    sums = shares @ matrices
    return _Products(safe_log(sums) + peak, shares, sums, sums.detach().amin(-1))


def _exact_products(rows: Tensor, matrices: Tensor) -> _Products:
    """The same by sums in logarithms, from the logarithms of the matrices."""
    logs, peak = _summed_products(rows, matrices), _peak(rows)
    sums = (logs - peak).exp()
    return _Products(logs, (rows - peak).exp(), sums, torch.ones_like(sums[..., 0]))


def _summed_products(rows: Tensor, matrices: Tensor) -> Tensor:
    """Logarithms of products of matrices, by sums term by term, from the logarithms of both."""
    at_once = max(1, MOST_TERMS // max(1, matrices.numel()))
    parts: tuple[Tensor, ...] = rows.split(at_once, -2)
    return torch.cat([logsumexp(part.unsqueeze(-1) + matrices.unsqueeze(-3), -2) for part in parts], -2)


def _peak(rows: Tensor) -> Tensor:
    """Largest entries of rows of logarithms, a finite number where all are -inf, shape ``(..., S, 1)``."""
    return rows.detach().amax(-1, keepdim=True).clamp(min=torch.finfo(rows.dtype).min)


def is_rough(least: Tensor) -> Tensor:
    """Whether sums of :func:`log_weights` are so small that a term may have been lost that counts."""
    kind = torch.finfo(least.dtype)
    return least < kind.tiny / kind.eps


def latent_marginals(transitions: Tensor, levels: LatentTreeLevels, beliefs: LatentTreeBeliefs) -> Tensor:
    """Log-probabilities of the latent states given the evidence, shape ``(B, n, S, K)``.

    :param Tensor transitions: As for :func:`infer_latent_tree`.
    :param LatentTreeBeliefs beliefs: Results of :func:`infer_latent_tree`; no ``log_z`` is -inf.
    """
    return _whole(partial(_latent_marginals, transitions, levels, beliefs))


def _latent_marginals(
    transitions: Tensor, levels: LatentTreeLevels, beliefs: LatentTreeBeliefs, exact: bool
) -> tuple[Tensor, list[Tensor]]:
    tables, least = levels.split(transitions), list[Tensor]()
    marginals = [tables[0][..., :1, :] + beliefs.beliefs[0] - beliefs.messages[0]]
    for depth, table in enumerate(tables[1:], 1):
        above = _less(marginals[-1].index_select(1, levels.above[depth - 1]), beliefs.messages[depth])
        products, smallest = _log_products(above, table, exact)
        marginals.append(products + beliefs.beliefs[depth])
        least.append(smallest)
    return levels.join(marginals), least


def observed_marginals(emissions: Tensor, weights: Tensor, evidence: Tensor, latent: Tensor) -> Tensor:
    """Log-probabilities of the observed states given the evidence, shape ``(B, n, S, R)``.

    :param Tensor emissions: As for :func:`evidence_of_states`.
    :param Tensor weights: As for :func:`evidence_of_weights`.
    :param Tensor evidence: Result of :func:`evidence_of_weights`.
    :param Tensor latent: Result of :func:`latent_marginals`.
    """
    above = _less(latent, evidence)

    def log_probs(exact: bool) -> tuple[Tensor, list[Tensor]]:
        products, smallest = _log_products(above, emissions, exact)
        return products + weights, [smallest]

    return _whole(log_probs)


def _log_products(rows: Tensor, matrices: Tensor, exact: bool) -> tuple[Tensor, Tensor]:
    """Logarithms of products of matrices, from the logarithms of both, and the smallest sums that are not zero;
    ``exact`` sums term by term.
    """
    if exact:
        logs = _summed_products(rows, matrices)
        return logs, torch.ones_like(logs[..., 0])
    products = _scaled_products(rows, matrices.exp())
    sums = products.sums.detach()
    return products.logs, sums.masked_fill(sums == 0, 1.0).amin(-1)


def _whole(log_probs: Callable[[bool], tuple[Tensor, list[Tensor]]]) -> Tensor:
    """Log-probabilities that add up to 1 along the last axis, computed term by term where products of matrices lose
    terms that count, or are so small that their derivatives would overflow.

    :param log_probs: Function of whether to compute term by term, of log-probabilities and numbers that
        :func:`is_rough` judges.
    """
    fast, least = log_probs(False)
    lost = (fast.exp().sum(-1) - 1).abs()
    is_lost = any_true(~(lost < ROUNDING * torch.finfo(lost.dtype).eps))
    return log_probs(True)[0] if is_lost or any(any_true(is_rough(part)) for part in least) else fast


def _less(log_probs: Tensor, parts: Tensor) -> Tensor:
    """Log-probabilities without a part of their weights; -inf where these are, too."""
    return log_probs - parts.clamp(min=torch.finfo(parts.dtype).min)


@torch.no_grad()
def expected_counts(
    transitions: Tensor, evidence: Tensor, levels: LatentTreeLevels, rows: Tensor, exact: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Expected numbers of latent states, for expectation maximisation: in less time than :func:`latent_marginals`, but
    states that are by far less likely than others, all evidence below a variable considered, count as impossible.

    The function asks for no value, so that a device need not wait: whether the results are good is for the caller to
    look at, and to compute them again with ``exact`` where they are not.

    :param Tensor transitions: As for :func:`infer_latent_tree`, shape ``(1, n, K, K)``.
    :param Tensor evidence: As for :func:`infer_latent_tree`, shape ``(1, n, S, K)``; every row has positive
        probability.
    :param Tensor rows: Weights of the rows, shape ``(S,)``.
    :param bool exact: Whether to sum the messages term by term instead of multiplying matrices.
    :return: ``(pairs, single, least)``: expected numbers of pairs of a parent's and a variable's states, shape ``(n, K,
        K)``, for roots, of their states, in the first row; expected numbers of states in each row, shape ``(n, S, K)``;
        and numbers that :func:`is_rough` judges, shape ``(1, n, S)``.
    """
    upward, probs = _infer(transitions, evidence, levels, exact), transitions.exp()
    pairs, single = [], list[Tensor]()
    for depth, (table, product) in enumerate(zip(levels.split(probs), reversed(upward.products), strict=True)):
        # A root has one parent's state, which all rows have.
        known = single[-1].index_select(1, levels.above[depth - 1]) if depth else rows.unsqueeze(-1)
        above = known / product.sums.clamp_(min=torch.finfo(known.dtype).tiny)
        single.append((above @ (table if depth else table[..., :1, :])).mul_(product.rows))
        counts = above.mT @ product.rows
        pairs.append(counts if depth else torch.nn.functional.pad(counts, (0, 0, 0, transitions.shape[-2] - 1)))
    return (levels.join(pairs) * probs).squeeze(0), levels.join(single).squeeze(0), upward.least


@torch.no_grad()
def sample_latent_tree(
    transitions: Tensor,
    emissions: Tensor,
    weights: Tensor,
    levels: LatentTreeLevels,
    beliefs: LatentTreeBeliefs,
    num_samples: int,
) -> Tensor:
    """Draws the observed variables given the evidence, integers of shape ``(num_samples, B, S, n)``.

    Arguments are those of :func:`infer_latent_tree` and :func:`observed_marginals`.
    """
    drawn: list[Tensor] = []
    for depth, (table, belief) in enumerate(zip(levels.split(transitions), beliefs.beliefs, strict=True)):
        above = belief.new_zeros((num_samples, *belief.shape[:-1]), dtype=torch.long)
        if depth:
            above = drawn[-1].index_select(2, levels.above[depth - 1])
        drawn.append(draw_log(_rows_of(table, above) + belief))
    latent = torch.cat(drawn, 2).index_select(2, levels.places)
    return draw_log(_rows_of(emissions, latent) + weights).mT


def _rows_of(tables: Tensor, states: Tensor) -> Tensor:
    """Rows of tables of shape ``(B, m, K, J)`` for states of shape ``(samples, B, m, S)``, with a last axis more."""
    index = states.unsqueeze(-1).expand(states.shape + tables.shape[-1:])
    return tables.expand(states.shape[:1] + states.shape[1:2] + tables.shape[1:]).gather(-2, index)


@torch.no_grad()
def maximize_latent_tree(
    transitions: Tensor, emissions: Tensor, weights: Tensor, levels: LatentTreeLevels
) -> tuple[Tensor, Tensor]:
    """A most probable joint value of latent and observed states; arguments as for :func:`sample_latent_tree`.

    :return: ``(latent, observed)`` states, integers of shape ``(B, S, n)``.
    """
    tables = levels.split(transitions)
    best, choice = (emissions.unsqueeze(-3) + weights.unsqueeze(-2)).max(-1)
    beliefs, arguments = list(levels.split(best)), []
    for depth in reversed(range(len(tables))):
        table = tables[depth] if depth else tables[depth][..., :1, :]
        sent, argument = (beliefs[depth].unsqueeze(-2) + table.unsqueeze(-3)).max(-1)
        arguments.append(argument)
        if depth:
            beliefs[depth - 1] = beliefs[depth - 1].index_add(1, levels.above[depth - 1], sent)
    latent: list[Tensor] = []
    for depth, argument in enumerate(reversed(arguments)):
        above = latent[-1].index_select(1, levels.above[depth - 1]) if depth else torch.zeros_like(argument[..., 0])
        latent.append(argument.gather(-1, above.unsqueeze(-1)).squeeze(-1))
    states = levels.join(latent)
    return states.mT, choice.gather(-1, states.unsqueeze(-1)).squeeze(-1).mT
