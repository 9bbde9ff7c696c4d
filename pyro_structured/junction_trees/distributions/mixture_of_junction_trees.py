"""Mixtures of junction trees whose cliques differ."""

__all__ = ["MixtureOfJunctionTrees"]

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import constraints
from torch.distributions.utils import lazy_property

from pyro_structured.foundation.distributions.argument_checks import joined_batch
from pyro_structured.foundation.distributions.categorical_vector import CategoricalVector
from pyro_structured.foundation.distributions.mixture_vector import MixtureVector
from pyro_structured.foundation.ops.evidence import no_evidence
from pyro_structured.foundation.ops.vmap_rows import broadcast_shapes
from pyro_structured.junction_trees.distributions.counted_junction_tree import CountedJunctionTree, counted_plan
from pyro_structured.junction_trees.distributions.junction_tree import EMPTY_SUPPORT, JunctionTree
from pyro_structured.junction_trees.structures.clique_tree import CliqueTree


class MixtureOfJunctionTrees(MixtureVector, CategoricalVector):
    r"""Mixture of junction trees, each component with cliques of its own.

    .. math::
        p(x) = \sum_{k=1}^K \pi_k \frac{1}{Z_k} \exp\Bigl(\sum_{C \in \mathcal{T}_k} \theta_{kC}(x_C)\Bigr), \qquad
        \pi = \mathrm{softmax}(\text{mixture\_logits}).

    With ``count_logits``, components are :class:`CountedJunctionTree`: tables of counts are added to their exponents.
    Values are as those of :class:`JunctionTree`, long integers of shape ``(..., n)``; the component is summed out.
    :class:`~pyro_structured.models.JunctionTreeMixture` learns such distributions.

    **Exact**: ``log_prob``, ``sample``, ``marginals``, ``marginals_of``, ``condition``, ``reweight``,
    ``marginal_log_prob`` and ``posterior``, at the cost of those of all components' trees. ``mode`` and ``entropy`` of
    mixtures have no closed form: they are found by enumeration, up to ``2 ** 12`` values, and refused above.

    :param Tensor mixture_logits: Log-weights of the components, shape ``(..., K)``, less than +inf.
    :param Tensor clique_logits: Log-weights of the joint states of all cliques of the first component's tree, then of
        the second one's, and so on, each packed as by :meth:`~pyro_structured.structures.CliqueTree.pack`; shape
        ``(..., sum of the trees' table_size)``; less than +inf; -inf where a state is impossible.
    :param trees: The cliques of each component, of the same variables.
    :param Tensor count_logits: Tables of counts of the first component, then of the second one, and so on, each as for
        :class:`CountedJunctionTree`; shape ``(..., sum of their sizes)``; ``None`` without counts.
    :param counted: For each component, what is counted, as for :class:`CountedJunctionTree`; an empty list if nothing
        is. ``None`` without counts.
    :raises ValueError: if a shape is wrong, there is a NaN or +inf, the trees have other numbers of states, or what is
        counted does not fit to a tree. Where a component gives no value a positive probability, the first query raises.

    **References**

    Meilă, Jordan (2000): Learning with mixtures of trees. JMLR 1.

    Example::

        >>> trees = [CliqueTree([[0, 1], [2]], [2, 2, 2]), CliqueTree([[0], [1, 2]], [2, 2, 2])]
        >>> same, free = torch.eye(2).log(), torch.zeros(2)
        >>> d = MixtureOfJunctionTrees(
        ...     torch.zeros(2), torch.cat([trees[0].pack([same, free]), trees[1].pack([free, same])]), trees
        ... )
        >>> d.log_prob(torch.tensor([0, 0, 1])).exp()
        tensor(0.1250)
        >>> d.posterior(torch.tensor([0, 0, 1])).probs
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
        trees: Sequence[CliqueTree],
        count_logits: Tensor | None = None,
        counted: Sequence[Any] | None = None,
        validate_args: bool | None = None,
    ) -> None:
        if not isinstance(trees, Sequence) or not trees or not all(isinstance(tree, CliqueTree) for tree in trees):
            kinds = [type(tree).__name__ for tree in trees] if isinstance(trees, Sequence) else type(trees).__name__
            raise ValueError(f"trees: expected at least one CliqueTree, got {kinds}")
        self.trees = tuple(trees)
        sizes = {tree.cardinalities for tree in self.trees}
        if len(sizes) > 1:
            raise ValueError(f"trees: expected the same variables, got different numbers of states, {sorted(sizes)}")
        batch_shape = joined_batch("mixture_logits", mixture_logits, [len(self.trees)], torch.Size())
        batch_shape = joined_batch("clique_logits", clique_logits, [sum(self._table_sizes)], batch_shape)
        self.mixture_logits, self.clique_logits, self.count_logits = mixture_logits, clique_logits, count_logits
        self.counted = None if counted is None else _checked_families(counted, self.trees)
        if (count_logits is None) != (counted is None):
            raise ValueError(
                "count_logits: expected a tensor where something is counted, and None otherwise, got "
                f"{type(count_logits).__name__} with counted of type {type(counted).__name__}"
            )
        if count_logits is not None:
            batch_shape = joined_batch("count_logits", count_logits, [sum(self._count_sizes)], batch_shape)
            self.arg_constraints = {**self.arg_constraints, "count_logits": self.arg_constraints["clique_logits"]}
        self._evidence = no_evidence(self.trees[0].num_variables, clique_logits.device)
        self._empty = EMPTY_SUPPORT.replace("clique_logits", "mixture_logits")
        super().__init__(batch_shape, torch.Size([self.trees[0].num_variables]), validate_args=validate_args)

    @staticmethod
    def infer_shapes(  # type: ignore[override]
        mixture_logits: torch.Size,
        clique_logits: torch.Size,
        trees: Sequence[CliqueTree],
        count_logits: torch.Size | None = None,
        counted: Any = None,
    ) -> tuple[torch.Size, torch.Size]:
        """Batch and event shape from the shapes of the parameters, and the trees themselves."""
        shapes = [mixture_logits, clique_logits, *([] if count_logits is None else [count_logits])]
        batch_shape = broadcast_shapes(*(shape[:-1] for shape in shapes))
        return torch.Size(batch_shape), torch.Size([trees[0].num_variables])

    @property
    def _table_sizes(self) -> list[int]:
        return [tree.table_size for tree in self.trees]

    @property
    def _count_sizes(self) -> list[int]:
        """Sizes of the components' tables of counts."""
        families = self.counted or ()
        return [sum(len({d for d, _ in pairs}) + 1 for pairs in family) for family in families]

    @property
    def _num_states(self) -> tuple[int, ...]:
        return self.trees[0].cardinalities

    @lazy_property
    def _free(self) -> list[JunctionTree] | list[CountedJunctionTree]:
        """Components without the evidence."""
        tables = self._parameter("clique_logits").split(self._table_sizes, -1)
        if self.counted is None:
            return [JunctionTree(*each, validate_args=False) for each in zip(tables, self.trees, strict=True)]
        numbers = self._parameter("count_logits").split(self._count_sizes, -1)
        parts = zip(tables, self.trees, numbers, self.counted, strict=True)
        return [CountedJunctionTree(*each, validate_args=False) for each in parts]

    @lazy_property
    def _class_weights(self) -> Tensor:
        return super()._class_weights

    def component(self, z: Tensor) -> "JunctionTree | CountedJunctionTree | MixtureOfJunctionTrees":
        """Distribution given the class, and given the evidence of :meth:`condition` and :meth:`reweight`.

        A class that the evidence of one of these calls excludes keeps the distribution that it had before.

        :param Tensor z: Integers of a shape that broadcasts with ``batch_shape``, also enumerated ones.
        :return: Batch shape: that of ``z`` broadcast with ``batch_shape``. For a ``z`` without axes it is a
            :class:`JunctionTree` or :class:`CountedJunctionTree`; otherwise, because cliques differ between classes, a
            mixture that has one class in each element of the batch.

        Example::

            >>> trees = [CliqueTree([[0, 1]], [2, 2]), CliqueTree([[0], [1]], [2, 2])]
            >>> logits = torch.cat([trees[0].pack([torch.eye(2).log()]), torch.zeros(4)])
            >>> d = MixtureOfJunctionTrees(torch.zeros(2), logits, trees)
            >>> d.component(torch.arange(2)).log_prob(torch.tensor([1, 1])).exp()
            tensor([0.5000, 0.2500])
        """
        classes = self._checked_classes(z)
        observations, weights = self._evidence_of(classes)
        if not z.dim():
            alone = self._free[int(z)].expand(self.batch_shape)
            alone._validate_args = self._validate_args
            given = alone.condition(*observations)
            return given if weights is None else given.reweight(weights)
        others = torch.arange(len(self.trees), device=classes.device) != classes.unsqueeze(-1)
        certain = self.mixture_logits.new_zeros(()).masked_fill(others, -torch.inf)
        counts = None if self.counted is None else self._parameter("count_logits")
        chosen = MixtureOfJunctionTrees(
            certain, self._parameter("clique_logits"), self.trees, counts, self.counted, self._validate_args
        ).condition(*observations)
        return chosen if weights is None else chosen.reweight(weights)

    @property
    def _single_marginals(self) -> Tensor:
        return self._mixed([component._single_marginals for component in self._possible])

    def _probabilities_of(self, wanted: Sequence[int]) -> Tensor:
        return self._mixed([component._probabilities_of(wanted) for component in self._possible])


def _checked_families(counted: Any, trees: Sequence[CliqueTree]) -> tuple[tuple[tuple[tuple[int, int], ...], ...], ...]:
    """What each component counts, or a ValueError that names the component."""
    if not isinstance(counted, Sequence) or len(counted) != len(trees):
        got = len(counted) if isinstance(counted, Sequence) else type(counted).__name__
        raise ValueError(f"counted: expected a list for each of the {len(trees)} components, got {got}")
    families = []
    for k, (own, tree) in enumerate(zip(counted, trees, strict=True)):
        try:
            families.append(counted_plan(tree, own)[0])
        except ValueError as error:
            raise ValueError(f"{error}, of component {k}") from None
    return tuple(families)
