"""Mixtures of junction trees, as a density estimator."""

__all__ = ["JunctionTreeMixture"]

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from scipy.special import softmax
from sklearn.utils.validation import check_is_fitted

from pyro_structured.foundation.models.argument_checks import check_count
from pyro_structured.foundation.models.old_spellings import old_parameters
from pyro_structured.foundation.ops.processor import methods_on_processor
from pyro_structured.foundation.structures.argument_checks import check_flag
from pyro_structured.junction_trees.distributions.counted_junction_tree import CountedJunctionTree
from pyro_structured.junction_trees.distributions.junction_tree import JunctionTree
from pyro_structured.junction_trees.distributions.mixture_of_junction_trees import MixtureOfJunctionTrees
from pyro_structured.junction_trees.models.counted_mixture_em import CountedMixtureEM
from pyro_structured.junction_trees.models.counted_tree_fitting import STIFFNESS, check_countable, count_rare_states
from pyro_structured.junction_trees.models.tree_fitting import without_rare_states
from pyro_structured.junction_trees.models.tree_mixture_density import (
    MixtureCandidate,
    MixtureStart,
    TreeMixtureDensity,
)
from pyro_structured.junction_trees.models.tree_mixture_em import SharedTreeMixtureEM, TreeMixtureEM
from pyro_structured.junction_trees.ops.categorical_rows import CategoricalRows


