"""Plans of clique trees, before any pass."""

import torch

from pyro_structured.structures import CliqueTree


def test_magnitudes_are_above_all_sums():
    """Magnitudes are above all sums, also of tables whose entries are all 1: then only the number of terms counts."""
    tree = CliqueTree([[0, 1], [1, 2], [3]], [2, 3, 4, 5])
    for scale in (0.0, 0.01, 3.0):
        tables = scale * torch.randn(100, tree.table_size, generator=torch.Generator().manual_seed(0)).double()
        first, second, last = tables.split([6, 12, 5], -1)
        joint = first.view(-1, 2, 3, 1, 1) + second.view(-1, 1, 3, 4, 1) + last.view(-1, 1, 1, 1, 5)
        sums = joint.flatten(1).logsumexp(-1)
        bounds = torch.stack([tree.plan.magnitude(row.abs()) for row in tables])
        assert (bounds >= sums.abs() - 1e-9).all()
