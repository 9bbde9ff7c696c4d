"""Matrices of zeros and ones with potentials on the counts of rows and columns."""

__all__ = ["GeneralizedMatching"]

import math
import warnings

import torch
from torch import Tensor
from torch.distributions import constraints

from pyro_structured.counts.distributions.cardinality_potentials import exactly
from pyro_structured.counts.distributions.matching_estimator import MatchingEstimator
from pyro_structured.counts.distributions.overlapping_counts import OverlappingCounts
from pyro_structured.counts.ops.count_diagram import MOST_STATES
from pyro_structured.counts.ops.matching_moves import MatrixLaw, doubt_of_irreducibility, sweep_matrices
from pyro_structured.counts.structures.subset_families import SubsetFamilies, matching_families
from pyro_structured.foundation.distributions.argument_checks import check_entries, check_vector, joined_batch
from pyro_structured.foundation.distributions.estimate_warning import warn_of_spread
from pyro_structured.foundation.distributions.fisher_gradient import with_gradient_of
from pyro_structured.foundation.ops.requirements import require
from pyro_structured.foundation.ops.user_frame import frames_below_user
from pyro_structured.foundation.ops.vmap_rows import broadcast_shapes
from pyro_structured.foundation.structures.argument_checks import check_size

EMPTY_SUPPORT = (
    "row_count_logits, column_count_logits: expected at least one matrix of positive probability in every batch "
    "element, but none meets the counts of all rows and columns"
)


