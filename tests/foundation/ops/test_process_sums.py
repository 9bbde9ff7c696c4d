"""Sums over all processes inside of a context, and over the rows at hand outside."""

import numpy as np

from pyro_structured.foundation.ops.process_sums import each, gathered, is_shared, rank_and_number, summed
from tests.foundation.ops.teams import outcomes_of_threads


def values(rank):
    numbers = np.arange(3) * 10**rank
    return is_shared(), rank_and_number(), summed(numbers).tolist(), each(rank - 0.5).tolist(), gathered("abc"[rank])


def test_sums():
    alone = False, (0, 1), [0, 1, 2], [-0.5], ["a"]
    assert values(0) == alone
    together = [0, 111, 222], [-0.5, 0.5, 1.5], ["a", "b", "c"]
    assert outcomes_of_threads(values, 3) == [(True, (rank, 3), *together) for rank in range(3)]
    assert values(0) == alone
