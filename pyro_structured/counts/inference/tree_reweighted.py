"""Tree-reweighted messages between families of count potentials."""

__all__ = ["TreeReweighted"]

from pyro_structured.counts.distributions.marginal_approximation import ApproximateMarginals, MarginalApproximation
from pyro_structured.counts.ops.count_bounds import holder_bound
from pyro_structured.counts.ops.factor_messages import FactorGraph, Schedule
from pyro_structured.foundation.structures.argument_checks import check_positive, check_size
from pyro_structured.foundation.structures.representation import Represented


class TreeReweighted(MarginalApproximation, Represented):
    r"""Messages of :class:`LoopyBP` between families of which each has a share of 1 / F: an upper bound of log Z.

    .. math::
        \log Z \le \min_{\sum_f s_f = x} \; \sum_{f=1}^F \tfrac1F \log \sum_y e^{F s_f^\top y} \psi_f(y)^F,

    by Hölder's inequality. The split is best where all families have the same marginals, which are the approximate
    ones, as for tree-reweighted belief propagation with families in place of trees. **A bound** at any number of steps,
    up to rounding in float64; marginals are approximate, and less accurate than those of :class:`LoopyBP`, as a rule.
    ``log_partition`` has the marginals as its gradient where it has converged; marginals have derivatives of the first
    order.

    :param float tolerance: Largest estimated error of a probability, as a solution of the equations, more than 0.
    :param int max_iterations: Largest number of steps of each of the three kinds (extrapolated, plain, damped), at
        least 1.
    :param int memory: Number of earlier steps that are extrapolated from; 0 for plain steps.
    :raises ValueError: if a number is of another kind.

    Cost: some fifty steps, each as much as the marginals of all families; more where log-odds are large or laws are
    nearly forced, and then the split may be short of the best one.

    **References**

    Wainwright, Jaakkola, Willsky (2005): A new class of upper bounds on the log partition function. IEEE Transactions
    on Information Theory 51.

    Example::

        >>> import torch
        >>> from pyro_structured.distributions import GeneralizedMatching
        >>> one = torch.full((4,), -torch.inf).index_fill(0, torch.tensor([1]), 0.0).expand(3, 4)
        >>> d = GeneralizedMatching(torch.eye(3), one, one)
        >>> bool(d.approximate_marginals(TreeReweighted()).log_partition > d.log_partition_function)
        True
    """

    def __init__(self, tolerance: float = 1e-6, max_iterations: int = 200, memory: int = 5) -> None:
        check_positive("tolerance", tolerance)
        check_size("max_iterations", max_iterations)
        check_size("memory", memory, 0)
        self.tolerance, self.max_iterations, self.memory = float(tolerance), max_iterations, memory

    def approximate(self, graph: FactorGraph) -> ApproximateMarginals:
        """Implements :meth:`MarginalApproximation.approximate`."""
        found = holder_bound(graph, Schedule(self.tolerance, self.max_iterations, self.memory))
        return ApproximateMarginals(
            found.marginal_logits.sigmoid(),
            found.marginal_logits,
            found.bound,
            found.error <= self.tolerance,
            found.num_iterations,
            found.residual,
            found.error,
        )
