"""Binary fields whose neighbours prefer to be alike."""

__all__ = ["GridCRF"]

import torch
from torch import Tensor
from torch.distributions import constraints

from pyro_structured.fields.distributions.field_distribution import FieldDistribution
from pyro_structured.fields.distributions.field_estimator import FieldEstimator
from pyro_structured.fields.distributions.grid_parameters import checked_grid
from pyro_structured.fields.ops.field import Field
from pyro_structured.fields.ops.field_sums import MOST_NUMBERS
from pyro_structured.fields.ops.grid_inference import cost_of_grid, maximize_grid
from pyro_structured.fields.solvers.field_cut import FieldCut
from pyro_structured.fields.solvers.signed_graph import Unbalanced
from pyro_structured.fields.structures.grid import Grid
from pyro_structured.foundation.distributions.argument_checks import joined_batch
from pyro_structured.foundation.ops.private_members import is_transformed
from pyro_structured.foundation.ops.requirements import any_true, require_support
from pyro_structured.foundation.ops.vmap_rows import broadcast_shapes

# Time of a cut of a small field, and of a pass for each pixel, however many fields there are; in units of the cost of a
# pass for each field.
CUT, PIXEL = 2_000, 10_000


class GridCRF(FieldDistribution):
    r"""Zeros and ones on a grid, with log-odds of their own and penalties where neighbours differ: an Ising field.

    .. math::
        p(y) = \frac{1}{Z} \exp\Bigl(\sum_i u_i y_i - \sum_{(i, j)} p_{ij} [y_i \ne y_j]\Bigr).

    Values have shape ``(..., H, W)``, zeros and ones in the parameters' dtype.

    **Exact**: every query, in float64, at a cost of O(H·W·2^min(H, W)) for each element of the batch, up to 2^30; the
    width of a field may be thousands of pixels, if its height is at most about 16. With penalties of at least 0,
    or an even number of negative ones in every cycle, :attr:`mode` and :meth:`perfect_sample` have no limit.

    **At any size**: ``unnormalized_log_prob``, rigorous bounds (``log_prob_bounds``, ``log_partition_bounds``), and
    estimates (``estimate_log_prob``, ``estimate_log_partition``).

    :param Tensor unary_logits: Log-odds u, shape ``(..., H, W)``; an infinite one clamps its pixel, and has no weight
        of its own.
    :param Tensor pairwise: Penalties p of neighbours that differ, in the order of ``grid.edges``, shape ``(..., E)``;
        negative where they prefer to differ, +inf where they have to be alike.
    :param Grid grid: Height and width.
    :param FieldEstimator estimator: Estimator of log Z for :meth:`log_prob` where sums would take too long, and for
        :meth:`estimate_log_prob` anywhere: ``pyro_structured.inference.AnnealedImportanceSampling(1000, 100)``, for
        example, whose log Z is low rather than high, so that log-probabilities are optimistic; ``None``: there is none.
    :raises ValueError: if a shape is wrong or there is a NaN or a penalty of -inf. Where no field has a positive
        probability, the first query raises.

    **References**

    Li (2013): Exploring compositional high order pattern potentials for structured output learning. Thesis, University
    of Toronto. Chapter 2.

    Example::

        >>> grid = Grid(1, 3)
        >>> d = GridCRF(torch.tensor([[2.0, 0.0, 0.0]]), torch.ones(2), grid)
        >>> d.marginals
        tensor([[0.8808, 0.6760, 0.5813]])
        >>> d.mode
        tensor([[1., 1., 1.]])
    """

    support = constraints.independent(constraints.boolean, 2)
    _savings = "grids with a shorter side"
    arg_constraints = {
        "unary_logits": constraints.independent(constraints.real, 2),
        "pairwise": constraints.independent(constraints.greater_than(-torch.inf), 1),
    }

    def __init__(
        self,
        unary_logits: Tensor,
        pairwise: Tensor,
        grid: Grid,
        estimator: FieldEstimator | None = None,
        validate_args: bool | None = None,
    ) -> None:
        self.grid, self._paired = checked_grid(grid), True
        event_shape = torch.Size([grid.height, grid.width])
        batch = joined_batch("unary_logits", unary_logits, event_shape, torch.Size())
        batch = joined_batch("pairwise", pairwise, [grid.num_edges], batch)
        self.unary_logits = unary_logits
        self.pairwise = pairwise
        self.composition, self.temperature, self._scheme = unary_logits.new_zeros(1), 1.0, "sum"
        super().__init__(batch, event_shape, unary_logits.device, estimator, validate_args)

    @staticmethod
    def infer_shapes(  # type: ignore[override]
        unary_logits: torch.Size, pairwise: torch.Size, grid: Grid
    ) -> tuple[torch.Size, torch.Size]:
        """Batch and event shape from the shapes of the tensors, and the grid itself."""
        batch = broadcast_shapes(unary_logits[:-2], pairwise[:-1])
        return torch.Size(batch), torch.Size([grid.height, grid.width])

    @property
    def mode(self) -> Tensor:
        """A most probable field, shape ``batch_shape + (H, W)``: by a cut on the processor, if penalties allow for it,
        except in many fields of few pixels, and otherwise by a pass.
        """
        with torch.no_grad():
            # Without infinite numbers every field is possible.
            is_limited = any(any_true(tensor.isinf()) for tensor in (self._field.states, self._field.penalties))
            field = (self.description if is_limited else self._field).detach()
            labels = _maximize(field)
            if is_limited:
                require_support(self._unflatten(field.plain_log_weight(labels)), self._empty)
            best = self._unflatten(labels).reshape(self.batch_shape + self.event_shape)
        return self._cast(best)

    def _patterns(self) -> tuple[Tensor, Tensor]:
        none = self.pairwise.new_zeros(0, dtype=torch.double)
        return none, none


def _maximize(field: Field) -> Tensor:
    """Most probable labels of a field without patterns, shape ``(rows, D)``."""
    cost = cost_of_grid(field.shape)
    is_fast = PIXEL * field.num_pixels + cost * field.num_rows < CUT * field.num_rows
    if is_fast or (is_transformed() and cost <= MOST_NUMBERS):
        return maximize_grid(field.states, field.penalties, field.shape)[1]
    network = FieldCut(field.edges.cpu().numpy(), field.num_pixels)
    try:
        odds = field.odds.expand(field.num_rows, -1)
        labels = network.maximize(odds.cpu().numpy(), field.penalties.cpu().numpy())
    except Unbalanced as error:
        if cost > MOST_NUMBERS:
            raise NotImplementedError(
                f"mode: expected a grid with a shorter side, or penalties that are negative an even number of "
                f"times in every cycle, got shape {field.shape} and {error}"
            ) from None
        return maximize_grid(field.states, field.penalties, field.shape)[1]
    return torch.from_numpy(labels).to(field.states.device)
