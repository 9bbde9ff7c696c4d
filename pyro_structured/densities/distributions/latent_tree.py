"""Trees of latent variables, summed out."""

__all__ = ["JointMode", "LatentTree"]

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import constraints
from torch.distributions.utils import lazy_property

from pyro_structured.densities.ops.latent_tree_passes import (
    LatentTreeBeliefs,
    LatentTreeLevels,
    evidence_of_states,
    evidence_of_weights,
    infer_latent_tree,
    latent_marginals,
    maximize_latent_tree,
    observed_marginals,
    sample_latent_tree,
)
from pyro_structured.densities.structures.hidden_tree import HiddenTree
from pyro_structured.foundation.distributions.argument_checks import joined_batch
from pyro_structured.foundation.distributions.categorical_vector import CategoricalVector
from pyro_structured.foundation.ops.draws import refuse_mapped_draws
from pyro_structured.foundation.ops.evidence import no_evidence
from pyro_structured.foundation.ops.requirements import any_true, require, require_support
from pyro_structured.foundation.ops.vmap_rows import broadcast_shapes

EMPTY_SUPPORT = "transition_logits: expected a value of positive probability, but the support is empty"


class JointMode(NamedTuple):
    """Most probable value together with the latent states.

    :ivar Tensor value: States of the observed variables, shape ``batch_shape + (n,)``.
    :ivar Tensor latent: States of the latent variables, of the same shape.
    """

    value: Tensor
    latent: Tensor


class _Layout(NamedTuple):
    """Tables and evidence of all different rows.

    :ivar Tensor transitions: Shape ``(B, n, K, K)``.
    :ivar Tensor emissions: Shape ``(B, n, K, R)``.
    :ivar Tensor rows: Evidence, shape ``(B, n, S, ...)`` or ``(1, n, S, ...)``.
    :ivar LatentTreeLevels levels: The tree.
    :ivar torch.Size shape: Batch shape of the rows, those along S first.
    """

    transitions: Tensor
    emissions: Tensor
    rows: Tensor
    levels: LatentTreeLevels
    shape: torch.Size

    def restore(self, results: Tensor) -> Tensor:
        """Results of shape ``(B, S, ...)`` in the batch shape of the rows."""
        return results.transpose(0, 1).reshape(self.shape + results.shape[2:])


class _Given(NamedTuple):
    """The distribution given the evidence.

    :ivar layout: Tables, and log-weights of the observed states.
    :ivar Tensor evidence: Log-weights of the evidence given the latent states, shape ``(B, n, S, K)``.
    :ivar LatentTreeBeliefs beliefs: Results of the upward pass.
    """

    layout: _Layout
    evidence: Tensor
    beliefs: LatentTreeBeliefs


