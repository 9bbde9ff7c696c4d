"""Independent blocks of exchangeable binary variables."""

__all__ = ["ExchangeablePartition", "block_log_partitions", "block_log_weights", "check_partition"]

import math
import warnings
from typing import Any

import torch
from torch import Tensor
from torch.distributions import constraints
from torch.distributions.utils import lazy_property
from torch.nn.functional import logsigmoid

from pyro_structured.exchangeable.distributions.exchangeable_vector import EMPTY_SUPPORT, ExchangeableVector
from pyro_structured.exchangeable.ops.level_sets import log_binomial
from pyro_structured.exchangeable.ops.segments import segment_argmax, segment_logsumexp, segment_max, segment_ranks
from pyro_structured.exchangeable.ops.weighted_counts import (
    block_log_marginals,
    block_log_mass,
    block_peak_tables,
    block_tables,
    split_counts,
)
from pyro_structured.exchangeable.structures.partition import Partition
from pyro_structured.foundation.distributions.argument_checks import check_data, check_vector
from pyro_structured.foundation.ops.evidence import log_odds, no_evidence
from pyro_structured.foundation.ops.requirements import require_support
from pyro_structured.foundation.ops.user_frame import frames_below_user
from pyro_structured.foundation.ops.vmap_rows import broadcast_shapes
from pyro_structured.foundation.structures.argument_checks import checked_batch

# Number of rows of data, times partitions, that are counted at once.
ROWS_AT_ONCE = 2**12


