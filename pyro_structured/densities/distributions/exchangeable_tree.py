"""Blocks of exchangeable variables whose levels are a junction tree."""

__all__ = ["ExchangeableTree"]

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import constraints
from torch.distributions.utils import lazy_property

from pyro_structured.densities.structures.block_tree import BlockTree, check_block_tree
from pyro_structured.foundation.distributions.argument_checks import check_data, joined_batch
from pyro_structured.foundation.distributions.categorical_vector import CategoricalVector
from pyro_structured.foundation.ops.evidence import no_evidence
from pyro_structured.foundation.ops.log_space import centre_tables, safe_log
from pyro_structured.foundation.ops.requirements import require, require_support
from pyro_structured.foundation.ops.vmap_rows import narrow_repeated
from pyro_structured.junction_trees.distributions.junction_tree import EMPTY_SUPPORT, JunctionTree


class ExchangeableTree(CategoricalVector):
    r"""Blocks of exchangeable variables; the levels of the blocks depend on each other as a junction tree says.

    .. math::
        p(x) = p(t) \prod_{b=1}^B \frac{1}{|S_{b, t_b}|}, \qquad
        p(t) = \frac{1}{Z} \exp\Bigl(\sum_C \theta_C(t_C)\Bigr), \qquad
        t_b = T_b(x_b), \qquad S_{b, t} = \{x_b : T_b(x_b) = t\}.

    First the levels are drawn, then a member of every level set, all alike. Chains, trees and thin junction trees of
    blocks are possible; without edges the blocks are independent, as in an :class:`ExchangeablePartition`, and a single
    block is an :class:`ExchangeableBlock`. Values are long integers of shape ``(..., n)``, also those of binary
    variables: variable d has the states ``0, ..., tree.cardinalities[d] - 1``. :meth:`log_prob` accepts booleans,
    integers and floating point numbers.

    **Exact**: every query, in float64, at a cost of O(``tree.table_size``) for each element of the batch, and that of
    the blocks' statistics: O(s L) for the counts of s variables with L levels, O(s r L) of r states after
    ``reweight``. ``marginals_of`` takes up to ``2 ** 12`` joint states, each of which needs a pass.

    :param Tensor clique_logits: Log-weights of the joint levels of all cliques of blocks, shape
        ``(..., tree.table_size)``, packed as by the ``pack`` of ``tree.levels``; less than +inf; -inf where a
        combination is impossible. They weigh whole level sets.
    :param BlockTree tree: The blocks, their statistics, and their cliques.
    :raises ValueError: if a shape is wrong or there is a NaN or +inf. Where no value has a positive probability, the
        first query raises.

    **References**

    Niepert, Domingos (2014): Exchangeable variable models. ICML. Problem 2; Theorem 2.3, Equation (1), for each block.
    Lauritzen, Spiegelhalter (1988): Local computations with probabilities on graphical structures and their application
    to expert systems. JRSS B 50(2).

    Example::

        >>> tree = BlockTree.from_counts([[0, 1], [2, 3]], cliques=[[0, 1]])  # two pairs of binary variables
        >>> equal = torch.eye(3).log()  # with as many ones
        >>> d = ExchangeableTree(tree.levels.pack([equal]), tree)
        >>> d.log_prob(torch.tensor([0, 1, 1, 0])).exp()
        tensor(0.0833)
        >>> d.condition(torch.tensor([1, 1, 0, 0]), torch.tensor([True, True, False, False])).marginals[:, 1]
        tensor([1., 1., 1., 1.])
    """

    arg_constraints = {"clique_logits": constraints.independent(constraints.less_than(torch.inf), 1)}
    _derived = ("_leveled", "_free", "_log_completions", "_given")

    def __init__(self, clique_logits: Tensor, tree: BlockTree, validate_args: bool | None = None) -> None:
        check_block_tree(tree)
        batch_shape = joined_batch("clique_logits", clique_logits, [tree.table_size], torch.Size())
        self.clique_logits, self.tree = clique_logits, tree
        self._evidence = no_evidence(tree.num_variables, clique_logits.device)
        self._empty = EMPTY_SUPPORT
        super().__init__(batch_shape, torch.Size([tree.num_variables]), validate_args=validate_args)

    @classmethod
    def from_data(
        cls, values: Tensor, tree: BlockTree, smoothing: float = 0.0, weights: Tensor | None = None
    ) -> "ExchangeableTree":
        r"""Maximises the likelihood of data, or the posterior density under a Dirichlet prior on all joint levels.

        In closed form, because the sizes of level sets do not depend on the tables: :meth:`JunctionTree.from_data` of
        the blocks' levels.

        :param Tensor values: States, shape ``(N, n)``.
        :param BlockTree tree: The blocks, their statistics, and their cliques.
        :param float smoothing: Number of pseudo-observations, at least 0, spread evenly over the joint levels. With 0,
            levels that are not in the data are impossible.
        :param Tensor weights: Weights of the rows, at least 0, shape ``(..., N)``, which makes a batch of
            distributions; ``None``: all are 1.

        Example::

            >>> x = torch.tensor([[0, 1, 0], [1, 0, 0], [1, 1, 1], [1, 1, 1]])
            >>> tree = BlockTree.from_counts([[0, 1], [2]], cliques=[[0, 1]])
            >>> ExchangeableTree.from_data(x, tree).log_prob(x[0]).exp()
            tensor(0.2500, dtype=torch.float64)
        """
        check_block_tree(tree)
        weights = check_data(values, tree.num_variables, max(tree.cardinalities), smoothing, weights)
        sizes = torch.tensor(tree.cardinalities, device=values.device)
        require(values >= sizes, f"values: expected integers below {tree.cardinalities}, got larger ones")
        levels = JunctionTree.from_data(tree.value(values.long()), tree.levels, smoothing, weights)
        return cls(levels.clique_logits, tree)

    @staticmethod
    def infer_shapes(clique_logits: torch.Size, tree: BlockTree) -> tuple[torch.Size, torch.Size]:  # type: ignore[override]
        """Batch and event shape from the shape of ``clique_logits``, and the tree itself."""
        return torch.Size(clique_logits[:-1]), torch.Size([tree.num_variables])

    @property
    def _num_states(self) -> tuple[int, ...]:
        return self.tree.cardinalities

    @lazy_property
    def _leveled(self) -> tuple[Tensor, Tensor]:
        """Tables less their largest entries, next to which digits could be lost, and these largest entries."""
        tables = narrow_repeated(self._parameter("clique_logits"))
        return centre_tables(tables, [size - 1 for size in self.tree.levels.table_sizes])

    @property
    def _constant(self) -> Tensor:
        return self._leveled[1].sum(-1) + self._weighting_constant

    @lazy_property
    def _free(self) -> JunctionTree:
        """Levels of the blocks without the evidence."""
        return JunctionTree(self._leveled[0], self.tree.levels, validate_args=False)

    @lazy_property
    def _log_completions(self) -> Tensor:
        """Log-weights of the members of the level sets that are left by the evidence, shape ``(..., B, L)``."""
        value, observed, consistent = self._evidence
        if self._weighting is None:
            completions = self.tree.log_completions(value, observed)
        else:
            completions = self.tree.log_mass(self._state_weights)
        return completions.masked_fill(~consistent[..., None, None], -torch.inf)

    @property
    def _log_sizes(self) -> Tensor:
        """Log-sizes of the level sets, 0 in place of -inf for empty ones, shape ``(B, L)``."""
        sizes = self.tree.log_sizes.to(self.clique_logits.device)
        return sizes.masked_fill(sizes == -torch.inf, 0.0)

    @lazy_property
    def _given(self) -> JunctionTree:
        """Levels of the blocks given the evidence: each counts by the share of its members that are left."""
        return self._free.reweight(self._log_completions - self._log_sizes).expand(self.batch_shape)

    @property
    def _log_z(self) -> Tensor:
        return self._given._log_z + self._given._constant

    @property
    def _supported(self) -> JunctionTree:
        require_support(self._log_z, self._empty)
        return self._given

    def _score(self, value: Tensor) -> Tensor:
        known, agrees = self._read(value)
        levels = self.tree.value(known)
        members = self._log_sizes.expand(levels.shape + self._log_sizes.shape[-1:])
        chances = members.gather(-1, levels.unsqueeze(-1)).squeeze(-1)
        score = self._free.unnormalized_log_prob(levels) - chances.sum(-1)
        return self._weighted_score(score, known).masked_fill(~agrees, -torch.inf)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draws the levels of the blocks, then members of their sets; shape ``sample_shape + batch_shape + (n,)``."""
        with torch.no_grad():
            levels = self._supported.sample(sample_shape)
            if self._weighting is not None:
                return self.tree.weighted_sample(levels, self._state_weights)
            value, observed, _ = self._evidence
            return self.tree.sample(levels, value, observed)

    @property
    def clique_marginals(self) -> Tensor:
        """Probabilities of the joint levels of all cliques of blocks, packed, shape ``batch_shape + (table_size,)``."""
        return self._cast(self._supported.clique_marginals)

    @property
    def _log_marginals(self) -> Tensor:
        """Log-probabilities of the states of all variables, shape ``(..., n, largest cardinality)``."""
        left = self._log_completions
        # The statistics will multiply the weights of single members by their number, or sum.
        levels = safe_log(self._supported.marginals) - left.masked_fill(left == -torch.inf, 0.0)
        if self._weighting is not None:
            return self.tree.weighted_log_marginals(levels, self._state_weights)
        value, observed, _ = self._evidence
        return self.tree.log_marginals(levels, value, observed)

    @property
    def _single_marginals(self) -> Tensor:
        return self._pack_states(self._log_marginals.exp())

    def _probabilities_of(self, wanted: Sequence[int]) -> Tensor:
        return self._enumerated_marginals(wanted)

    @property
    def mode(self) -> Tensor:
        """A most probable value, shape ``batch_shape + (n,)``."""
        with torch.no_grad():
            require_support(self._log_z, self._empty)
            weighted = self._weighting is not None
            peaks = self.tree.log_peaks(self._state_weights) if weighted else torch.zeros_like(self._log_sizes)
            single = (peaks - self._log_sizes).masked_fill(self._log_completions == -torch.inf, -torch.inf)
            levels = self._free.reweight(single).expand(self.batch_shape).mode
            if weighted:
                return self.tree.weighted_mode(levels, self._state_weights)
            value, observed, _ = self._evidence
            return self.tree.complete(levels, value, observed)

    def entropy(self) -> Tensor:
        """Exact entropy in nats, shape ``batch_shape``: that of the levels, and of members given their levels."""
        levels, left = self._supported, self._log_completions
        inside = levels.marginals * left.masked_fill(left == -torch.inf, 0.0)
        entropy = levels.entropy() + inside.sum((-2, -1))
        return self._cast(entropy if self._weighting is None else entropy - self._mean_weight(self._log_marginals))
