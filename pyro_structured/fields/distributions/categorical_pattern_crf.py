"""Fields of several labels on a grid with patterns that may be met as a whole."""

__all__ = ["CategoricalPatternCRF"]

import torch
from torch import Tensor
from torch.distributions import constraints
from torch.distributions.utils import lazy_property

from pyro_structured.fields.distributions.categorical_field import CategoricalField
from pyro_structured.fields.distributions.grid_parameters import GridParameters, checked_temperature, composition_table
from pyro_structured.fields.structures.grid import Grid
from pyro_structured.foundation.distributions.argument_checks import joined_batch
from pyro_structured.foundation.ops.vmap_rows import narrow_repeated


class CategoricalPatternCRF(GridParameters, CategoricalField):
    r"""Labels on a grid, with log-weights of their own, penalties where neighbours differ, and patterns of labels.

    .. math::
        p(y) = \frac{1}{Z} \exp\Bigl(\sum_i u_i(y_i) - \sum_{(i, j)} p_{ij} [y_i \ne y_j] + f_T(a(y))\Bigr), \qquad
        a_j(y) = c_j + \sum_i w_j(i, y_i),

    .. math::
        f_T(a) = T \log \sum_{h \in \{0,1\}^J} \exp\frac{1}{T}\Bigl(a^\top h + g(\sum_j h_j)\Bigr).

    Each hidden unit :math:`h_j` stands for a pattern, which favours some labels in some places. A shape of one class is
    a pattern with weights for its label only. With ``composition="sum"`` patterns are used in any number; with
    ``"min"``, exactly one is; a table g weighs how many are. At T = 1 the hidden units are summed out, at T = 0
    maximised. Values have shape ``(..., H, W)``, long integers below K; :meth:`log_prob` accepts any dtype. With two
    labels this is :class:`~pyro_structured.distributions.PatternCRF`, with differences of log-weights and weights.

    **Exact**, in float64, as long as sums have at most 2^30 numbers for each element of the batch; otherwise a
    NotImplementedError says what they would take. The cheapest is chosen of sums

    - over hidden units, if T is a positive integer of at most 16: the states are 2^J at T = 1, (T + 1)^J above, or J if
      exactly one is on; each takes H·W·K^min(H, W) numbers, or H·W·K with ``pairwise=None``;
    - over the K^(H·W) labelings, at any temperature, if there are at most 2^18.

    :meth:`entropy` and :attr:`mode` need all labelings; without patterns they do not, nor does the mode at T = 0.

    **At any size**: :meth:`unnormalized_log_prob` and, given all other pixels, :meth:`conditional_logits`, in
    O(H·W·J·K); :meth:`pseudo_log_prob`; :meth:`map`, by expectation maximisation with expansion moves; at whole
    temperatures, estimates (:meth:`estimate_log_prob`, :meth:`estimate_log_partition`) and approximate samples by
    :class:`~pyro_structured.inference.FieldGibbs`.

    :param Tensor unary_logits: Log-weights u of the labels, shape ``(..., H, W, K)``, K at least 2; -inf excludes.
    :param Tensor pairwise: Penalties p of neighbours that differ, in the order of ``grid.edges``, shape ``(..., E)``;
        +inf where they have to be alike; ``None``: there are none.
    :param Tensor weights: Weights w of the patterns for the labels, finite, shape ``(..., J, H, W, K)``.
    :param Tensor pattern_logits: Biases c of the patterns, shape ``(..., J)``, less than +inf.
    :param Grid grid: Height and width.
    :param composition: ``"sum"``, ``"min"``, or the table g, shape ``(..., J + 1)``, less than +inf; the attribute is a
        table in any case.
    :param float temperature: T, at least 0.
    :raises ValueError: if a shape or a number is out of range. Where no field has a positive probability, the first
        query raises.

    **References**

    Li (2013): Exploring compositional high order pattern potentials for structured output learning. Thesis, University
    of Toronto. Equations (4.1) and (4.6), Chapter 6. Potts (1952): Some generalized order-disorder transformations.
    Mathematical Proceedings of the Cambridge Philosophical Society 48.

    Example, with three labels and two shapes: label 1 on the left, and label 2 on the right::

        >>> grid = Grid(1, 4)
        >>> shapes = torch.zeros(2, 1, 4, 3)
        >>> shapes[0, 0, :2, 1], shapes[1, 0, 2:, 2] = 3.0, 3.0
        >>> d = CategoricalPatternCRF(torch.zeros(1, 4, 3), torch.ones(3), shapes, torch.tensor([-3.0, -3.0]), grid)
        >>> d.mode
        tensor([[1, 1, 2, 2]])
        >>> seen = d.condition(torch.tensor([[1, 0, 0, 0]]), torch.tensor([[True, False, False, False]]))
        >>> seen.marginals[0, 1]
        tensor([0.0314, 0.9012, 0.0674])
    """

    arg_constraints = {
        "unary_logits": constraints.independent(constraints.less_than(torch.inf), 3),
        "pairwise": constraints.independent(constraints.greater_than(-torch.inf), 1),
        "weights": constraints.independent(constraints.real, 4),
        "pattern_logits": constraints.independent(constraints.less_than(torch.inf), 1),
        "composition": constraints.independent(constraints.less_than(torch.inf), 1),
    }

    def __init__(
        self,
        unary_logits: Tensor,
        pairwise: Tensor | None,
        weights: Tensor,
        pattern_logits: Tensor,
        grid: Grid,
        composition: Tensor | str = "sum",
        temperature: float = 1.0,
        validate_args: bool | None = None,
    ) -> None:
        batch = self._take(unary_logits, pairwise, weights, pattern_logits, grid)
        self._scheme = composition if isinstance(composition, str) else None
        table = composition_table(composition, pattern_logits)
        batch = joined_batch("composition", table, [pattern_logits.shape[-1] + 1], batch)
        self.composition, self.temperature = table, checked_temperature(temperature)
        super().__init__(batch, validate_args)

    @staticmethod
    def infer_shapes(  # type: ignore[override]
        unary_logits: torch.Size,
        pairwise: torch.Size | None,
        weights: torch.Size,
        pattern_logits: torch.Size,
        grid: Grid,
        composition: torch.Size | str = "sum",
        temperature: float = 1.0,
    ) -> tuple[torch.Size, torch.Size]:
        """Batch and event shape from the shapes of the tensors; other arguments are themselves."""
        parts = [unary_logits[:-3], weights[:-4], pattern_logits[:-1]]
        parts += [part[:-1] for part in (pairwise, composition) if part is not None and not isinstance(part, str)]
        return torch.Size(torch.broadcast_shapes(*parts)), torch.Size([grid.height, grid.width])

    def _label_axis(self, unary_logits: Tensor) -> list[int]:
        labels = unary_logits.shape[-1] if isinstance(unary_logits, Tensor) and unary_logits.dim() else 2
        if labels < 2:
            raise ValueError(
                f"unary_logits: expected a last axis of at least two labels, got shape {tuple(unary_logits.shape)}"
            )
        return [labels]

    @property
    def _num_labels(self) -> int:
        return self.unary_logits.shape[-1]

    @lazy_property
    def _states(self) -> tuple[Tensor, Tensor]:
        flat = narrow_repeated(self._parameter("unary_logits").flatten(-3)).double()
        states = flat.unflatten(-1, (-1, self._num_labels)).transpose(-1, -2)
        level = states.detach().amax(-2)
        level = level.masked_fill(level == -torch.inf, 0.0)
        return (states - level.unsqueeze(-2)).flatten(-2), level.sum(-1)

    @property
    def _patterns(self) -> tuple[Tensor, Tensor]:
        flat = narrow_repeated(self._parameter("weights").flatten(-4)).double()
        by_label = flat.unflatten(-1, (self._num_patterns, self._num_variables, self._num_labels)).transpose(-1, -2)
        return by_label.flatten(-3), narrow_repeated(self._parameter("pattern_logits")).double()