class LatentTree(CategoricalVector):
    r"""Observed variables, each under a latent variable of its own, which make a tree.

    .. math::
        p(x) = \sum_z \prod_v p(z_v \mid z_{\mathrm{parent}(v)})\, p(x_v \mid z_v).

    A chain is a hidden Markov model whose tables differ from step to step, and one latent variable's states copied to
    all others make a mixture of independent variables. Latent variables are summed out. Values have shape ``(..., n)``,
    long integers: variable v has the states ``0, ..., cardinalities[v] - 1``. :meth:`log_prob` accepts booleans,
    integers and floating point numbers. :class:`~pyro_structured.models.LatentTreeDensity` learns such distributions.

    **Exact**: every query but ``mode`` and ``entropy``, in float64, in products of matrices of all variables at the
    same distance from the root: O(n K (K + R)) for each row with K latent and R observed states. Probabilities below
    1e-300 count as zero in marginals. Where products lose small terms, they are computed again in logarithms, which
    takes some ten times as long. ``mode`` and ``entropy`` have no closed form: they are found by enumeration, up to
    ``2 ** 12`` values, and refused above; :attr:`joint_mode` maximises over latent states, too.

    :param Tensor transition_logits: Log-weights of the states of a variable's latent state (last axis) given its
        parent's, shape ``(..., n, K, K)`` for at most K latent states, less than +inf; for roots, only the first row is
        used. They are normalised along the last axis. Numbers of states that a variable does not have are not looked
        at.
    :param Tensor emission_logits: Log-weights of the observed states (last axis) given the latent ones, shape
        ``(..., n, K, R)`` for at most R observed states, less than +inf; likewise.
    :param HiddenTree tree: Parents and numbers of states.
    :raises ValueError: if a shape is wrong, there is a NaN or +inf, or a row has no number above -inf.

    **References**

    Liu, Van den Broeck (2021): Tractable regularization of probabilistic circuits. NeurIPS: hidden Chow-Liu trees.
    Choi, Tan, Anandkumar, Willsky (2011): Learning latent tree graphical models. JMLR 12.

    Example::

        >>> stay, show = torch.tensor([[0.9, 0.1], [0.1, 0.9]]).log(), torch.tensor([[0.8, 0.2], [0.2, 0.8]]).log()
        >>> d = LatentTree(stay.expand(3, 2, 2), show.expand(3, 2, 2), HiddenTree.chain(3, num_states=2))
        >>> d.log_prob(torch.tensor([0, 0, 0])).exp()
        tensor(0.3895)
        >>> d.condition(torch.tensor([1, 0, 0]), torch.tensor([True, False, False])).marginals[:, 1]
        tensor([1.0000, 0.4077, 0.4262])
    """

    arg_constraints = {
        "transition_logits": constraints.independent(constraints.less_than(torch.inf), 3),
        "emission_logits": constraints.independent(constraints.less_than(torch.inf), 3),
    }
    _derived = ("_tables", "_given", "_latent")

    def __init__(
        self,
        transition_logits: Tensor,
        emission_logits: Tensor,
        tree: HiddenTree,
        validate_args: bool | None = None,
    ) -> None:
        if not isinstance(tree, HiddenTree):
            raise ValueError(f"tree: expected a HiddenTree, got {type(tree).__name__}")
        number, latent, observed = tree.num_variables, max(tree.num_states), max(tree.cardinalities)
        batch = joined_batch("transition_logits", transition_logits, [number, latent, latent], torch.Size())
        batch = joined_batch("emission_logits", emission_logits, [number, latent, observed], batch)
        self.transition_logits, self.emission_logits, self.tree = transition_logits, emission_logits, tree
        self._evidence = no_evidence(number, transition_logits.device)
        self._empty = EMPTY_SUPPORT
        super().__init__(batch, torch.Size([number]), validate_args=validate_args)

    @staticmethod
    def infer_shapes(  # type: ignore[override]
        transition_logits: torch.Size, emission_logits: torch.Size, tree: HiddenTree
    ) -> tuple[torch.Size, torch.Size]:
        """Batch and event shape from the shapes of the parameters, and the tree itself."""
        batch = broadcast_shapes(transition_logits[:-3], emission_logits[:-3])
        return torch.Size(batch), torch.Size([tree.num_variables])

    @property
    def _num_states(self) -> tuple[int, ...]:
        return self.tree.cardinalities

    @property
    def _constant(self) -> Tensor:
        return self.transition_logits.new_zeros((), dtype=torch.double) + self._weighting_constant

    @lazy_property
    def _tables(self) -> tuple[Tensor, Tensor]:
        """Log-probabilities of the latent states given the parents', and of the observed states given the latent ones;
        -inf for states that a variable does not have, given any state.
        """
        sizes = self.tree.num_states, self._num_states, self.tree.parents
        latent, observed, parents = (torch.tensor(each, device=self._device) for each in sizes)
        above = torch.where(parents == torch.arange(len(parents), device=self._device), 1, latent[parents])
        tables = []
        for name, rows, columns in (("transition_logits", above, latent), ("emission_logits", latent, observed)):
            logits = self._parameter(name).double()
            row, column = (torch.arange(size, device=self._device) for size in logits.shape[-2:])
            used = (row < rows.unsqueeze(-1)).unsqueeze(-1)
            own = (column < columns.unsqueeze(-1)).unsqueeze(-2)
            logits = logits.masked_fill(~used, 0.0).masked_fill(~own, -math.inf)
            require((logits == -math.inf).all(-1), f"{name}: expected a number above -inf in every row, got none")
            tables.append(logits.log_softmax(-1))
        return tables[0], tables[1]

    @property
    def _weights(self) -> Tensor:
        """Log-weights that the evidence gives to all states, shape ``(..., n, R)``."""
        value, observed, consistent = self._evidence
        states = torch.arange(max(self._num_states), device=self._device)
        excluded = (observed.unsqueeze(-1) & (value.unsqueeze(-1) != states)) | ~consistent[..., None, None]
        free = self._tables[0].new_zeros(()) if self._weighting is None else self._weighting[0]
        return free.masked_fill(excluded, -math.inf)

    def _layout(self, rows: Tensor, rank: int) -> _Layout:
        """Tables, and evidence of shape ``(..., n)`` or ``(..., n, R)``, of rank 1 or 2, in the shapes of passes."""
        tables, levels = self._tables, self.tree.levels.to(self._device)
        own = tuple(broadcast_shapes(*(table.shape[:-3] for table in tables)))
        batch, event = tuple(rows.shape[: rows.dim() - rank]), tuple(rows.shape[rows.dim() - rank :])
        shape, further = batch, batch
        if math.prod(own) != 1:
            shape = tuple(broadcast_shapes(own, batch))
            further, own = shape[: len(shape) - len(own)], shape[len(shape) - len(own) :]
        transitions, emissions = (
            table.expand(own + table.shape[-3:]).reshape(math.prod(own), *table.shape[-3:]) for table in tables
        )
        rows = rows.expand(shape + event).reshape(math.prod(further), math.prod(own), *event)
        return _Layout(transitions, emissions, rows.movedim(0, 2), levels, torch.Size(shape))

    def _infer(self, weights: Tensor) -> _Given:
        """The distribution given log-weights of the observed states, shape ``(..., n, R)``."""
        layout = self._layout(weights, 2)
        evidence = evidence_of_weights(layout.emissions, layout.rows)
        return _Given(layout, evidence, infer_latent_tree(layout.transitions, evidence, layout.levels))

    @lazy_property
    def _given(self) -> _Given:
        return self._infer(self._weights)

    @property
    def _is_free(self) -> bool:
        """Whether there is no evidence."""
        _, observed, consistent = self._evidence
        return self._weighting is None and not any_true(observed) and not any_true(~consistent)

    @property
    def _log_z(self) -> Tensor:
        if self._is_free:
            return self._tables[0].new_zeros(self.batch_shape)
        return self._given.layout.restore(self._given.beliefs.log_z).expand(self.batch_shape)

    def _score(self, value: Tensor) -> Tensor:
        states, agrees = self._read(value)
        layout = self._layout(states, 1)
        evidence = evidence_of_states(layout.emissions, layout.rows)
        score = layout.restore(infer_latent_tree(layout.transitions, evidence, layout.levels).log_z)
        return self._weighted_score(score, states).masked_fill(~agrees, -math.inf)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draws latent states from the roots on, then observed ones; shape ``sample_shape + batch_shape + (n,)``."""
        refuse_mapped_draws()
        shape, copies = torch.Size(sample_shape), 1
        with torch.no_grad():
            require_support(self._log_z, self._empty)
            layout, _, beliefs = self._given
            if math.prod(layout.shape) == 1:
                # Samples of equal rows are further samples of one row.
                copies = self.batch_shape.numel()
            elif layout.shape != self.batch_shape:
                layout, _, beliefs = self._infer(self._weights.expand(self.batch_shape + self._weights.shape[-2:]))
            drawn = sample_latent_tree(*layout[:4], beliefs, shape.numel() * copies)
        return drawn.transpose(1, 2).reshape(shape + self.batch_shape + self.event_shape)

    @lazy_property
    def _latent(self) -> Tensor:
        """Log-probabilities of the latent states, in the shapes of passes."""
        require_support(self._log_z, self._empty)
        layout, _, beliefs = self._given
        return latent_marginals(layout.transitions, layout.levels, beliefs)

    @property
    def latent_marginals(self) -> Tensor:
        """Probabilities of the latent states given the evidence, shape ``batch_shape + (n, K)``, zeros for states that
        a variable does not have.
        """
        probs = self._given.layout.restore(self._latent.transpose(1, 2)).exp()
        return self._cast(probs.expand(self.batch_shape + probs.shape[-2:]))

    @property
    def _single_marginals(self) -> Tensor:
        layout, evidence, _ = self._given
        observed = observed_marginals(layout.emissions, layout.rows, evidence, self._latent)
        return self._pack_states(layout.restore(observed.transpose(1, 2)).exp())

    def _probabilities_of(self, wanted: Sequence[int]) -> Tensor:
        return self._enumerated_marginals(wanted)

    @property
    def joint_mode(self) -> JointMode:
        """A most probable value together with the latent states, given the evidence.

        The value is in general not a :attr:`mode`, which sums over latent states.
        """
        require_support(self._log_z, self._empty)
        layout = self._given.layout
        latent, value = (layout.restore(each) for each in maximize_latent_tree(*layout[:4]))
        shape = self.batch_shape + self.event_shape
        return JointMode(value.expand(shape), latent.expand(shape))
