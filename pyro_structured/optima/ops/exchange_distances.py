"""Exchange distances: the costs of making room in a column of an assignment."""

__all__ = ["exchange_distances"]

import torch
from torch import Tensor


def exchange_distances(costs: Tensor, assigned: Tensor, has_room: Tensor, row: int, given_up: Tensor) -> Tensor:
    r"""Exchange distances d: the least increases of the other rows' cost if a row gives up one column for another.

    If a row moves from column c to column k, and k is full, then a row that was there moves on, and so does another
    one, until one moves to c or to a column with room. These are shortest paths of lengths :math:`d_{ck}` in the
    residual graph without the row; so the assignment stays optimal exactly as long as :math:`w_{jc} - w_{jk} \le
    d_{ck}` for all columns c of the row and all others k. Whoever moves to a column with room need not make room, but
    then others may leave any column, which can only make it cheaper.

    :param Tensor costs: Costs for which the assignment is optimal, shape ``(N, rows, columns)``; +inf forbids a pair.
    :param Tensor assigned: The columns of all rows, booleans of the same shape.
    :param Tensor has_room: Whether a column could have one row more, booleans of shape ``(N, columns)``.
    :param int row: The row j that gives up a column.
    :param Tensor given_up: The columns c, integers of shape ``(N, given up)``.
    :return: :math:`d`, shape ``(N, given up, columns)``; +inf where no exchange is possible. By Bellman and Ford, in
        O(given up · rows · columns) for every arc of the longest shortest path; the rows of the batch at once.
    """
    others = torch.arange(costs.shape[1], device=costs.device) != row
    costs, assigned, (columns, count) = costs[:, others], assigned[:, others], (costs.shape[2], given_up.shape[1])
    joining = costs.masked_fill(assigned, torch.inf)
    batch, leaver, column = assigned.nonzero(as_tuple=True)
    saved, who = costs[batch, leaver, column], batch * costs.shape[1] + leaver
    place = (batch * columns + column).expand(count, -1)
    distances = torch.full((count, len(costs), columns), torch.inf, dtype=costs.dtype, device=costs.device)
    distances.scatter_(-1, given_up.T.unsqueeze(-1), 0.0)
    # Rounding must not make a cycle of exchanges look worthwhile for ever.
    for _ in range(columns):
        moved = (joining + distances.unsqueeze(-2)).amin(-1).flatten(1).index_select(1, who) - saved
        improved = distances.flatten(1).scatter_reduce(1, place, moved, "amin").view_as(distances)
        improved = torch.where(has_room, improved.amin(-1, keepdim=True), improved)
        if torch.equal(improved, distances):
            break
        distances = improved
    return distances.transpose(0, 1)
