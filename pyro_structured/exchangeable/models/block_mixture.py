"""Mixtures of partitions into exchangeable blocks, as they are learned."""

__all__ = ["BlockMixture"]

from dataclasses import dataclass

import numpy as np
import torch

from pyro_structured.exchangeable.distributions.exchangeable_mixture import ExchangeableMixture
from pyro_structured.exchangeable.ops.binary_rows import BinaryRows
from pyro_structured.exchangeable.ops.expectation_maximization import BlockParameters, log_joint
from pyro_structured.exchangeable.ops.packed_counts import PackedCounts
from pyro_structured.exchangeable.structures.partition import Partition


@dataclass(frozen=True)
class BlockMixture:
    """Blocks and probabilities of a mixture.

    :ivar PackedCounts counts: The blocks of every class.
    :ivar BlockParameters parameters: The probabilities.
    """

    counts: PackedCounts
    parameters: BlockParameters

    def log_joint(self, rows: BinaryRows) -> np.ndarray:
        """Log-probabilities of rows together with each class, shape ``(R, K)``."""
        counts = self.counts.with_gaps(rows.largest_gap)
        scores: np.ndarray = log_joint(counts, self.parameters, rows).T
        return scores

    @property
    def partition(self) -> Partition:
        """The blocks, batch shape ``(K,)``."""
        return Partition(torch.from_numpy(self.counts.labels))

    def to_pyro(self) -> ExchangeableMixture:
        """The distribution, in double precision."""
        counts, parameters, partition = self.counts, self.parameters, self.partition
        starts = partition.starts.numpy()
        logits = np.zeros((len(starts), partition.table_size))
        classes, variables = np.nonzero(counts.single)
        cells = starts[classes, variables]
        logits[classes, cells] = parameters.log_zeros[classes, variables]
        logits[classes, cells + 1] = parameters.log_ones[classes, variables]
        cells = starts[counts.classes, counts.names][counts.cell_block] + counts.cell_count
        logits[counts.cell_class, cells] = parameters.log_cells + counts.log_choices
        return ExchangeableMixture(torch.from_numpy(parameters.log_classes), torch.from_numpy(logits), partition)
