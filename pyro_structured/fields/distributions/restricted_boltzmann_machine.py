"""Restricted Boltzmann machines, their binary hidden units summed out."""

__all__ = ["RBM"]

import torch
from torch import Tensor
from torch.distributions import constraints

from pyro_structured.fields.distributions.field_distribution import FieldDistribution
from pyro_structured.fields.distributions.field_estimator import FieldEstimator
from pyro_structured.foundation.distributions.argument_checks import joined_batch
from pyro_structured.foundation.ops.requirements import require
from pyro_structured.foundation.ops.vmap_rows import broadcast_shapes


class RBM(FieldDistribution):
    r"""Visible units of a restricted Boltzmann machine, its hidden units summed out.

    .. math::
        p(v) = \frac{1}{Z} \exp\Bigl(b^\top v + \sum_j \log\bigl(1 + \exp(c_j + w_j^\top v)\bigr)\Bigr).

    Values are vectors of D zeros and ones in the parameters' dtype.

    **Exact**, in float64, as long as sums have at most 2^30 numbers for each element of the batch: 2^J·D over the
    hidden units, or 2^D·J over the visible ones if these are at most 18; otherwise a NotImplementedError says what they
    would take.

    **At any size**: :meth:`unnormalized_log_prob`, in O(J·D); :meth:`map` and, if branch and bound proves it,
    :attr:`mode`; rigorous bounds (:meth:`log_prob_bounds`, :meth:`log_partition_bounds`) and estimates
    (:meth:`estimate_log_prob`, :meth:`estimate_log_partition`); exact samples if signs of weights are balanced
    (:meth:`perfect_sample`), and approximate ones by :class:`~pyro_structured.inference.FieldGibbs`. :meth:`entropy`
    needs all visible vectors.

    :param Tensor weights: Weights w, finite, shape ``(..., J, D)``.
    :param Tensor visible_logits: Biases b, shape ``(..., D)``; an infinite one clamps its unit, and has no weight of
        its own.
    :param Tensor hidden_logits: Biases c, shape ``(..., J)``, less than +inf.
    :param FieldEstimator estimator: Estimator of log Z for :meth:`log_prob` where sums would take too long, and for
        :meth:`estimate_log_prob` anywhere: ``pyro_structured.inference.AnnealedImportanceSampling(1000, 100)``, for
        example, whose log Z is low rather than high, so that log-probabilities are optimistic; ``None``: there is none.
    :raises ValueError: if a shape or a number is out of range.

    **References**

    Li (2013): Exploring compositional high order pattern potentials for structured output learning. Thesis, University
    of Toronto. Equations (2.3) to (2.5).

    Example::

        >>> d = RBM(torch.tensor([[4.0, 4.0]]), torch.zeros(2), torch.tensor([-4.0]))
        >>> d.log_prob(torch.tensor([[0.0, 1.0], [1.0, 1.0]])).exp()
        tensor([0.0330, 0.9172])
    """

    support = constraints.independent(constraints.boolean, 1)
    _labels_argument, _biases_argument = "visible_logits", "hidden_logits"
    _savings = "fewer hidden units, or at most 18 visible ones,"
    arg_constraints = {
        "weights": constraints.independent(constraints.real, 2),
        "visible_logits": constraints.real_vector,
        "hidden_logits": constraints.independent(constraints.less_than(torch.inf), 1),
    }

    def __init__(
        self,
        weights: Tensor,
        visible_logits: Tensor,
        hidden_logits: Tensor,
        estimator: FieldEstimator | None = None,
        validate_args: bool | None = None,
    ) -> None:
        sizes = [
            tensor.shape[-1] if isinstance(tensor, Tensor) and tensor.dim() else 1
            for tensor in (hidden_logits, visible_logits)
        ]
        batch = joined_batch("visible_logits", visible_logits, [max(1, sizes[1])], torch.Size())
        batch = joined_batch("hidden_logits", hidden_logits, sizes[:1], batch)
        batch = joined_batch("weights", weights, sizes, batch)
        require(~weights.isfinite(), "weights: expected finite numbers, got others")
        self.weights = weights
        self.visible_logits = visible_logits
        self.hidden_logits = hidden_logits
        self.composition, self.temperature, self._scheme = weights.new_zeros(sizes[0] + 1), 1.0, "sum"
        super().__init__(batch, torch.Size(sizes[1:]), weights.device, estimator, validate_args)

    @staticmethod
    def infer_shapes(**arg_shapes: torch.Size) -> tuple[torch.Size, torch.Size]:
        """Batch and event shape from the shapes of the arguments."""
        batch = broadcast_shapes(
            arg_shapes["weights"][:-2], arg_shapes["visible_logits"][:-1], arg_shapes["hidden_logits"][:-1]
        )
        return torch.Size(batch), torch.Size(arg_shapes["visible_logits"][-1:])

    def _penalties(self) -> Tensor:
        return self.weights.new_zeros(0, dtype=torch.double)
