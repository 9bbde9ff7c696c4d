"""Base class of estimators that are mixtures of trees."""

__all__ = ["MixtureCandidate", "MixtureStart", "TreeMixtureDensity"]

import warnings
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from scipy.special import logsumexp, softmax
from sklearn.utils.validation import check_is_fitted

from pyro_structured.foundation.models.argument_checks import check_count, checked_numbers
from pyro_structured.foundation.models.old_spellings import old_spellings
from pyro_structured.foundation.models.random_states import checked_generator, torch_draws
from pyro_structured.foundation.models.shared_fit import lone_fit
from pyro_structured.foundation.ops.parallel_tasks import in_parallel
from pyro_structured.foundation.ops.processor import methods_on_processor
from pyro_structured.foundation.ops.progress import verbosity
from pyro_structured.foundation.ops.user_frame import frames_below_user
from pyro_structured.junction_trees.models.categorical_estimator import CategoricalDensity
from pyro_structured.junction_trees.models.tree_mixture_em import (
    TreeMixture,
    TreeMixtureEM,
    TreeMixturePhase,
    near_random_rows,
)
from pyro_structured.junction_trees.ops.categorical_rows import CategoricalRows

Density = TypeVar("Density", bound="TreeMixtureDensity")


class MixtureCandidate(NamedTuple):
    """Best mixture of a start.

    :ivar TreeMixture mixture: The components and their weights.
    :ivar float penalty: Price of a parameter, c.
    :ivar float smoothing: Number of pseudo-observations.
    :ivar float score: Mean log-probability of the validation rows, in nats.
    :ivar int num_iterations: Number of iterations that led to the mixture.
    :ivar objectives: Objective after each of these iterations, per training row.
    :ivar float stiffness: Price of the second differences of tables of counts; ``None`` without counts.
    """

    mixture: TreeMixture
    penalty: float
    smoothing: float
    score: float
    num_iterations: int
    objectives: list[float]
    stiffness: float | None = None


class MixtureLearner(Protocol):
    """Steps of a mixture."""

    def run(self, responsibilities: np.ndarray) -> Iterator[TreeMixturePhase]:
        """Mixture after each iteration, from probabilities of the components, shape ``(R, K)``."""


class MixtureStart(NamedTuple):
    """Start of a learner.

    :ivar MixtureLearner learner: The learner.
    :ivar np.ndarray responsibilities: Probabilities of the components to start from, shape ``(R, K)``.
    :ivar float penalty: As of :class:`MixtureCandidate`.
    :ivar float smoothing: As of :class:`MixtureCandidate`.
    :ivar int n_iter_no_change: Number of iterations without a better validation score that ends the start.
    :ivar float stiffness: As of :class:`MixtureCandidate`.
    """

    learner: MixtureLearner
    responsibilities: np.ndarray
    penalty: float
    smoothing: float
    n_iter_no_change: int
    stiffness: float | None = None


def _run_start(*settings: Any) -> tuple[MixtureCandidate | None, bool]:
    """Best mixture of a start, ``None`` if there was none before an interrupt from the keyboard, and whether there was
    an interrupt; arguments are those of :class:`MixtureStart`.
    """
    learner, responsibilities, penalty, smoothing, patience, stiffness = MixtureStart(*settings)
    best, objectives = None, []
    try:
        for phase in learner.run(responsibilities):
            objectives.append(phase.objective)
            if best is None or phase.score > best.score:
                number = len(objectives)
                reached = phase.score, number, objectives[:]
                best = MixtureCandidate(phase.mixture, penalty, smoothing, *reached, stiffness)
            elif len(objectives) - best.num_iterations >= patience:
                break
    except KeyboardInterrupt:
        return best, True
    return best, False