class GeneralizedMatching(OverlappingCounts):
    r"""Matrices of zeros and ones with log-odds of their entries, and preferences for the counts of rows and columns.

    .. math::
        p(y) = \frac{1}{Z} \exp\Bigl(\sum_{ij} x_{ij} y_{ij} + \sum_i f_i\bigl(\textstyle\sum_j y_{ij}\bigr) +
        \sum_j g_j\bigl(\textstyle\sum_i y_{ij}\bigr)\Bigr), \qquad y \in \{0, 1\}^{I \times J},

    where ``logits`` holds :math:`x`, ``row_count_logits`` the tables :math:`f_i` and ``column_count_logits`` the tables
    :math:`g_j`: who reviews what, with three to four reviews for each paper and at most six papers for each reviewer;
    matchings, if all counts are one; labels of pixels whose numbers are known, if each row has one. Values are matrices
    of zeros and ones in the parameters' dtype, ``event_shape`` is ``(I, J)``.

    Log Z is a permanent, or harder: no method is fast for all sizes. **Exact**: ``log_prob``, ``sample``,
    ``marginals``, ``mode``, ``entropy`` and evidence, as long as the counts of the rows (or of the columns, whichever
    are fewer) that can be under way while going through the matrix take at most :math:`2^{26}` states, all entries
    together: 20 x 20 one-to-one, or 7 x 7 with any laws; a ``NotImplementedError`` beyond. Cost: O(1) for each state.
    **At any size**: :meth:`approximate_marginals`, :meth:`log_partition_bounds`, :meth:`log_prob_bounds`, :meth:`map`,
    :meth:`sweep`, ``unnormalized_log_prob``; a latent one is moved by
    :class:`~pyro_structured.inference.StructuredGibbs`.

    ``logits`` may be infinite: the entry is clamped, and -inf forbids a pair. Tables may be -inf where a count is
    impossible.

    :param Tensor logits: Log-odds, shape ``(..., I, J)``, no NaN.
    :param Tensor row_count_logits: Log-potentials of the rows' counts, shape ``(..., I, J + 1)``, less than +inf;
        see :mod:`~pyro_structured.distributions.cardinality_potentials`.
    :param Tensor column_count_logits: Log-potentials of the columns' counts, shape ``(..., J, I + 1)``.
    :param MatchingEstimator estimator: Estimates log Z where exact sums would take too long, such as
        :class:`~pyro_structured.inference.AnnealedMatching`, or ``None``.
    :raises ValueError: if a shape, a NaN or +inf is wrong, with the name of the argument. Where no matrix has a
        positive probability, the first query raises.

    **References**

    Tarlow, Swersky, Zemel, Adams, Frey (2012): Fast exact inference for recursive cardinality models. UAI. Section 6.2.

    Example::

        >>> one = torch.tensor([-math.inf, 0.0, -math.inf, -math.inf])
        >>> d = GeneralizedMatching(torch.eye(3), one.expand(3, 4), one.expand(3, 4))  # one-to-one
        >>> d.marginals
        tensor([[0.7541, 0.1230, 0.1230],
                [0.1230, 0.7541, 0.1230],
                [0.1230, 0.1230, 0.7541]])
    """

    arg_constraints = {
        "logits": constraints.independent(constraints.real, 2),
        "row_count_logits": constraints.independent(constraints.less_than(math.inf), 2),
        "column_count_logits": constraints.independent(constraints.less_than(math.inf), 2),
    }

    def __init__(
        self,
        logits: Tensor,
        row_count_logits: Tensor,
        column_count_logits: Tensor,
        estimator: MatchingEstimator | None = None,
        validate_args: bool | None = None,
    ) -> None:
        if estimator is not None and not isinstance(estimator, MatchingEstimator):
            raise ValueError(
                "estimator: expected one, such as AnnealedMatching() of pyro_structured.inference, or None, got "
                f"{estimator!r}"
            )
        self.estimator = estimator
        check_vector("logits", logits, smallest=0)
        if logits.dim() < 2 or 0 in logits.shape[-2:]:
            raise ValueError(
                f"logits: expected shape (..., I, J) with at least one row and column, got {tuple(logits.shape)}"
            )
        height, width = logits.shape[-2:]
        batch = joined_batch("row_count_logits", row_count_logits, (height, width + 1), logits.shape[:-2])
        batch = joined_batch("column_count_logits", column_count_logits, (width, height + 1), batch)
        self._evidence, self._empty = (logits, logits.new_zeros((), dtype=torch.double)), EMPTY_SUPPORT
        given = {"logits": logits, "row_count_logits": row_count_logits, "column_count_logits": column_count_logits}
        self._assign(given, batch)
        super().__init__(batch, logits.shape[-2:], validate_args=validate_args)

    @classmethod
    def of_labels(
        cls,
        logits: Tensor,
        label_count_logits: Tensor,
        estimator: MatchingEstimator | None = None,
        validate_args: bool | None = None,
    ) -> "GeneralizedMatching":
        """One label for each of I things, with a law of how many things have each of J labels: segments of known area.

        :param Tensor logits: Log-weights of the labels, shape ``(..., I, J)``; -inf forbids a label.
        :param Tensor label_count_logits: Log-potentials of the labels' numbers, shape ``(..., J, I + 1)``.
        :param MatchingEstimator estimator: As in the constructor.
        :return: The distribution of the labels in matrices that have a single 1 in each row.

        Example::

            >>> equal = torch.full((2, 5), -math.inf).index_fill(1, torch.tensor([2]), 0.0)  # two things each
            >>> d = GeneralizedMatching.of_labels(torch.tensor([[1.0, 0], [1, 0], [1, 0], [0, 1]]), equal)
            >>> d.marginals[:, 0]
            tensor([0.6269, 0.6269, 0.6269, 0.1192])
        """
        check_vector("logits", logits)
        if logits.dim() < 2:
            raise ValueError(f"logits: expected shape (..., I, J), got {tuple(logits.shape)}")
        height, width = logits.shape[-2:]
        joined_batch("label_count_logits", label_count_logits, (width, height + 1), logits.shape[:-2])
        one = exactly(width, 1).to(logits).expand(height, width + 1)
        return cls(logits, one, label_count_logits, estimator, validate_args)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-probability; -inf for impossible values, also for those that are not zeros and ones.

        Exact where there are not too many states; otherwise the estimate of :meth:`estimate_log_prob`, if there is an
        estimator.

        :raises NotImplementedError: if there are too many states, and no estimator.
        """
        if self.estimator is None or self.has_states(MOST_STATES):
            return super().log_prob(value)
        return self.estimate_log_prob(value)[0]

    def estimate_log_partition(self) -> tuple[Tensor, Tensor]:
        """Estimate of log Z, and its standard error, both of shape ``batch_shape``.

        The gradient is that of the log-weights of the estimator's draws, by Fisher's identity, and can be taken once.

        :raises ValueError: if there is no estimator.
        """
        log_z, error = self._estimate()
        return self._cast(log_z + self._constant), self._cast(error)

    def estimate_log_prob(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """Estimate of the log-probability, at any size, and its standard error, both of shape ``(...)``; all values
        share one estimate of log Z.

        :param Tensor value: As for ``log_prob``.
        :raises ValueError: if there is no estimator.
        """
        if self._validate_args:
            self._validate_sample(value)
        log_z, error = self._estimate()
        score = self._score(value)
        log_prob = (score - log_z).masked_fill(score == -math.inf, -math.inf)
        return self._cast(log_prob), self._cast(error.expand(log_prob.shape))

    def _estimate(self) -> tuple[Tensor, Tensor]:
        """Estimate of log Z without the constant, and its standard error, both of shape ``batch_shape``."""
        if self.estimator is None:
            raise ValueError(
                "estimator: expected one, such as GeneralizedMatching(..., estimator=AnnealedMatching()) of "
                "pyro_structured.inference, got None"
            )
        if not self.batch_shape.numel():
            empty = self._constant.new_zeros(self.batch_shape)
            return empty, empty
        with torch.no_grad():
            found = self.estimator.estimate(self._laws(1), self.factor_graph.detach())
            constant = (self._absolute - self._constant).expand(self.batch_shape)
            log_z = found.log_partition.reshape(self.batch_shape) + constant
            self._supported(self._possible(self._unmet(log_z == -math.inf)))
        warn_of_spread(self.estimator, found.standard_error)
        draws = found.values.reshape(-1, *self.batch_shape, *self.event_shape)
        shares = found.log_weights.softmax(0).reshape(draws.shape[:-2])
        possible = shares > 0
        scores = self._score(draws).where(possible, 0.0)
        return with_gradient_of(log_z, (shares * scores).sum(0)), found.standard_error.reshape(self.batch_shape)

    @staticmethod
    def infer_shapes(  # type: ignore[override]
        logits: torch.Size, row_count_logits: torch.Size, column_count_logits: torch.Size
    ) -> tuple[torch.Size, torch.Size]:
        """Batch and event shape from the shapes of the parameters."""
        batch = broadcast_shapes(logits[:-2], row_count_logits[:-2], column_count_logits[:-2])
        return torch.Size(batch), torch.Size(logits[-2:])

    @constraints.dependent_property(is_discrete=True, event_dim=2)
    def support(self) -> constraints.Constraint:
        """Matrices of zeros and ones, also those of probability zero."""
        return constraints.independent(constraints.boolean, 2)

    @property
    def _families(self) -> SubsetFamilies:
        return matching_families(*self.event_shape)

    @property
    def _names(self) -> tuple[list[str], list[str]]:
        rows, columns = self.event_shape
        return (
            [*(f"row_count_logits of row {row}" for row in range(rows)), "rows"],
            [*(f"column_count_logits of column {column}" for column in range(columns)), "columns"],
        )

    @property
    def _given_tables(self) -> tuple[Tensor, Tensor]:
        return self._parameter("row_count_logits").flatten(-2), self._parameter("column_count_logits").flatten(-2)

    def _laws(self, copies: int) -> MatrixLaw:
        """Laws of all elements of the batch, of each so many copies one after the other."""
        shape, number = self.event_shape, self.batch_shape.numel()
        weights, tables = self._rows(self._weights), [self._rows(table) for table in self._centred[0]]
        rows, columns = (
            table.unflatten(-1, (size, -1)).expand(copies, number, -1, -1).flatten(0, 1)
            for table, size in zip(tables, shape, strict=True)
        )
        weights = weights.unflatten(-1, (*shape, 2)).expand(copies, number, -1, -1, -1).flatten(0, 1)
        return MatrixLaw(weights, rows, columns)

    @torch.no_grad()
    def sweep(self, value: Tensor, num_sweeps: int = 1) -> Tensor:
        """Moves of Markov chains that leave the distribution invariant, at any size.

        In a sweep, each entry is about once in a block of two rows and two columns, whose 16 states are weighed; a row
        and a column are drawn exactly given all others; and ones are shifted along alternating paths and cycles of
        random length. All possible matrices are reached where the possible counts of rows and of columns are
        intervals, whatever pairs are forbidden, and where the rows or the columns allow all counts; elsewhere a
        ``UserWarning`` says why this is not known. :attr:`mode` is a possible start.

        :param Tensor value: Possible matrices, shape ``(...) + batch_shape + event_shape``: chains that run together.
        :param int num_sweeps: Number of sweeps, at least 1.
        :return: Matrices of the same shape; cost O(I J) operations on all chains a sweep, and those of a row and a
            column.
        :raises ValueError: if a matrix is impossible.

        Example::

            >>> one = torch.full((31,), -math.inf).index_fill(0, torch.tensor([1]), 0.0).expand(30, 31)
            >>> d = GeneralizedMatching(torch.randn(30, 30), one, one)
            >>> chains = d.sweep(d.mode.expand(100, 30, 30), num_sweeps=20)
            >>> bool((chains.sum(-1) == 1).all())
            True
        """
        check_entries(self.batch_shape + self.event_shape, 2, value=value)
        check_size("num_sweeps", num_sweeps)
        self._refuse_transforms("sweep")
        full = broadcast_shapes(value.shape, self.batch_shape + self.event_shape)
        chains = value.expand(full)
        require(self._score(chains) == -math.inf, "value: expected possible matrices, got impossible ones")
        if not chains.numel():
            return self._cast(chains)
        doubt = doubt_of_irreducibility(self._laws(1))
        if doubt is not None:
            warnings.warn(
                f"sweep: it is not known whether all possible matrices are reached: {doubt}",
                stacklevel=frames_below_user(),
            )
        flat = chains.reshape(-1, *self.event_shape).long()
        moved = sweep_matrices(self._laws(len(flat) // self.batch_shape.numel()), flat, num_sweeps)
        return self._cast(moved.reshape(full))

    @property
    def row_count_marginals(self) -> Tensor:
        """Exact probabilities of the counts of all rows, shape ``batch_shape + (I, J + 1)``."""
        return self._cast(self._table_marginals(0).unflatten(-1, (self.event_shape[0], -1)))

    @property
    def column_count_marginals(self) -> Tensor:
        """Exact probabilities of the counts of all columns, shape ``batch_shape + (J, I + 1)``."""
        return self._cast(self._table_marginals(1).unflatten(-1, (self.event_shape[1], -1)))
