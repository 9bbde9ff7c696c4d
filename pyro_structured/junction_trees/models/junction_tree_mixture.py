"""Mixtures of junction trees, as a density estimator."""

__all__ = ["JunctionTreeMixture"]

import warnings
from collections.abc import Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.special import logsumexp, softmax
from sklearn.utils.validation import check_is_fitted

from pyro_structured.foundation.models.argument_checks import check_count, checked_numbers
from pyro_structured.foundation.models.old_spellings import old_parameters, old_spellings
from pyro_structured.foundation.models.parallel_tasks import in_parallel
from pyro_structured.foundation.models.random_states import checked_generator, torch_draws
from pyro_structured.foundation.ops.progress import verbosity
from pyro_structured.foundation.ops.user_frame import frames_below_user
from pyro_structured.junction_trees.distributions.mixture_of_junction_trees import MixtureOfJunctionTrees
from pyro_structured.junction_trees.models.categorical_estimator import CategoricalDensity
from pyro_structured.junction_trees.models.tree_fitting import without_rare_states
from pyro_structured.junction_trees.models.tree_mixture_em import TreeMixture, TreeMixtureEM, near_random_rows


class MixtureCandidate(NamedTuple):
    """Best mixture of a start.

    :ivar TreeMixture mixture: The components and their weights.
    :ivar float penalty: Price of a parameter, c.
    :ivar float smoothing: Number of pseudo-observations.
    :ivar float score: Mean log-probability of the validation rows, in nats.
    :ivar int num_iterations: Number of iterations that led to the mixture.
    :ivar objectives: Objective after each of these iterations, per training row.
    """

    mixture: TreeMixture
    penalty: float
    smoothing: float
    score: float
    num_iterations: int
    objectives: list[float]


def _run_start(
    learner: TreeMixtureEM, responsibilities: np.ndarray, penalty: float, smoothing: float, n_iter_no_change: int
) -> tuple[MixtureCandidate | None, bool]:
    """Best mixture of a start, ``None`` if there was none before an interrupt from the keyboard, and whether there was
    an interrupt.

    :param np.ndarray responsibilities: Probabilities of the components to start from, shape ``(R, K)``.
    """
    best, objectives = None, []
    try:
        for phase in learner.run(responsibilities):
            objectives.append(phase.objective)
            if best is None or phase.score > best.score:
                number = len(objectives)
                best = MixtureCandidate(phase.mixture, penalty, smoothing, phase.score, number, objectives[:])
            elif len(objectives) - best.num_iterations >= n_iter_no_change:
                break
    except KeyboardInterrupt:
        return best, True
    return best, False


