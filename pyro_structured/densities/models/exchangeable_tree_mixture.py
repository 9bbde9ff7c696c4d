"""Mixtures of trees of exchangeable blocks, as a density estimator."""

__all__ = ["ExchangeableTreeMixture"]

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from pyro_structured.densities.distributions.exchangeable_tree import ExchangeableTree
from pyro_structured.densities.distributions.mixture_of_exchangeable_trees import MixtureOfExchangeableTrees
from pyro_structured.densities.models.block_mixture_em import BlockMixtureEM
from pyro_structured.foundation.models.argument_checks import check_count
from pyro_structured.foundation.ops.processor import methods_on_processor
from pyro_structured.foundation.structures.argument_checks import check_choice, check_size
from pyro_structured.junction_trees.models.tree_mixture_density import TreeMixtureDensity
from pyro_structured.junction_trees.ops.categorical_rows import CategoricalRows

HANDLING = ("error", "missing")


@methods_on_processor
class ExchangeableTreeMixture(TreeMixtureDensity):
    r"""Density of categorical vectors: a mixture of trees of exchangeable blocks, learned from rows.

    .. math::
        p(x) = \sum_{j=1}^K w_j p_j(t_j) \prod_b \frac{1}{|S_{jb, t_{jb}}|}, \qquad
        p_j(t) = \prod_C p_j(t_C) \Big/ \prod_S p_j(t_S), \qquad t_j = T_j(x).

    Each component has its own partition of the columns into blocks, whose levels :math:`t_{jb}` say how many of the
    block's columns are of each category, and its own junction tree of these levels
    (:class:`~pyro_structured.distributions.ExchangeableTree`). Only columns with equally many categories come into one
    block; their categories are matched in their order. Columns may have any categories. Each start has components of
    rows that are similar to a random row, and continues by structural expectation maximisation, as
    :class:`JunctionTreeMixture` does: new structures are trees of single columns, of the present blocks, and of blocks
    that are merged, two at a time, as long as a penalised likelihood grows. A component's new structure is kept only if
    it is better for the rows that the component is responsible for. The objective, which never falls, is the
    log-likelihood, plus the logarithm of the prior that the smoothing amounts to, less :math:`\frac{c}{2} \log N` for
    each parameter. Of all iterations of all starts with all settings, the mixture is chosen that gives validation rows
    the largest probability.

    **Exact**: log-probabilities and responsibilities, also of rows with missing entries, and samples; learning needs
    complete rows (:class:`JunctionTreeMixture` does not). Each start leads to a local optimum.

    :param int n_components: Number K of components, at least 1.
    :param int treewidth: Largest treewidth of the trees of blocks, at least 0: 0, blocks are independent; 1, trees.
    :param int max_levels: Largest number of levels of a block of several columns, at least 1; s columns of r
        categories have :math:`\binom{s + r - 1}{r - 1}`, and an edge has a number for each pair of levels. With 1, no
        columns are merged, and components are junction trees.
    :param penalty: Price c of a parameter, at least 0, in units of the Bayesian information criterion. A number, or
        several to choose from.
    :param smoothing: Pseudo-observations of each component, more than 0: rows whose columns are independent, with their
        block's mean frequencies in all of the data, to each of which one row of every category is added. A number, or
        several to choose from.
    :param int n_init: Number of random starts with each setting, at least 1.
    :param float tol: Nats per row, at least 0: a smaller increase of the objective, also by new structures, ends the
        iterations.
    :param int max_iter: Largest number of iterations, at least 1.
    :param int n_iter_no_change: Number of iterations without a better validation score after which a start ends, at
        least 1.
    :param categories: As for :class:`ThinJunctionTree`.
    :param str handle_unknown: Categories that training rows, or ``categories``, do not have: ``"error"``, or
        ``"missing"``, which sums them out. There are no reserve states, which every block would have to count.
    :param n_jobs: Number of processes for the starts, as for scikit-learn; results are the same.
    :param verbose: ``None``: a progress bar if standard error is a terminal; ``True``: lines, too, where it is none;
        ``False``: neither.
    :param random_state: Seed, or ``numpy.random.RandomState``, of the starts, of the choice of validation rows, and of
        samples.
    :ivar weights\_: Weights of the components, shape ``(K,)``.
    :ivar trees\_: Blocks of the components, and their cliques (:class:`~pyro_structured.structures.BlockTree`);
        variables are numbered as the columns.
    :ivar components\_: The components as Pyro distributions (:class:`~pyro_structured.distributions.ExchangeableTree`)
        of codes, places in ``categories_``; in float64. :meth:`to_pyro` is their mixture.
    :ivar float penalty\_: The chosen penalty.
    :ivar float smoothing\_: The chosen smoothing.
    :ivar int n_iter\_: Number of iterations that led to the mixture, from its start.
    :ivar objectives\_: Objective after each of these iterations, per training row.
    :ivar candidates\_: The best mixture of each start, with its settings and score, in order.

    Cost of an iteration: O(K R m) for R different rows and m cliques of blocks. New structures take K times that of a
    junction tree of single columns, and of one of blocks, and O(R n) for each column and each merger.

    **References**

    Niepert, Domingos (2014): Exchangeable variable models. ICML. Definition 4.1; Problem 2.
    Meilă, Jordan (2000): Learning with mixtures of trees. JMLR 1.
    Friedman (1998): The Bayesian structural EM algorithm. UAI.

    Example::

        >>> X = np.random.default_rng(0).integers(3, size=(600, 2)).repeat(3, axis=1)  # two blocks of three equal ones
        >>> model = ExchangeableTreeMixture(n_components=1, random_state=0).fit(X)
        >>> model.trees_[0].groups
        ((0, 1, 2), (3, 4, 5))
        >>> np.exp(model.score_samples([[1, 1, 1, 2, 2, 2], [1, 1, 1, np.nan, np.nan, np.nan]])).round(1)
        array([0.1, 0.3])
    """

    def __init__(
        self,
        *,
        n_components: int = 10,
        treewidth: int = 1,
        max_levels: int = 64,
        penalty: float | Sequence[float] = 0.5,
        smoothing: float | Sequence[float] = 5.0,
        n_init: int = 1,
        tol: float = 1e-3,
        max_iter: int = 100,
        n_iter_no_change: int = 10,
        categories: str | int | Sequence[Any] = "auto",
        handle_unknown: str = "error",
        n_jobs: int | None = None,
        verbose: bool | None = None,
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.treewidth = treewidth
        self.max_levels = max_levels
        self.penalty = penalty
        self.smoothing = smoothing
        self.n_init = n_init
        self.tol = tol
        self.max_iter = max_iter
        self.n_iter_no_change = n_iter_no_change
        self.categories = categories
        self.handle_unknown = handle_unknown
        self.n_jobs = n_jobs
        self.verbose = verbose
        self.random_state = random_state

    def _settings(self) -> list[tuple[float, float]]:
        check_size("treewidth", self.treewidth, 0)
        check_count("max_levels", self.max_levels)
        check_choice("handle_unknown", self.handle_unknown, HANDLING)
        return super()._settings()

    def _learn_categories(self, X: Any, sample_weight: Any) -> tuple[np.ndarray, np.ndarray]:
        codes, weights = super()._learn_categories(X, sample_weight)
        if (codes < 0).any():
            raise ValueError(
                "X: expected complete rows to learn from, but Input X contains NaN, or values that are not among the "
                "given categories; JunctionTreeMixture takes gaps"
            )
        return codes, weights

    def _learner(
        self, training: CategoricalRows, judged: CategoricalRows, penalty: float, smoothing: float
    ) -> BlockMixtureEM:
        return BlockMixtureEM(
            self.max_levels, training, judged, self.treewidth, penalty, smoothing, self.tol, self.max_iter
        )

    def _without_unknown_values(self, component: ExchangeableTree) -> ExchangeableTree:
        return component

    def to_pyro(self) -> MixtureOfExchangeableTrees:
        """Density as a Pyro distribution of codes, places in ``categories_``; in float64."""
        check_is_fitted(self)
        tables = torch.cat([component.clique_logits for component in self.components_])
        return MixtureOfExchangeableTrees(torch.from_numpy(self._mixture.log_weights), tables, self.trees_)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = False
        return tags
