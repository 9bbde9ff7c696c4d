"""The optimum of a problem whose costs are random."""

__all__ = ["RandOM"]

from typing import Any

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import AffineTransform, Distribution, constraints

from pyro_structured.foundation.distributions.argument_checks import expanded_batch
from pyro_structured.foundation.distributions.independent_parts import entry_distribution
from pyro_structured.foundation.distributions.support_bounds import support_bounds
from pyro_structured.foundation.ops.enumeration import ENUMERATION_CAP
from pyro_structured.foundation.ops.processor import unmoved_tensor
from pyro_structured.foundation.ops.requirements import any_true
from pyro_structured.foundation.ops.vmap_rows import broadcast_shapes
from pyro_structured.foundation.structures.representation import represent
from pyro_structured.optima.distributions.exact_optimum_probability import exact_log_prob
from pyro_structured.optima.distributions.optimum_estimate import OptimumEstimator, estimated_log_prob
from pyro_structured.optima.structures.problem import Problem

NO_LOG_PROB = (
    "log_prob: the probability that {problem} has a given optimum is an integral over the costs' inverse set for which "
    "there is no exact method if the costs come from {base}; infer the costs instead: MCMC(ConstrainedSlice(model)) "
    "samples them given the observed optimum; or estimate it: RandOM(..., estimator=Splitting(1000)), or ShellSMC for "
    "matchings and rankings"
)