class ExchangeablePartition(ExchangeableVector):
    r"""Binary variables in blocks: independent between blocks, exchangeable inside.

    .. math::
        p(x) = \prod_{b} \frac{w_b(t_b)}{\binom{n_b}{t_b}}, \qquad t_b = \sum_{d \in b} x_d, \qquad
        w_b = \mathrm{softmax}(\text{the block's table}).

    A block of one variable is a Bernoulli variable: naive Bayes models are partitions into single variables. There are
    as many free numbers as variables, whatever the blocks are. The partition may differ over the batch:
    ``ExchangeablePartition(logits[z], partition[z])`` is the distribution of a class z, also of an enumerated one.

    Values are zeros and ones of shape ``(..., n)`` in the parameters' dtype. **Exact**: every query, O(n) a value;
    after :meth:`reweight`, O(n m) for blocks of up to m variables.

    :param Tensor statistic_logits: Log-weights of the counts of all blocks, shape ``(..., partition.table_size)``, in
        the order that :class:`~pyro_structured.structures.Partition` says; unused entries do not matter; less than
        +inf.
    :param Partition partition: The blocks; its batch shape broadcasts with that of ``statistic_logits``.
    :raises ValueError: if a shape is wrong or there is a NaN or +inf.

    **References**

    Niepert, Domingos (2014): Exchangeable variable models. ICML. Definition 4.1, for one class; Theorem 4.2.

    Example::

        >>> pairs = Partition(torch.tensor([0, 0, 1, 1]))
        >>> logits = torch.tensor([0.0, -torch.inf, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])  # the first two are equal
        >>> d = ExchangeablePartition(logits, pairs)
        >>> d.log_prob(torch.tensor([1.0, 1.0, 0.0, 1.0])).exp()
        tensor(0.0833)
        >>> d.condition(torch.ones(4), torch.tensor([True, False, True, False])).marginals
        tensor([1.0000, 1.0000, 1.0000, 0.6667])
    """

    arg_constraints = {"statistic_logits": constraints.independent(constraints.less_than(torch.inf), 1)}
    _derived = ("_leveled", "_log_counts", "_log_blocks", "_tables")

    def __init__(self, statistic_logits: Tensor, partition: Partition, validate_args: bool | None = None) -> None:
        check_vector("statistic_logits", statistic_logits)
        check_partition(partition)
        if statistic_logits.shape[-1] != partition.table_size:
            raise ValueError(
                f"statistic_logits: expected a last axis of {partition.table_size} numbers, two for each variable, got "
                f"shape {tuple(statistic_logits.shape)}"
            )
        try:
            batch_shape = broadcast_shapes(statistic_logits.shape[:-1], partition.batch_shape)
        except RuntimeError:
            raise ValueError(
                "partition: expected a batch shape that broadcasts with that of statistic_logits, "
                f"{tuple(statistic_logits.shape[:-1])}, got {tuple(partition.batch_shape)}"
            ) from None
        self.statistic_logits, self.partition = statistic_logits, partition
        self._evidence = no_evidence(partition.num_variables, statistic_logits.device)
        self._empty = EMPTY_SUPPORT
        super().__init__(torch.Size(batch_shape), torch.Size([partition.num_variables]), validate_args=validate_args)

    @classmethod
    def from_data(
        cls, values: Tensor, partition: Partition, smoothing: float = 0.0, weights: Tensor | None = None
    ) -> "ExchangeablePartition":
        r"""Maximises the likelihood: the weight of a block's count is its share in the data (Theorem 4.2).

        :param Tensor values: Zeros and ones, shape ``(N, n)``.
        :param Partition partition: The blocks; a batch of partitions makes a batch of distributions.
        :param float smoothing: Number of at least 0, added to the number of rows of every count of every block.
        :param Tensor weights: Weights of the rows, at least 0, shape ``(..., N)``; ``None``: all are 1. Where all are
            zero, counts are uniform.
        """
        check_partition(partition)
        weights = check_data(values, partition.num_variables, 2, smoothing, weights)
        batch = checked_batch(weights=weights.shape[:-1], partition=partition.batch_shape)
        number = weights.new_zeros(batch + (partition.table_size,))
        weights, named = weights.expand(batch + weights.shape[-1:]).unsqueeze(-1), partition.sizes > 0
        step = max(1, ROWS_AT_ONCE // max(1, math.prod(batch)))
        for rows, weight in zip(values.split(step), weights.split(step, -2), strict=True):
            counts = partition[..., None, :].count(rows == 1)
            cells = (partition.starts.unsqueeze(-2) + counts).masked_fill(~named.unsqueeze(-2), 0)
            cells = cells.expand(batch + cells.shape[-2:])
            number.scatter_add_(-1, cells.flatten(-2), (weight * named.unsqueeze(-2)).flatten(-2))
        nothing = (number == 0).all(-1, keepdim=True)
        return cls((number + float(smoothing) + nothing).log(), partition)

    @staticmethod
    def infer_shapes(  # type: ignore[override]
        statistic_logits: torch.Size, partition: Partition
    ) -> tuple[torch.Size, torch.Size]:
        """Batch and event shape from the shape of ``statistic_logits``, and the partition itself."""
        batch = broadcast_shapes(statistic_logits[:-1], partition.batch_shape)
        return torch.Size(batch), torch.Size([partition.num_variables])

    @lazy_property
    def _leveled(self) -> tuple[Tensor, Tensor]:
        """Log-weights of single configurations of the blocks with the cells' counts, -inf in unused cells, less
        constants, so that they keep their digits; and the sum of the constants.
        """
        names, num_variables = self.partition.cell_blocks, self.partition.num_variables
        sizes = self.partition.sizes.gather(-1, names)
        completions = log_binomial(sizes, self.partition.cell_counts, num_variables)
        unused = completions == -torch.inf
        logits = self.statistic_logits.double().masked_fill(unused, -torch.inf)
        peaks = segment_max(logits.detach(), names, num_variables)
        peaks = peaks.masked_fill(peaks == -torch.inf, 0.0)
        weights = logits - peaks.gather(-1, names.expand(logits.shape)) - completions.masked_fill(unused, 0.0)
        return weights, peaks.sum(-1)

    @property
    def _constant(self) -> Tensor:
        return self._leveled[1] + self._weighting_constant

    @property
    def _weights(self) -> Tensor:
        return self._leveled[0]

    @lazy_property
    def _log_counts(self) -> Tensor:
        """Log-weights of the cells that are left by the evidence, shape ``(..., table_size)``."""
        if self._weighting is not None:
            return self._weights + block_log_mass(self.partition.tree, self._tables)
        free, missing = self._open
        return self._weights + log_binomial(free, missing, self.partition.num_variables)

    @lazy_property
    def _tables(self) -> list[Tensor]:
        """Log-weights of the numbers of ones in parts of the blocks, from weights of the variables."""
        return block_tables(self.partition.tree, self._state_weights)

    @property
    def _open(self) -> tuple[Tensor, Tensor]:
        """Numbers of free variables of the cells' blocks, and of ones among them, shapes ``(..., table_size)``."""
        value, observed, _ = self._evidence
        names = self.partition.cell_blocks
        marked = torch.broadcast_tensors(~observed, observed & (value == 1))
        free, ones = (self.partition.count(variables) for variables in marked)
        names = names.expand(free.shape[:-1] + names.shape[-1:])
        return free.gather(-1, names), self.partition.cell_counts - ones.gather(-1, names)

    @lazy_property
    def _log_blocks(self) -> Tensor:
        """Log partition functions of the blocks, at their smallest variables; -inf elsewhere."""
        return segment_logsumexp(self._log_counts, self.partition.cell_blocks, self.partition.num_variables)

    @property
    def _log_z(self) -> Tensor:
        return block_log_partitions(self).sum(-1).masked_fill(~self._evidence[2], -torch.inf).expand(self.batch_shape)

    @property
    def count_marginals(self) -> Tensor:
        """Probabilities of the counts of all blocks, shape ``batch_shape + (partition.table_size,)``; 0 in unused
        cells.
        """
        return self._cast(self._log_count_marginals.exp()).expand(self.batch_shape + self.statistic_logits.shape[-1:])

    @property
    def count_probs(self) -> Tensor:
        """Old name of :attr:`count_marginals`."""
        warnings.warn("count_probs: use count_marginals", FutureWarning, stacklevel=frames_below_user())
        return self.count_marginals

    @property
    def _log_count_marginals(self) -> Tensor:
        require_support(self._log_z, self._empty)
        names = self.partition.cell_blocks.expand(self._log_counts.shape)
        return self._log_counts - self._log_blocks.gather(-1, names)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draws the counts of the blocks, then where the ones are; shape ``sample_shape + batch_shape + (n,)``."""
        with torch.no_grad():
            require_support(self._log_z, self._empty)
            shape = torch.Size(sample_shape) + self.batch_shape
            # The largest of Gumbel variables around log weights is a draw in proportion to the weights.
            uniform, keys = (
                torch.rand(shape + size, dtype=torch.double, device=self.statistic_logits.device)
                for size in (self._log_counts.shape[-1:], self.event_shape)
            )
            scores = self._log_counts - (-uniform.log()).log()
            if self._weighting is None:
                drawn = self._fill(scores, keys)
            else:
                counts = self._counts_of(self._best_cells(scores))
                drawn = split_counts(self.partition.tree, self._tables, counts)
        return drawn.to(self.statistic_logits.dtype)

    def _fill(self, scores: Tensor, keys: Tensor) -> Tensor:
        """Vectors with every block's count of largest score, ones at the free variables of smallest keys."""
        value, observed, _ = self._evidence
        best = self._best_cells(scores)
        _, missing = self._open
        missing = missing.expand(best.shape[:-1] + missing.shape[-1:]).gather(-1, best)
        shape = broadcast_shapes(keys.shape, missing.shape)
        labels = self.partition.labels.expand(shape)
        ranks = segment_ranks(keys.expand(shape) * 0.5 + 0.5 * observed, labels)
        return torch.where(observed, value, (ranks < missing.expand(shape).gather(-1, labels)).long())

    def _best_cells(self, scores: Tensor) -> Tensor:
        """Cells of largest score of all blocks, at their smallest variables, shape ``(..., n)``."""
        names = self.partition.cell_blocks
        return segment_argmax(scores, names, self.partition.num_variables).clamp(max=names.shape[-1] - 1)

    def _counts_of(self, cells: Tensor) -> Tensor:
        """Numbers of ones that cells stand for, shape ``(..., n)``."""
        counts = self.partition.cell_counts
        return counts.expand(cells.shape[:-1] + counts.shape[-1:]).gather(-1, cells)

    @property
    def mode(self) -> Tensor:
        """A most probable vector, shape ``batch_shape + (n,)``."""
        require_support(self._log_z, self._empty)
        with torch.no_grad():
            scores = self._weights.masked_fill(self._log_counts == -torch.inf, -torch.inf)
            scores = scores.expand(self._log_counts.shape)
            if self._weighting is None:
                keys = torch.arange(self.event_shape[0], device=scores.device) / self.event_shape[0]
                mode = self._fill(scores, keys)
            else:
                tree = self.partition.tree
                peaks = block_peak_tables(tree, self._state_weights)
                counts = self._counts_of(self._best_cells(scores + block_log_mass(tree, peaks)))
                mode = split_counts(tree, peaks, counts, choose=lambda weights: weights.argmax(-1))
        return mode.to(self.statistic_logits.dtype).expand(self.batch_shape + self.event_shape)

    def _score(self, value: Tensor) -> Tensor:
        given, observed, consistent = self._evidence
        binary = ((value == 0) | (value == 1)).all(-1)
        agrees = (~observed | (value == given)).all(-1) & consistent
        score = self._weighted_score(block_log_weights(self, value).sum(-1), value == 1)
        return score.masked_fill(~(binary & agrees), -torch.inf)

    @property
    def _log_marginals(self) -> Tensor:
        odds = self._log_odds
        return torch.stack([logsigmoid(-odds), logsigmoid(odds)], -1)

    @property
    def _log_odds(self) -> Tensor:
        """Log-odds of the variables, in double precision, shape ``batch_shape + (n,)``."""
        if self._weighting is not None:
            require_support(self._log_z, self._empty)
            log_marginals = block_log_marginals(self.partition.tree, self._tables, self._weights)
            return log_odds(*log_marginals.unbind(-1)).expand(self.batch_shape + self.event_shape)
        value, observed, _ = self._evidence
        log_probs = self._log_count_marginals
        free, missing = self._open
        names, num_variables = self.partition.cell_blocks, self.partition.num_variables
        # The chance of a free variable is the expected share of ones among those of its block.
        sides = [
            segment_logsumexp(log_probs + number.clamp(min=0).double().log(), names, num_variables)
            for number in (free - missing, missing)
        ]
        off, on = (side.gather(-1, self.partition.labels.expand(side.shape)) for side in sides)
        odds = log_odds(off, on)
        fixed = torch.where(value == 1, torch.inf, -torch.inf).to(odds)
        return torch.where(observed, fixed, odds).expand(self.batch_shape + self.event_shape)

    def entropy(self) -> Tensor:
        """Exact entropy in nats, shape ``batch_shape``."""
        log_probs = self._log_count_marginals
        impossible = log_probs == -torch.inf
        # Weights are relative to the sum of their block, so that large ones cancel before they are averaged.
        names = self.partition.cell_blocks.expand(log_probs.shape)
        surprise = (self._log_blocks.gather(-1, names) - self._weights).masked_fill(impossible, 0.0)
        entropy = (log_probs.exp() * surprise).sum(-1)
        if self._weighting is not None:
            entropy = entropy - self._mean_weight(self._log_marginals)
        return self._cast(entropy).expand(self.batch_shape)


def check_partition(partition: object) -> None:
    """Raises a ValueError unless the argument is a :class:`~pyro_structured.structures.Partition`."""
    if not isinstance(partition, Partition):
        raise ValueError(f"partition: expected a Partition, got {type(partition).__name__}")


def block_log_partitions(distribution: ExchangeablePartition) -> Tensor:
    """Log partition functions of the blocks with the evidence, in double precision.

    :return: Shape ``(..., n)``: a block's number stands at its smallest variable; 0 elsewhere.
    """
    return distribution._log_blocks.masked_fill(distribution.partition.sizes == 0, 0.0)


def block_log_weights(distribution: ExchangeablePartition, value: Tensor) -> Tensor:
    """Log-weights of a value's entries in each block, in double precision, regardless of the evidence.

    :param Tensor value: Zeros and ones, shape ``(..., n)``.
    :return: Shape ``(..., n)``: a block's number stands at its smallest variable; 0 elsewhere.
    """
    partition, weights = distribution.partition, distribution._weights
    counts = partition.count(value == 1)
    batch = broadcast_shapes(counts.shape[:-1], distribution.batch_shape)
    cells = (partition.starts + counts).clamp(max=partition.table_size - 1)
    weights = weights.expand(batch + weights.shape[-1:]).gather(-1, cells.expand(batch + cells.shape[-1:]))
    return weights.masked_fill(partition.sizes == 0, 0.0)
