"""Mean-field approximations that keep one family of count potentials."""

__all__ = ["CountMeanField"]

import torch
from torch import Tensor

from pyro_structured.counts.distributions.marginal_approximation import ApproximateMarginals, MarginalApproximation
from pyro_structured.counts.ops.count_bounds import mean_field, mean_field_choices
from pyro_structured.counts.ops.factor_messages import FactorGraph
from pyro_structured.foundation.structures.argument_checks import check_positive, check_size
from pyro_structured.foundation.structures.representation import Represented


class CountMeanField(MarginalApproximation, Represented):
    r"""The nearest distribution that has the potentials of one family alone, with log-odds of its own: a lower bound.

    .. math::
        \log Z \ge \max_s \; \log Z_f(s) + \sum_d q_d (x_d - s_d) + \sum_{g \ne f} \operatorname{E}_q \log\psi_g(y),
        \qquad q_d = p_f(y_d = 1 \mid s).

    The message of another family is the derivative of its expected log-potentials along :math:`q_d`. Tables of the
    other families have to be finite, and each of their subsets has to have one variable at most of each of this
    family's: rows with any laws, and columns with soft ones. Of several such families, the one with the best bound is
    kept, in each element of the batch. **A bound** at any number of steps, up to rounding in float64; a local optimum.
    ``log_partition`` has derivatives of the first order; marginals have none.

    :param float tolerance: Largest change of a probability in the last step, more than 0.
    :param int max_iterations: Largest number of steps, at least 1; they are damped where they do not gain.
    :raises ValueError: if a number is of another kind.
    :raises NotImplementedError: in ``approximate_marginals``, if no family can be kept.

    Cost: some ten steps, each as much as the marginals of all families and their derivatives.

    **References**

    Jordan, Ghahramani, Jaakkola, Saul (1999): An introduction to variational methods for graphical models. Machine
    Learning 37.

    Example::

        >>> from pyro_structured.distributions import GeneralizedMatching
        >>> one = torch.full((4,), -torch.inf).index_fill(0, torch.tensor([1]), 0.0).expand(3, 4)
        >>> even = -torch.tensor([1.0, 0.0, 1.0, 4.0]).expand(3, 4)
        >>> d = GeneralizedMatching(torch.eye(3), one, even)
        >>> bool(d.approximate_marginals(CountMeanField()).log_partition < d.log_partition_function)
        True
    """

    def __init__(self, tolerance: float = 1e-6, max_iterations: int = 200) -> None:
        check_positive("tolerance", tolerance)
        check_size("max_iterations", max_iterations)
        self.tolerance, self.max_iterations = float(tolerance), max_iterations

    def approximate(self, graph: FactorGraph) -> ApproximateMarginals:
        """Implements :meth:`MarginalApproximation.approximate`."""
        choices = mean_field_choices(graph)
        if not bool(choices.any(0).all()):
            raise NotImplementedError(
                "CountMeanField: expected a family such that the tables of all others are finite, and their subsets "
                "have one variable at most of each of its own, found none for some element of the batch; LoopyBP and "
                "TreeReweighted take any families"
            )
        odds = torch.zeros_like(graph.logits)
        bound = torch.full_like(odds[:, 0], -torch.inf)
        results: tuple[Tensor, ...] = (bound, odds, bound, bound, torch.zeros_like(bound, dtype=torch.long))
        for kept, possible in enumerate(choices):
            rows = possible.nonzero().flatten()
            if len(rows):
                found = mean_field(graph.rows(rows), kept, self.tolerance, self.max_iterations)
                better = found.bound > results[0][rows]
                results = tuple(
                    old.index_copy(0, rows[better], new[better]) for old, new in zip(results, found, strict=True)
                )
        bound, odds, residual, error, number = results
        # What no value meets has no bound.
        error = error.masked_fill(bound == -torch.inf, torch.inf)
        return ApproximateMarginals(odds.sigmoid(), odds, bound, error <= self.tolerance, number, residual, error)
