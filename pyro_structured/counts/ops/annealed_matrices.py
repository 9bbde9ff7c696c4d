"""Annealed importance sampling of matrices with potentials on the counts of rows and columns."""

__all__ = ["AnnealedMatrices", "anneal_matrices"]

from typing import NamedTuple

import torch
from torch import Tensor

from pyro_structured.counts.ops.count_forest import CountForest
from pyro_structured.counts.ops.count_sampling import sample_counts
from pyro_structured.counts.ops.matching_moves import MatrixLaw, sweep_matrices

# Log-weight of a column whose count is so far from a possible one, for each unit, before the last step.
PENALTY = -6.0


class AnnealedMatrices(NamedTuple):
    """Weighted draws.

    :ivar Tensor values: Matrices, integers of shape ``(chains, rows, I, J)``.
    :ivar Tensor log_weights: Logarithms of weights whose mean is Z over that of independent rows, shape ``(chains,
        rows)``; -inf where a column's count is impossible.
    """

    values: Tensor
    log_weights: Tensor


@torch.no_grad()
def anneal_matrices(law: MatrixLaw, split: Tensor, num_temperatures: int, num_chains: int) -> AnnealedMatrices:
    r"""Runs chains from independent rows to the law, and weighs them.

    Between :math:`\beta = 0`, rows with their own laws and log-odds s, drawn exactly, and :math:`\beta = 1`, log-odds
    are :math:`(1 - \beta) s + \beta x`, and columns have :math:`\beta g_j`, with finite penalties in place of
    impossible counts; these become impossible in a last step.

    :param MatrixLaw law: Laws of R matrices.
    :param Tensor split: Log-odds s of the rows at the start, finite where both values are possible, shape ``(R, I,
        J)``.
    :param int num_temperatures: Number of steps.
    :param int num_chains: Number of chains of each matrix.
    """
    number, height, width = split.shape
    copied = MatrixLaw(*(tensor.repeat(num_chains, *(1,) * (tensor.dim() - 1)) for tensor in law))
    free = (law.weights > -torch.inf).all(-1)
    odds = law.weights.diff(dim=-1).squeeze(-1)
    start = torch.where(free, split, odds)
    drawn = sample_counts(start.flatten(0, 1), law.rows.flatten(0, 1), CountForest(width), num_chains)
    value = drawn.reshape(num_chains * number, height, width).long()
    relaxed = _relaxed(law.columns)
    soft = relaxed.repeat(num_chains, 1, 1)
    # Differences of the log-odds at the ends of the way; none where a value is decided.
    change = torch.where(free, odds - split, 0.0).repeat(num_chains, 1, 1)
    log_weights = torch.zeros(len(value), dtype=torch.double, device=value.device)
    for step in range(1, num_temperatures + 1):
        columns = soft.gather(-1, value.sum(-2).unsqueeze(-1)).sum((-2, -1))
        log_weights += ((change * value).sum((-2, -1)) + columns) / num_temperatures
        if step < num_temperatures:
            beta = step / num_temperatures
            on = copied.weights[..., 1] - (1.0 - beta) * change
            weights = torch.stack([copied.weights[..., 0], on], -1)
            value = sweep_matrices(MatrixLaw(weights, copied.rows, beta * soft), value, 1)
    exact = (copied.columns - soft).gather(-1, value.sum(-2).unsqueeze(-1)).sum((-2, -1))
    shape = (num_chains, number)
    return AnnealedMatrices(value.unflatten(0, shape), (log_weights + exact).unflatten(0, shape))


def _relaxed(tables: Tensor) -> Tensor:
    """Tables with a penalty for the distance from the nearest possible count in place of -inf."""
    counts = torch.arange(tables.shape[-1], dtype=tables.dtype, device=tables.device)
    distance = (counts.unsqueeze(-1) - counts).abs()
    near = tables.unsqueeze(-2) + PENALTY * distance
    return torch.where(tables == -torch.inf, near.amax(-1), tables)
