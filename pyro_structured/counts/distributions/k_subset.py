"""Subsets of a fixed size."""

__all__ = ["KSubset"]

import math
from typing import Any

import torch
from torch import Tensor
from torch.distributions import constraints
from torch.distributions.utils import lazy_property

from pyro_structured.counts.distributions.cardinality_potentials import check_counts
from pyro_structured.counts.distributions.recursive_cardinality import RecursiveCardinality
from pyro_structured.foundation.distributions.argument_checks import check_vector
from pyro_structured.foundation.ops.private_members import is_transformed
from pyro_structured.foundation.ops.requirements import any_true, require
from pyro_structured.foundation.ops.vmap_rows import broadcast_shapes

EMPTY_SUPPORT = (
    "k: expected a number of ones from 0 to the number of variables that infinite logits (clamps) allow, "
    "but the support is empty"
)


class KSubset(RecursiveCardinality):
    r"""Exactly k of D binary variables are 1, with log-odds of their own (the conditional Bernoulli distribution).

    .. math::
        p(y) \propto \mathbf{1}\Big[\sum_d y_d = k\Big] \exp\Big(\sum_{d=1}^D x_d y_d\Big), \qquad y \in \{0, 1\}^D.

    Values are vectors of zeros and ones in the dtype of ``logits``; ``event_shape`` is ``(D,)``. The support is
    :math:`\{0, 1\}^D` whatever k is (vectors with another sum have probability zero), so that k may be a latent
    variable that Pyro enumerates. All queries of :class:`RecursiveCardinality`, exact, in :math:`O(D \log^2 D)` or,
    for small k, :math:`O(D \log^2 k)`; marginals and samples of k = 1 in :math:`O(D)`. Conditioning returns a
    :class:`RecursiveCardinality`.

    :param Tensor logits: Log-odds, shape ``(..., D)``; infinite ones are clamps.
    :param k: Number of ones, in ``range(D + 1)``: an integer, or an integer tensor whose shape broadcasts with
        ``logits`` without its last axis. Counts that were sampled from a Binomial are floats: pass ``k.long()``.
    :raises ValueError: if k is not an integer or out of range, the clamps do not allow k ones, or the shapes do not
        broadcast.

    **References**

    Chen, Liu (1997): *Statistical applications of the Poisson-binomial and conditional Bernoulli distributions.*
    Statistica Sinica 7(4). Tarlow et al. (2012), as for :class:`RecursiveCardinality`.

    Example::

        >>> d = KSubset(torch.zeros(4), k=2)
        >>> d.log_prob(torch.tensor([1.0, 0.0, 0.0, 1.0])).exp()
        tensor(0.1667)
    """

    arg_constraints = {"logits": constraints.real_vector, "k": constraints.nonnegative_integer}
    _event_dims = {"logits": 1, "count_logits": 1, "k": 0}
    _derived = (*RecursiveCardinality._derived, "_chances")

    def __init__(self, logits: Tensor, k: int | Tensor, validate_args: bool | None = None) -> None:
        check_vector("logits", logits)
        k = check_counts("k", k, logits.shape[-1], logits.device)
        try:
            batch = broadcast_shapes(k.shape, logits.shape[:-1])
        except RuntimeError:
            raise ValueError(
                f"k: expected a shape that broadcasts with the batch shape of logits, {tuple(logits.shape[:-1])}, got "
                f"{tuple(k.shape)}"
            ) from None
        self._assign({"k": k}, batch)
        counts = torch.arange(logits.shape[-1] + 1, device=logits.device)
        table = torch.zeros((), dtype=logits.dtype, device=logits.device)
        table = table.masked_fill(counts != k.unsqueeze(-1), -math.inf)
        super().__init__(logits, table, validate_args=validate_args)
        self._empty = EMPTY_SUPPORT
        if self._validate_args:
            wrong = (k < (logits == math.inf).sum(-1)) | (k > (logits > -math.inf).sum(-1))
            require(wrong, "k: expected a number of ones that infinite logits (clamps) allow, got too few or too many")

    @lazy_property
    def _chances(self) -> Tensor | None:
        """Probabilities of the items, in double precision, where each row chooses one of them; else ``None``."""
        if is_transformed() or torch.compiler.is_compiling() or any_true(self.k != 1):
            return None
        logits = self.logits.double()
        # Infinite log-odds decide, or leave nothing.
        if any_true(~logits.amax(-1).isfinite()):
            return None
        chances: Tensor = logits.softmax(-1)
        return chances

    @property
    def marginals(self) -> Tensor:
        """Probabilities that a variable is 1, shape ``batch_shape + (D,)``; O(D) for k = 1."""
        return torch.sigmoid(self.marginal_logits) if self._chances is None else self._cast(self._chances)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draws exact joint samples, shape ``sample_shape + batch_shape + (D,)``; O(D) for k = 1."""
        if self._chances is None:
            return super().sample(sample_shape)
        sample_shape = torch.Size(sample_shape)
        with torch.no_grad():
            cumulative = self._chances.cumsum(-1)
            uniform = cumulative.new_empty(self.batch_shape + (sample_shape.numel(),)).uniform_()
            # Rounding must not carry the threshold to the total itself.
            threshold = uniform * (cumulative[..., -1:] * (1 - 2.0**-52))
            chosen = torch.searchsorted(cumulative, threshold, right=True).movedim(-1, 0)
            sample = self.logits.new_zeros((sample_shape.numel(),) + self.batch_shape + self.event_shape)
            sample.scatter_(-1, chosen.unsqueeze(-1), 1.0)
        drawn: Tensor = sample.reshape(sample_shape + self.batch_shape + self.event_shape)
        return drawn

    @staticmethod
    def infer_shapes(**arg_shapes: torch.Size) -> tuple[torch.Size, torch.Size]:
        """Batch and event shape from the shapes of ``logits`` and ``k``."""
        logits = torch.Size(arg_shapes["logits"])
        batch = broadcast_shapes(logits[:-1], torch.Size(arg_shapes.get("k", ())))
        return torch.Size(batch), logits[-1:]
