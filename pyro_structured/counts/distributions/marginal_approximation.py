"""Approximations of marginals where exact sums would take too long."""

__all__ = ["ApproximateMarginals", "MarginalApproximation"]

from abc import ABC, abstractmethod
from typing import NamedTuple

from torch import Tensor

from pyro_structured.counts.ops.factor_messages import FactorGraph


class ApproximateMarginals(NamedTuple):
    """Approximate probabilities of the single variables, and of log Z, for each element of the batch.

    :ivar Tensor marginals: Approximate probabilities that a variable is 1, of the shape of ``marginals``.
    :ivar Tensor marginal_logits: Their log-odds.
    :ivar Tensor log_partition: Approximate log Z, of the batch shape; the method says whether it is a bound.
    :ivar Tensor converged: Whether the estimated error of the probabilities, as solutions of the method's equations,
        is within the tolerance; of the batch shape.
    :ivar Tensor num_iterations: Numbers of steps, of the batch shape.
    :ivar Tensor residual: Largest change of a probability in one more plain step, of the batch shape.
    :ivar Tensor error: The residual divided by one minus the rate at which plain steps reduce it, which is the
        estimated error; infinite where no rate is known.
    """

    marginals: Tensor
    marginal_logits: Tensor
    log_partition: Tensor
    converged: Tensor
    num_iterations: Tensor
    residual: Tensor
    error: Tensor


class MarginalApproximation(ABC):
    """A method to approximate marginals of variables in several families of counts; stateless and picklable."""

    @abstractmethod
    def approximate(self, graph: FactorGraph) -> ApproximateMarginals:
        """Approximates the marginals of each row, in double precision.

        :param FactorGraph graph: Log-odds of the variables, and factors.
        :return: Tensors of shape ``(rows, n)`` and ``(rows,)``, differentiable along the parameters. Rows that seem to
            be impossible have not converged.
        """
