"""Mixtures of trees of exchangeable blocks."""

__all__ = ["MixtureOfExchangeableTrees"]

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributions import constraints
from torch.distributions.utils import lazy_property

from pyro_structured.densities.distributions.exchangeable_tree import ExchangeableTree
from pyro_structured.densities.structures.block_tree import BlockTree
from pyro_structured.foundation.distributions.argument_checks import joined_batch
from pyro_structured.foundation.distributions.categorical_vector import CategoricalVector
from pyro_structured.foundation.distributions.mixture_vector import MixtureVector
from pyro_structured.foundation.ops.evidence import no_evidence
from pyro_structured.foundation.ops.vmap_rows import broadcast_shapes
from pyro_structured.junction_trees.distributions.junction_tree import EMPTY_SUPPORT


class MixtureOfExchangeableTrees(MixtureVector, CategoricalVector):
    r"""A latent class, and given the class, blocks of exchangeable variables; each class has its own blocks, and its
    own tree over them.

    .. math::
        p(x) = \sum_{k=1}^K \pi_k p_k(T_k(x)) \prod_{b} \frac{1}{|S_{kb, T_{kb}(x)}|}, \qquad
        \pi = \mathrm{softmax}(\text{mixture\_logits}),

    with the distribution :math:`p_k` of the levels of class k, a junction tree. Trees without edges make it a
    categorical :class:`ExchangeableMixture`, blocks of one variable a :class:`MixtureOfJunctionTrees`. Values are as
    those of :class:`ExchangeableTree`, long integers of shape ``(..., n)``; the class is summed out.
    :class:`~pyro_structured.models.ExchangeableTreeMixture` learns such distributions.

    **Exact**: ``log_prob``, ``sample``, ``marginals``, ``marginals_of``, ``condition``, ``reweight``,
    ``marginal_log_prob`` and ``posterior``, at the cost of those of all components. ``mode`` and ``entropy`` of
    mixtures have no closed form: they are found by enumeration, up to ``2 ** 12`` values, and refused above.

    :param Tensor mixture_logits: Log-weights of the classes, shape ``(..., K)``, less than +inf.
    :param Tensor clique_logits: Log-weights of the joint levels of all cliques of blocks of the first class, then of
        the second one, and so on, each packed as by the ``pack`` of its tree's ``levels``; shape
        ``(..., sum of the trees' table_size)``; less than +inf; -inf where a combination is impossible.
    :param trees: The blocks of each class, their statistics, and their cliques; of the same variables.
    :raises ValueError: if a shape is wrong, there is a NaN or +inf, or the trees have other numbers of states. Where a
        class gives no value a positive probability, the first query raises.

    **References**

    Niepert, Domingos (2014): Exchangeable variable models. ICML. Definition 4.1; Problem 2.

    Example::

        >>> block, pairs = BlockTree.from_counts([[0, 1, 2]]), BlockTree.from_counts([[0, 1], [2]], cliques=[[0, 1]])
        >>> even = torch.tensor([0.0, -torch.inf, 0.0, -torch.inf])
        >>> both = torch.tensor([0.0, -torch.inf, -torch.inf, -torch.inf, -torch.inf, 0.0])  # three zeros or three ones
        >>> d = MixtureOfExchangeableTrees(torch.zeros(2), torch.cat([even, both]), [block, pairs])
        >>> d.log_prob(torch.tensor([[0, 0, 0], [0, 1, 1], [1, 1, 1]])).exp()
        tensor([0.5000, 0.0833, 0.2500])
        >>> d.posterior(torch.tensor([0, 1, 1])).probs
        tensor([1., 0.])
    """

    arg_constraints = {
        "mixture_logits": constraints.independent(constraints.less_than(torch.inf), 1),
        "clique_logits": constraints.independent(constraints.less_than(torch.inf), 1),
    }
    _derived = ("_free", "_given", "_log_evidence", "_kept", "_possible", "_class_weights")

    def __init__(
        self,
        mixture_logits: Tensor,
        clique_logits: Tensor,
        trees: Sequence[BlockTree],
        validate_args: bool | None = None,
    ) -> None:
        if not isinstance(trees, Sequence) or not trees or not all(isinstance(tree, BlockTree) for tree in trees):
            kinds = [type(tree).__name__ for tree in trees] if isinstance(trees, Sequence) else type(trees).__name__
            raise ValueError(f"trees: expected at least one BlockTree, got {kinds}")
        self.trees = tuple(trees)
        sizes = {tree.cardinalities for tree in self.trees}
        if len(sizes) > 1:
            raise ValueError(f"trees: expected the same variables, got different numbers of states, {sorted(sizes)}")
        batch_shape = joined_batch("mixture_logits", mixture_logits, [len(self.trees)], torch.Size())
        batch_shape = joined_batch("clique_logits", clique_logits, [sum(self._table_sizes)], batch_shape)
        self.mixture_logits, self.clique_logits = mixture_logits, clique_logits
        self._evidence = no_evidence(self.trees[0].num_variables, clique_logits.device)
        self._empty = EMPTY_SUPPORT.replace("clique_logits", "mixture_logits")
        super().__init__(batch_shape, torch.Size([self.trees[0].num_variables]), validate_args=validate_args)

    @staticmethod
    def infer_shapes(  # type: ignore[override]
        mixture_logits: torch.Size, clique_logits: torch.Size, trees: Sequence[BlockTree]
    ) -> tuple[torch.Size, torch.Size]:
        """Batch and event shape from the shapes of the parameters, and the trees themselves."""
        batch_shape = broadcast_shapes(mixture_logits[:-1], clique_logits[:-1])
        return torch.Size(batch_shape), torch.Size([trees[0].num_variables])

    @property
    def _table_sizes(self) -> list[int]:
        return [tree.table_size for tree in self.trees]

    @property
    def _num_states(self) -> tuple[int, ...]:
        return self.trees[0].cardinalities

    @lazy_property
    def _free(self) -> list[ExchangeableTree]:
        """Components without the evidence."""
        tables = self._parameter("clique_logits").split(self._table_sizes, -1)
        return [ExchangeableTree(*each, validate_args=False) for each in zip(tables, self.trees, strict=True)]

    @lazy_property
    def _class_weights(self) -> Tensor:
        return super()._class_weights

    def component(self, z: Tensor) -> "ExchangeableTree | MixtureOfExchangeableTrees":
        """Distribution given the class, and given the evidence of :meth:`condition` and :meth:`reweight`.

        A class that the evidence of one of these calls excludes keeps the distribution that it had before.

        :param Tensor z: Integers of a shape that broadcasts with ``batch_shape``, also enumerated ones.
        :return: Batch shape: that of ``z`` broadcast with ``batch_shape``. For a ``z`` without axes it is an
            :class:`ExchangeableTree`; otherwise, because blocks differ between classes, a mixture that has one class in
            each element of the batch.

        Example::

            >>> trees = [BlockTree.from_counts([[0, 1]]), BlockTree.from_counts([[0], [1]])]
            >>> equal, free = torch.tensor([0.0, -torch.inf, 0.0]), torch.zeros(4)
            >>> d = MixtureOfExchangeableTrees(torch.zeros(2), torch.cat([equal, free]), trees)
            >>> d.component(torch.arange(2)).log_prob(torch.tensor([1, 1])).exp()
            tensor([0.5000, 0.2500])
        """
        classes = self._checked_classes(z)
        logits = self._parameter("clique_logits")
        observations, weights = self._evidence_of(classes)
        if not z.dim():
            k = int(z)
            alone = ExchangeableTree(logits.split(self._table_sizes, -1)[k], self.trees[k], self._validate_args)
            given = alone.expand(self.batch_shape).condition(*observations)
            return given if weights is None else given.reweight(weights)
        others = torch.arange(len(self.trees), device=classes.device) != classes.unsqueeze(-1)
        certain = self.mixture_logits.new_zeros(()).masked_fill(others, -torch.inf)
        chosen = MixtureOfExchangeableTrees(certain, logits, self.trees, self._validate_args).condition(*observations)
        return chosen if weights is None else chosen.reweight(weights)

    @property
    def _single_marginals(self) -> Tensor:
        return self._mixed([component._single_marginals for component in self._possible])

    def _probabilities_of(self, wanted: Sequence[int]) -> Tensor:
        return self._mixed([component._probabilities_of(wanted) for component in self._possible])