@old_parameters("n_components")
@methods_on_processor
class JunctionTreeMixture(TreeMixtureDensity):
    r"""Density of categorical vectors: a mixture of junction trees, each with cliques of its own, learned from rows.

    .. math::
        p(x) = \sum_{j=1}^K w_j p_j(x), \qquad p_j(x) = \prod_C p_j(x_C) \Big/ \prod_S p_j(x_S).

    Columns may have any categories, and missing values (NaN or None). Each start has components of rows that are
    similar to a random row, and continues by structural expectation maximisation: every iteration learns new weights
    and tables; the first one, every fifth, and those in which nothing else improves learn new structures, by adding the
    edge of largest gain that keeps a graph chordal and its cliques small. A component's new structure is kept only if
    it is better for the rows that the component is responsible for. The objective, which never falls, is the
    log-likelihood of the observed entries, plus the logarithm of the prior that the smoothing amounts to, less
    :math:`\frac{c}{2} \log N` for each parameter of the trees. Of all iterations of all starts with all settings, the
    mixture is chosen that gives validation rows the largest probability.

    **Exact**: the treewidth is never exceeded; log-probabilities, responsibilities, and samples, also where entries are
    missing. Each start leads to a local optimum.

    :param int n_components: Number K of components, at least 1. With one, the tree is that of :class:`ThinJunctionTree`
        with the same settings, apart from the prior.
    :param int treewidth: Largest treewidth, at least 1; 1 makes mixtures of trees.
    :param bool shared_tree: Whether all components have the same cliques, those that fit best to all of them together.
    :param bool counts: Whether potentials are tried on the numbers of variables, in the subtrees of at least six of
        them and in all, that are not in their first category: ones, of zeros and ones. Starting from the best mixture,
        whose cliques are kept, each component learns tables of its own, by further expectation maximisation; they are
        kept only if validation rows get a larger probability. Missing values are refused in ``fit`` then.
    :param penalty: Price c of a parameter, at least 0, in units of the Bayesian information criterion. A number, or
        several to choose from.
    :param smoothing: Pseudo-observations of each component, more than 0: rows whose columns are independent, with their
        frequencies in all of the data, to each of which one row of every category is added. A number, or several to
        choose from.
    :param int n_init: Number of random starts with each setting, at least 1.
    :param float tol: Nats per row, at least 0: a smaller increase of the objective, also by new structures, ends the
        iterations.
    :param int max_iter: Largest number of iterations, at least 1.
    :param int n_iter_no_change: Number of iterations without a better validation score after which a start ends, at
        least 1.
    :param categories: As for :class:`ThinJunctionTree`.
    :param str handle_unknown: As for :class:`ThinJunctionTree`.
    :param n_jobs: Number of processes for the starts, as for scikit-learn; results are the same.
    :param verbose: ``None``: a progress bar if standard error is a terminal; ``True``: lines, too, where it is none;
        ``False``: neither.
    :param random_state: Seed, or ``numpy.random.RandomState``, of the starts, of the choice of validation rows, and of
        samples.
    :ivar weights\_: Weights of the components, shape ``(K,)``.
    :ivar trees\_: Cliques of the components; variables are numbered as the columns.
    :ivar components\_: The components as Pyro distributions (:class:`~pyro_structured.distributions.JunctionTree`, or
        :class:`~pyro_structured.distributions.CountedJunctionTree`) of codes, places in ``categories_``; in float64.
        :meth:`to_pyro` is their mixture.
    :ivar float penalty\_: The chosen penalty.
    :ivar float smoothing\_: The chosen smoothing.
    :ivar int n_iter\_: Number of iterations that led to the mixture, from its start; where counts are kept, from the
        mixture without.
    :ivar objectives\_: Objective after each of these iterations, per training row.
    :ivar candidates\_: The best mixture of each start, with its settings and score, in order; then those with counts.

    Cost of an iteration: O(K R m) for R different rows and m cliques, where nothing is missing; otherwise O(K R s) for
    tables of s entries. New structures take time as for :class:`ThinJunctionTree`, K times, with the rows that a
    component is responsible for. With ``counts``, four prices of rough tables are tried, each with up to ``max_iter``
    iterations, in which each component makes ten to twenty passes of its :class:`CountedJunctionTree`. Memory: K R m
    bytes for cliques of up to 256 states.

    **References**

    Meilă, Jordan (2000): Learning with mixtures of trees. JMLR 1.
    Friedman (1998): The Bayesian structural EM algorithm. UAI.

    Example::

        >>> import numpy as np
        >>> import pyro
        >>> rng = np.random.default_rng(0)
        >>> kind, a, b = rng.integers(2, size=(3, 1000))
        >>> X = np.stack([a, np.where(kind, a, b), np.where(kind, b, a), kind, kind], 1)
        >>> model = JunctionTreeMixture(n_components=2, treewidth=1, random_state=0).fit(X)
        >>> responsibilities = model.predict_proba([[0, 0, 1, 1, 1], [0, 1, np.nan, 0, np.nan]]).round(1)
        >>> bool((responsibilities.max(1) == 1).all() and (responsibilities.sum(0) == 1).all())
        True

    Codes of it inside a Pyro model::

        >>> def mixture(codes):
        ...     with pyro.plate("rows", len(codes)):
        ...         return pyro.sample("x", model.to_pyro(), obs=codes)
        >>> codes = torch.tensor([[0, 0, 1, 1, 1], [0, 1, 1, 0, 0]])
        >>> log_prob = pyro.poutine.trace(mixture).get_trace(codes).log_prob_sum()
        >>> bool(np.isclose(log_prob, model.score_samples(codes).sum()))
        True
    """

    def __init__(
        self,
        *,
        n_components: int = 10,
        treewidth: int = 2,
        shared_tree: bool = False,
        counts: bool = False,
        penalty: float | Sequence[float] = 0.5,
        smoothing: float | Sequence[float] = 5.0,
        n_init: int = 1,
        tol: float = 1e-3,
        max_iter: int = 100,
        n_iter_no_change: int = 10,
        categories: str | int | Sequence[Any] = "auto",
        handle_unknown: str = "other",
        n_jobs: int | None = None,
        verbose: bool | None = None,
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.treewidth = treewidth
        self.shared_tree = shared_tree
        self.counts = counts
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
        check_count("treewidth", self.treewidth)
        for name in ("shared_tree", "counts"):
            check_flag(name, getattr(self, name))
        return super()._settings()

    def _learn_categories(self, X: Any, sample_weight: Any) -> tuple[np.ndarray, np.ndarray]:
        codes, weights = super()._learn_categories(X, sample_weight)
        if self.counts:
            check_countable(bool((codes >= 0).all()))
        return codes, weights

    def _learner(
        self, training: CategoricalRows, judged: CategoricalRows, penalty: float, smoothing: float
    ) -> TreeMixtureEM:
        kind = SharedTreeMixtureEM if self.shared_tree else TreeMixtureEM
        return kind(training, judged, self.treewidth, penalty, smoothing, self.tol, self.max_iter)

    def _further_starts(
        self, best: MixtureCandidate, training: CategoricalRows, judged: CategoricalRows
    ) -> list[MixtureStart]:
        components: list[Any] = list(best.mixture.components)
        if not self.counts or not count_rare_states(components[0].tree):
            return []
        learner = self._learner(training, judged, best.penalty, best.smoothing)
        responsibilities = softmax(best.mixture.log_joint(training.values.T), axis=1)
        settings = responsibilities, best.penalty, best.smoothing, self.n_iter_no_change
        return [
            MixtureStart(CountedMixtureEM(learner, components, stiffness), *settings, stiffness)
            for stiffness in STIFFNESS
        ]

    @property
    def counted_(self) -> list[Any]:
        """Lists of the counted pairs ``(variable, state)`` of each component; no lists where no counts are kept."""
        check_is_fitted(self)
        return [list(map(list, each.counted)) for each in self.components_ if isinstance(each, CountedJunctionTree)]

    def _without_unknown_values(
        self, component: JunctionTree | CountedJunctionTree
    ) -> JunctionTree | CountedJunctionTree:
        return without_rare_states(component, self._num_known, self._num_states)

    def to_pyro(self) -> MixtureOfJunctionTrees:
        """Density as a Pyro distribution of codes: places in ``categories_``, and the place after them for unknown
        values, where a column has a state for them; in float64.
        """
        check_is_fitted(self)
        tables = torch.cat([component.clique_logits for component in self.components_])
        log_weights, counts = torch.from_numpy(self._mixture.log_weights), None
        if self.counted_:
            counts = torch.cat([component.count_logits for component in self.components_])
        return MixtureOfJunctionTrees(log_weights, tables, self.trees_, counts, self.counted_ or None)