@methods_on_processor
class TreeMixtureDensity(CategoricalDensity):
    """Base class of mixtures of trees that are learned by :class:`TreeMixtureEM`, from several starts."""

    n_components: int
    penalty: float | Sequence[float]
    smoothing: float | Sequence[float]
    n_init: int
    tol: float
    max_iter: int
    n_iter_no_change: int
    n_jobs: int | None
    verbose: bool | None
    random_state: Any

    @abstractmethod
    def _learner(
        self, training: CategoricalRows, judged: CategoricalRows, penalty: float, smoothing: float
    ) -> TreeMixtureEM:
        """Learner with one setting."""

    @abstractmethod
    def _without_unknown_values(self, component: Any) -> Any:
        """Component given that all values are among the categories; its partition function keeps their share."""

    @old_spellings("X_val")
    @lone_fit
    def fit(self: Density, X: Any, y: Any = None, *, X_val: Any = None, sample_weight: Any = None) -> Density:
        """Learns components and their weights.

        An interrupt from the keyboard ends the iterations; the best mixture so far is kept.

        :param X: Categories, shape ``(N, n)``: an array, a tensor, a data frame, a sparse matrix, or a ``DataLoader``
            of torch, a table, file or dataset of pyarrow, which are read once.
        :param y: Not used.
        :param X_val: Validation rows, shape ``(M, n)``, on which the mixture is chosen. ``None``: a random tenth of the
            rows, from which nothing else is learned.
        :param sample_weight: Weights of the rows, from 0 to 1e290, not all 0, shape ``(N,)``: so many times a row
            counts.
        :raises ValueError: if a parameter is out of range, there are more components than rows to learn from, a column
            has no value, or there is a category that ``handle_unknown`` makes an error.
        :raises NotImplementedError: if values are missing where ``counts`` are wanted.
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
        starts = (
            MixtureStart(
                self._learner(training, judged, *setting),
                near_random_rows(training, self.n_components, generator),
                *setting,
                self.n_iter_no_change,
            )
            for setting in settings
            for _ in range(self.n_init)
        )
        self.candidates_: list[MixtureCandidate] = []
        try:
            with verbosity(self.verbose):
                self._try_starts(starts, len(settings) * self.n_init, "starts")
                further = self._further_starts(self._best, training, judged)
                if further:
                    self._try_starts(further, len(further), "counts")
        except KeyboardInterrupt:
            if not self.candidates_:
                raise
            message = "fit was interrupted: the best mixture so far is kept"
            warnings.warn(message, stacklevel=frames_below_user())
        self._mixture, self.penalty_, self.smoothing_, _, self.n_iter_, self.objectives_, _ = self._best
        self.weights_ = np.exp(self._mixture.log_weights)
        self.components_: list[Any] = list(self._mixture.components)
        self.trees_ = [component.tree for component in self.components_]
        return self

    @property
    def _best(self) -> MixtureCandidate:
        return max(self.candidates_, key=lambda candidate: candidate.score)

    def _try_starts(self, starts: Iterable[MixtureStart], number: int, name: str) -> None:
        for candidate, interrupted in in_parallel(_run_start, starts, number, self.n_jobs, desc=name, unit="start"):
            self.candidates_ += [] if candidate is None else [candidate]
            if interrupted:
                raise KeyboardInterrupt

    def _further_starts(
        self, best: MixtureCandidate, training: CategoricalRows, judged: CategoricalRows
    ) -> list[MixtureStart]:
        """Starts from the best mixture so far."""
        return []

    def _settings(self) -> list[tuple[float, float]]:
        """Checked pairs of penalty and smoothing that are tried."""
        for name in ("n_components", "n_init", "max_iter", "n_iter_no_change"):
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
        known = [self._without_unknown_values(component) for component in self.components_]
        kept = [
            given.log_partition_function - free.log_partition_function
            for given, free in zip(known, self.components_, strict=True)
        ]
        shares = torch.stack(kept).exp() * torch.from_numpy(self.weights_)
        codes = np.empty((n_samples, len(self.categories_)), dtype=np.int64)
        with torch_draws(self.random_state if random_state is None else random_state):
            chosen = torch.multinomial(shares, n_samples, replacement=True).numpy()
            for place, component in enumerate(known):
                rows = chosen == place
                codes[rows] = component.sample((int(rows.sum()),)).numpy()
        return self._decode(codes)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_mixture")