@old_parameters("n_components")
class JunctionTreeMixture(CategoricalDensity):
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
    :ivar components\_: The components as Pyro distributions (:class:`~pyro_structured.distributions.JunctionTree`) of
        codes, places in ``categories_``; in float64. :meth:`to_pyro` is their mixture.
    :ivar float penalty\_: The chosen penalty.
    :ivar float smoothing\_: The chosen smoothing.
    :ivar int n_iter\_: Number of iterations that led to the mixture, from its start.
    :ivar objectives\_: Objective after each of these iterations, per training row.
    :ivar candidates\_: The best mixture of each start, with its settings and score, in order.

    Cost of an iteration: O(K R m) for R different rows and m cliques, where nothing is missing; otherwise O(K R s) for
    tables of s entries. New structures take time as for :class:`ThinJunctionTree`, K times, with the rows that a
    component is responsible for. Memory: K R m bytes for cliques of up to 256 states.

    **References**

    Meilă, Jordan (2000): Learning with mixtures of trees. JMLR 1.
    Friedman (1998): The Bayesian structural EM algorithm. UAI.

    Example::

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

    @old_spellings("X_val")
    def fit(self, X: Any, y: Any = None, *, X_val: Any = None, sample_weight: Any = None) -> "JunctionTreeMixture":
        """Learns components and their weights.

        An interrupt from the keyboard ends the iterations; the best mixture so far is kept.

        :param X: Categories, shape ``(N, n)``.
        :param y: Not used.
        :param X_val: Validation rows, shape ``(M, n)``, on which the mixture is chosen. ``None``: a random tenth of the
            rows, from which nothing else is learned.
        :param sample_weight: Weights of the rows, from 0 to 1e290, not all 0, shape ``(N,)``: so many times a row
            counts.
        :raises ValueError: if a parameter is out of range, there are more components than rows to learn from, a column
            has no value, or there is a category that ``handle_unknown`` makes an error.
        """
        settings = self._settings()
        codes, weights = self._learn_categories(X, sample_weight)
        generator = checked_generator(self.random_state)
        training, judged = self._divide(codes, weights, X_val, generator)
        number = max(round(training.total), len(training.weights))
        if number < self.n_components:
            raise ValueError(
                f"n_components: expected at most as many as rows to learn from, n_samples = {number}, got "
                f"{self.n_components}"
            )
        self.candidates_: list[MixtureCandidate] = []
        tasks = (
            (
                TreeMixtureEM(training, judged, self.treewidth, *setting, self.tol, self.max_iter),
                near_random_rows(training, self.n_components, generator),
                *setting,
                self.n_iter_no_change,
            )
            for setting in settings
            for _ in range(self.n_init)
        )
        try:
            with verbosity(self.verbose):
                total, shown = len(settings) * self.n_init, {"desc": "starts", "unit": "start"}
                for candidate, interrupted in in_parallel(_run_start, tasks, total, self.n_jobs, **shown):
                    self.candidates_ += [] if candidate is None else [candidate]
                    if interrupted:
                        raise KeyboardInterrupt
        except KeyboardInterrupt:
            if not self.candidates_:
                raise
            message = "fit was interrupted: the best mixture so far is kept"
            warnings.warn(message, stacklevel=frames_below_user())
        best = max(self.candidates_, key=lambda candidate: candidate.score)
        self._mixture, self.penalty_, self.smoothing_, _, self.n_iter_, self.objectives_ = best
        self.weights_ = np.exp(self._mixture.log_weights)
        self.components_ = list(self._mixture.components)
        self.trees_ = [component.tree for component in self.components_]
        return self

    def _settings(self) -> list[tuple[float, float]]:
        for name in ("n_components", "treewidth", "n_init", "max_iter", "n_iter_no_change"):
            check_count(name, getattr(self, name))
        if len(checked_numbers("tol", self.tol)) != 1:
            raise ValueError(f"tol: expected one number, got {self.tol!r}")
        smoothings = checked_numbers("smoothing", self.smoothing)
        if 0 in smoothings:
            raise ValueError(f"smoothing: expected more than 0, got {self.smoothing!r}")
        return list(product(checked_numbers("penalty", self.penalty), smoothings))

    def score_samples(self, X: Any) -> np.ndarray:
        """Log-probabilities of rows, in nats; missing entries are summed out.

        :param X: Categories, shape ``(N, n)``.
        :raises ValueError: if there is a category that ``handle_unknown`` makes an error.
        """
        log_probs: np.ndarray = logsumexp(self._log_joint(X), axis=1)
        return log_probs

    def predict(self, X: Any) -> np.ndarray:
        """Most probable component of each row, given the entries that are not missing, shape ``(N,)``."""
        components: np.ndarray = self._log_joint(X).argmax(1)
        return components

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities of the components, given the entries of a row that are not missing.

        :param X: Categories and gaps, shape ``(N, n)``.
        :return: Shape ``(N, K)``.
        """
        responsibilities: np.ndarray = softmax(self._log_joint(X), axis=1)
        return responsibilities

    def _log_joint(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        return self._mixture.log_joint(self._read(X))

    def sample(self, n_samples: int = 1, random_state: Any = None) -> np.ndarray:
        """Draws rows of categories, shape ``(n_samples, n)``, given that no value is an unknown one.

        :param int n_samples: Number of rows, at least 1.
        :param random_state: Seed, with which two calls draw the same, or ``numpy.random.RandomState``; torch's
            generator stays as it is. ``None``: that of the constructor; if this is ``None``, too, torch's generator.
        :raises ValueError: if an argument is of another kind.
        """
        check_is_fitted(self)
        check_count("n_samples", n_samples)
        known = [without_rare_states(distribution, self._num_known) for distribution in self.components_]
        shares = torch.stack([distribution.log_partition_function for distribution in known]).exp() * torch.from_numpy(
            self.weights_
        )
        codes = np.empty((n_samples, len(self.categories_)), dtype=np.int64)
        with torch_draws(self.random_state if random_state is None else random_state):
            chosen = torch.multinomial(shares, n_samples, replacement=True).numpy()
            for place, component in enumerate(known):
                rows = chosen == place
                codes[rows] = component.sample((int(rows.sum()),)).numpy()
        return self._decode(codes)

    def to_pyro(self) -> MixtureOfJunctionTrees:
        """Density as a Pyro distribution of codes: places in ``categories_``, and the place after them for unknown
        values, where a column has a state for them; in float64.
        """
        check_is_fitted(self)
        tables = torch.cat([component.clique_logits for component in self.components_])
        return MixtureOfJunctionTrees(torch.from_numpy(self._mixture.log_weights), tables, self.trees_)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_mixture")
