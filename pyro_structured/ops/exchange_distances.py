"""What it costs to make room in a column of a matching."""

__all__ = ["exchange_distances"]

import torch
from torch import Tensor


def exchange_distances(costs: Tensor, columns: Tensor, row: int) -> Tensor:
    r"""The least increase of the other rows' cost if a row takes another column and gives up its own.

    If a row moves to column k, the row that was there moves on, and so does the next one, until one takes the column
    that became free. These are shortest paths of lengths :math:`d_k` in the residual graph without the row; so the
    matching stays optimal exactly as long as :math:`w_{jc} - w_{jk} \le d_k` for all k, where c is the row's own
    column. Columns that no row has are as if rows without costs had them: whoever moves there need not move on, but
    then others may move to c, which can only make it cheaper.

    :param Tensor costs: For which the matching is optimal, shape ``(N, rows, columns)``; +inf forbids a pair.
    :param Tensor columns: The columns of all rows, integers of shape ``(N, rows)``.
    :param int row: The row j that gives up its column.
    :return: :math:`d`, shape ``(N, columns)``; +inf where no exchange is possible. By Bellman and Ford, in O(rows
        columns) for every arc of the longest shortest path; the rows of the batch at once.
    """
    own = costs.gather(-1, columns.unsqueeze(-1)).squeeze(-1)
    movable = torch.arange(costs.shape[1], device=costs.device) != row
    taken, kept = columns[:, movable], columns[:, row, None]
    steps = costs[:, movable] - own[:, movable].unsqueeze(-1)
    unused = torch.ones_like(costs[:, 0], dtype=torch.bool).scatter(-1, columns, False)
    distances = torch.full_like(costs[:, 0], torch.inf).scatter(-1, kept, 0.0)
    # Rounding must not make a cycle of exchanges look worthwhile for ever.
    for _ in range(costs.shape[2]):
        improved = distances.scatter(-1, taken, (steps + distances.unsqueeze(-2)).amin(-1))
        improved = torch.where(unused, improved.amin(-1, keepdim=True), improved)
        if torch.equal(improved, distances):
            break
        distances = improved
    return distances
