"""Partition functions of generalized matchings by annealed importance sampling."""

__all__ = ["AnnealedMatching"]

import torch

from pyro_structured.counts.distributions.matching_estimator import MatchingEstimate, MatchingEstimator
from pyro_structured.counts.ops.annealed_matrices import anneal_matrices
from pyro_structured.counts.ops.factor_messages import FactorGraph, Schedule, propagate
from pyro_structured.counts.ops.matching_moves import MatrixLaw
from pyro_structured.foundation.ops.log_space import logsumexp
from pyro_structured.foundation.structures.argument_checks import check_size
from pyro_structured.foundation.structures.representation import Represented

# Messages that rows start with need be no fixed point; larger ones would leave a chain no choice.
SCHEDULE = Schedule(tolerance=1e-4, max_iterations=20, limit=30.0)


class AnnealedMatching(MatchingEstimator, Represented):
    r"""Estimates log Z of a :class:`~pyro_structured.distributions.GeneralizedMatching` by Markov chains that are led
    from independent rows to it, step by step.

    .. math::
        \log \hat Z = \log Z_0 + \log \frac1N \sum_{n=1}^N \prod_{k=1}^K \frac{p_{\beta_k}(y_n^{(k)})}{
        p_{\beta_{k-1}}(y_n^{(k)})}, \qquad \mathbb{E}[\hat Z] = Z,

    where :math:`p_0` has the laws of the rows, and log-odds that belief propagation gives them, and is drawn exactly;
    on the way the laws of the columns grow, with finite penalties in place of impossible counts until the last step.
    Between steps there is a sweep of moves (``GeneralizedMatching.sweep``) of all chains and all elements of the batch.

    :math:`\hat Z` is unbiased, so that :math:`\log \hat Z` is **too small** in the mean, and log-probabilities computed
    from it are optimistic. The standard error is that of the logarithm of the mean of the weights; where it is larger
    than about 0.5, neither it nor the estimate can be relied on: take more temperatures.

    :param int num_temperatures: Number of steps K, at least 1.
    :param int num_chains: Number of chains N, at least 2.
    :raises ValueError: if numbers are of another kind.

    Cost: K sweeps of N chains, O(K N I J) for each matrix.

    **References**

    Neal (2001): Annealed importance sampling. Statistics and Computing 11.

    Example::

        >>> from pyro_structured.distributions import GeneralizedMatching
        >>> torch.manual_seed(0)
        <torch._C.Generator object at ...>
        >>> two = torch.full((6,), -torch.inf).index_fill(0, torch.tensor([2]), 0.0).expand(5, 6)
        >>> d = GeneralizedMatching(torch.randn(5, 5), two, two, estimator=AnnealedMatching(50))
        >>> value, error = d.estimate_log_partition()
        >>> bool((value - d.log_partition_function).abs() < 4 * error)
        True
    """

    def __init__(self, num_temperatures: int = 200, num_chains: int = 100) -> None:
        check_size("num_temperatures", num_temperatures)
        check_size("num_chains", num_chains, 2)
        self.num_temperatures, self.num_chains = num_temperatures, num_chains

    def estimate(self, law: MatrixLaw, graph: FactorGraph) -> MatchingEstimate:
        """Implements :meth:`MatchingEstimator.estimate`."""
        found = propagate(graph, graph.no_messages, SCHEDULE)
        split = graph.logits + found.messages[1]
        log_z, _ = graph.factors[0](split, graph.tables[0])
        finite = split.masked_fill(split.isinf(), 0.0).reshape(law.weights.shape[:-1])
        drawn = anneal_matrices(law, finite, self.num_temperatures, self.num_chains)
        # Weights are relative to the heaviest values, which differ from those of the rows at the start.
        log_mean = logsumexp(drawn.log_weights, 0) - torch.tensor(float(self.num_chains)).log()
        shares = (drawn.log_weights - log_mean.masked_fill(log_mean == -torch.inf, 0.0)).exp()
        error = shares.std(0) / self.num_chains**0.5
        error = error.masked_fill(log_mean == -torch.inf, torch.inf)
        return MatchingEstimate(log_z + log_mean, error, drawn.values, drawn.log_weights)