class RandOM(TorchDistribution):
    r"""Randomized optimum model: the optimum of a problem whose costs are random.

    .. math::
        y = F(w) = \arg\min_{y'} f_w(y'), \qquad w \sim p(w), \qquad P(y) = \int_{F^{-1}(y)} p(w)\, dw.

    Values are those of the problem: matchings, paths, cuts, trees, components. **Exact**: ``sample``, one call of the
    problem's solver for every draw; and ``log_prob`` in the cases below, also of improbable values, with first and
    second derivatives. Elsewhere (larger matchings, assignments, paths, cuts, trees, and other costs) it needs an
    ``estimator``, and is an estimate whose standard error ``estimate_log_prob`` tells; an ``EstimateWarning`` says
    where that is above 0.5. Or, given an observed value, the costs themselves become latent variables, and
    :class:`~pyro_structured.inference.ConstrainedSlice` samples them, and all other latent variables of the model.

    ============================  ==================================  =============================================
    problem                       costs                               cost of a log-probability
    ============================  ==================================  =============================================
    TopK, Matching with one row   independent                         O(n) a node of an integral over a line
    Ranking                       independent                         O(n) a node of n integrals over a line
    TopK with k = 1, Matching     exponential costs, or Gumbel        O(n): shares of rates
    with one row                  rewards (minus costs) of one scale
    Ranking                       exponential; Gumbel of one scale    O(n): Plackett and Luce's distribution
    Matching of 2 x 2             normal, independent or jointly      O(1)
    ConnectedComponents           independent                         O(3^n) for the largest component with a cycle,
                                                                      of n ≤ 12 nodes; O(n) for trees
    all with one feasible value   any                                 to find that there is no other, which takes a few
    (LinearProblem knows none)                                        searches at most
    ============================  ==================================  =============================================

    Independent costs are normal, half-normal, truncated normal, uniform, exponential, Gumbel, Laplace or logistic
    variables, or monotone transforms of them such as LogNormal, declared events by ``to_event``. Integrals are computed
    with more and more nodes until two results agree to a relative error of 1e-10, row by row; orders of costs with
    several inversions of a thousand standard deviations may take more nodes than are allowed. Where locations are added
    to costs whose density is infinite at an end, such as squares of exponential ones or Weibull ones of concentration
    1/2, sums have lost the digits next to that end: probabilities have errors of up to 1e-7, or the nodes that are
    allowed do not suffice, either of which takes seconds. First derivatives are right also where ends of supports of
    several costs coincide; second derivatives are refused there if the ends depend on parameters, and where kinks of
    Laplace's densities coincide. Where ``log_prob`` is exact and there are at most 4096 values, ``enumerate_support``
    lists them. There is no exact ``log_prob`` for any other case, small ones included: matchings of 3 x 3, or of 2 x 2
    with other costs than normal, two parallel edges, cuts, the trees of a triangle.

    :param base: Distribution of the costs, of event shape ``problem.cost_shape``, continuous, with a support on which
        the problem can be solved.
    :param Problem problem: The optimisation problem; its data may differ over a batch that broadcasts with that of
        ``base``.
    :param OptimumEstimator estimator: Estimator of log-probabilities without an exact method:
        :class:`~pyro_structured.inference.ShellSMC` for matchings and rankings,
        :class:`~pyro_structured.inference.Splitting` or, for large probabilities,
        :class:`~pyro_structured.inference.PlainMonteCarlo` for any problem. ``None``: they are refused.
    :raises ValueError: if shapes do not fit, or some costs cannot be handled by the solver.

    **References**

    Luce (1959): *Individual choice behavior.* Wiley. Plackett (1975): *The analysis of permutations.* Applied
    Statistics 24.

    Tarlow, Adams, Zemel (2012): *Randomized optimum models for structured prediction.* AISTATS. Equation 1.
    Papandreou, Yuille (2011): *Perturb-and-MAP random fields.* ICCV.

    Example::

        >>> import pyro.distributions as dist
        >>> from pyro_structured.structures import Matching
        >>> costs = torch.tensor([[0.0, 9.0], [9.0, 0.0]])
        >>> RandOM(dist.Normal(costs, 1.0).to_event(2), Matching(2)).sample((3,))
        tensor([[0, 1],
                [0, 1],
                [0, 1]])
    """

    arg_constraints: dict[str, constraints.Constraint] = {}

    def __init__(
        self,
        base: Any,
        problem: Problem,
        estimator: OptimumEstimator | None = None,
        validate_args: bool | None = None,
    ) -> None:
        if not isinstance(problem, Problem):
            raise ValueError(f"problem: expected a Problem, such as Matching, got {problem!r}")
        if not isinstance(base, Distribution):
            raise ValueError(f"base: expected a distribution of the costs, got {base!r}")
        if not (estimator is None or isinstance(estimator, OptimumEstimator)):
            raise ValueError(f"estimator: expected an estimator, such as ShellSMC(1000), or None, got {estimator!r}")
        _check_costs(base, problem)
        try:
            batch_shape = broadcast_shapes(base.batch_shape, problem.batch_shape)
        except RuntimeError:
            raise ValueError(
                f"problem: expected a batch shape that broadcasts with that of base, {tuple(base.batch_shape)}, got "
                f"{tuple(problem.batch_shape)}"
            ) from None
        self.base, self.problem, self.estimator = base, problem, estimator
        super().__init__(batch_shape, problem.event_shape, validate_args=validate_args)

    def __repr__(self) -> str:
        """Arguments, and whether ``log_prob`` is exact, estimated or refused."""
        exact = exact_log_prob(self.base, self.problem) is not None
        return represent(self, log_prob="exact" if exact else "estimated" if self.estimator else "refused")

    def expand(self, batch_shape: Any, _instance: Any = None) -> "RandOM":
        """Distribution with another batch shape; parameters are expanded without being copied."""
        new: RandOM = self._get_checked_instance(RandOM, _instance)  # type: ignore[no-untyped-call]
        shape = expanded_batch(self.batch_shape, batch_shape)
        new.base, new.problem, new.estimator = self.base.expand(shape), self.problem.expand(shape), self.estimator
        super(RandOM, new).__init__(shape, self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    @constraints.dependent_property(is_discrete=True, event_dim=1)
    def support(self) -> constraints.Constraint:
        """Support of the problem, which contains values that no costs lead to, too."""
        return self.problem.support

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Optima of drawn costs, shape ``sample_shape + batch_shape + event_shape``."""
        with torch.no_grad():
            costs = self.base.expand(self.batch_shape).sample(torch.Size(sample_shape))
            value = self.problem.solve(costs)
        return value.to(costs.dtype) if value.is_floating_point() else value

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-probability of optimal values, shape ``(...)``; -inf for values that are not feasible.

        Exact where there is an exact method, else an estimate if there is an estimator, with an estimate of the
        gradient.

        :raises NotImplementedError: where there is neither an exact method nor an estimator.
        :raises RuntimeError: if an integral does not converge; in the backward pass, where there are no second
            derivatives.
        """
        exact = exact_log_prob(self.base, self.problem)
        if exact is None and self.estimator is None:
            raise NotImplementedError(
                NO_LOG_PROB.format(
                    problem=type(self.problem).__name__, base=type(entry_distribution(self.base)).__name__
                )
            )
        if exact is None:
            return self.estimate_log_prob(value)[0]
        if self._validate_args:
            self._validate_sample(value)
        shape = broadcast_shapes(value.shape[: value.dim() - len(self.event_shape)], self.batch_shape)
        return exact.log_prob(value).expand(shape).to(torch.promote_types(exact.like.dtype, torch.float32))

    def estimate_log_prob(self, value: Tensor) -> tuple[Tensor, Tensor]:
        r"""An estimate of the log-probability, with a gradient, and its standard error, both of shape ``(...)``.

        The gradient is Fisher's identity, :math:`\nabla \log P(y) = \mathbb{E}[\nabla \log p(w) \mid F(w) = y]`, over
        the costs that the estimator found; it can be taken once. It does not hold for parameters that move the ends of
        the costs' support, such as the bounds of Uniform and TruncatedNormal.

        :raises ValueError: if there is no estimator, or such a parameter requires gradients.
        :raises NotImplementedError: if the estimator does not apply to the problem or to the costs.
        """
        if self.estimator is None:
            raise ValueError(
                "estimator: expected one, such as RandOM(base, problem, estimator=Splitting(1000)), got None"
            )
        if self._validate_args:
            self._validate_sample(value)
        shape = broadcast_shapes(value.shape[: value.dim() - len(self.event_shape)], self.batch_shape)
        return estimated_log_prob(
            self.estimator, self.base.expand(shape), self.problem.expand(shape), value.expand(shape + self.event_shape)
        )

    @property
    def has_enumerate_support(self) -> bool:  # type: ignore[override]
        """Whether there are few values, whose log-probabilities are exact."""
        return exact_log_prob(self.base, self.problem) is not None and self.problem.feasible_values() is not None

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All values in lexicographic order, shape ``(count,) + batch_shape + event_shape``.

        Rows whose data differ have the same list, in which some values are impossible for a row.
        """
        exact, values = exact_log_prob(self.base, self.problem), self.problem.feasible_values()
        if exact is None or values is None:
            raise NotImplementedError(
                f"enumerate_support: expected at most {ENUMERATION_CAP} values with exact log-probabilities, got "
                f"{type(self.problem).__name__} with others; use sample()"
            )
        values = values.to(exact.like if values.is_floating_point() else exact.like.device)
        values = values.reshape(-1, *(1,) * len(self.batch_shape), *self.event_shape)
        return values.expand(-1, *self.batch_shape, *self.event_shape) if expand else values


def _check_costs(base: Any, problem: Problem) -> None:
    name = type(problem).__name__
    if base.event_shape != problem.cost_shape:
        raise ValueError(
            f"base: expected event shape {tuple(problem.cost_shape)}, that of the costs of {name}, got "
            f"{tuple(base.event_shape)}; to_event makes batch axes event axes"
        )
    support = base.support
    if support.is_discrete:
        raise ValueError(
            f"base: expected continuous costs, got {type(entry_distribution(base)).__name__}: ties have no optimum"
        )
    if _is_constant(base):
        raise ValueError("base: expected costs that vary, got an AffineTransform of scale 0: ties have no optimum")
    low = unmoved_tensor(problem.cost_low)
    least, _ = support_bounds(base)
    if any_true(least.to(low) < low):
        raise ValueError(
            f"base: expected costs of at least {problem.cost_low}, for which alone {name} has an exact solver, got "
            f"{type(entry_distribution(base)).__name__}, whose support is {support}; use TruncatedNormal, "
            "LogNormal or Gamma"
        )


def _is_constant(base: Any) -> bool:
    """Whether a number multiplies costs by zero; tensors may be parameters, whose trial values come by zero."""
    entry = entry_distribution(base)
    transforms = getattr(entry, "transforms", ())
    scales = [transform.scale for transform in transforms if isinstance(transform, AffineTransform)]
    if any(not isinstance(scale, Tensor) and scale == 0 for scale in scales):
        return True
    return bool(transforms) and _is_constant(entry.base_dist)
