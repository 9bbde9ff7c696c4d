"""Density estimation with mixtures of exchangeable variable models."""

__all__ = ["MEVMDensity"]

import warnings
from typing import Any

import numpy as np
from scipy.special import logsumexp
from sklearn.base import DensityMixin
from sklearn.utils.validation import check_is_fitted
from tqdm import tqdm

from pyro_structured.exchangeable.models.binary_estimator import BlockEstimator
from pyro_structured.exchangeable.ops.binary_rows import BinaryRows
from pyro_structured.foundation.models.argument_checks import check_count
from pyro_structured.foundation.models.random_states import checked_generator

# Classes beyond the number of rows are empty, and so many numbers of theirs no memory holds.
FEW_CLASSES, MOST_SHARES = 2**12, 2**30


class MEVMDensity(DensityMixin, BlockEstimator):  # type: ignore[misc]
    r"""Mixture of exchangeable variable models: a latent class, and blocks of exchangeable variables in every class.

    .. math::
        p(x) = \sum_{k=1}^K p(k) \prod_{b \in \mathcal{X}_k} q_{kb}(t_b) \binom{n_b}{t_b}^{-1}, \qquad
        t_b = \sum_{d \in b} x_d.

    Parameters and blocks are learned by structural expectation maximisation, from several random starts: new blocks are
    kept only if the objective, the log-likelihood and the prior that the smoothing amounts to, is larger with them.
    Each start ends in a local optimum; of all mixtures whose parameters had settled, that of the largest log-likelihood
    is chosen. Equal rows are counted once; an iteration costs two to four times as much as one for a mixture of
    independent variables with the same number of classes, or as much where most blocks have one variable. Missing
    values (NaN) are summed out; if a row has g of them, that takes memory O(g K n): about 60 bytes times g K n, or
    times s K n if no block has more than s < g variables.
    Merging from single variables takes memory O(N n + n²), for :func:`merge_partition`.

    :param int n_components: Number of classes K.
    :param str structure: ``"merge"`` finds blocks by :func:`merge_partition`, whenever the parameters have settled, and
        starts with independent variables. ``"welch"`` finds them by :func:`welch_partition` in every iteration, as in
        the paper. ``"welch+merge"`` merges the latter's. ``"independent"`` is a latent naive Bayes model.
    :param float smoothing: Added to the number of rows of every value, and of every count of a block, in every class.
    :param float tol: Nats per row: a smaller increase of the objective ends the iterations.
    :param int max_iter: Largest number of iterations.
    :param int n_init: Number of random starts. The best mixture has the largest log-likelihood: of the validation rows,
        if there are any.
    :param binarize: Values above this number are ones. ``"auto"``: above 0, with a warning if there are others than 0
        and 1. ``None``: values have to be zeros and ones.
    :param float level: Significance level of Welch's tests.
    :param str linkage: Which means are compared; see :func:`welch_partition`.
    :param str correction: Of the level; see :func:`welch_partition`.
    :param random_state: Seed, or ``numpy.random.RandomState``, of the random starts.
    :ivar n_iter\_: Iterations that led to the mixture, from its start.
    :ivar weights\_: Probabilities of the classes, shape ``(K,)``.
    :ivar partition\_: Blocks of all classes, a :class:`~pyro_structured.structures.Partition` of batch shape ``(K,)``.

    **References**

    Niepert, Domingos (2014): Exchangeable variable models. ICML. Definition 4.1, Theorem 4.2, Algorithm 1. There, rows
    are dealt to the classes at random; here, distinct rows are.

    Example::

        >>> X = np.random.default_rng(0).integers(2, size=(1000, 3)).repeat(2, axis=1)
        >>> density = MEVMDensity(n_components=1).fit(X)
        >>> density.partition_[0].blocks()
        [[0, 1], [2, 3], [4, 5]]
        >>> np.exp(density.score_samples([[1, 1, 0, 0, 1, 1], [1, 1, 0, 0, np.nan, np.nan]])).round(2)
        array([0.12, 0.24])
    """

    def __init__(
        self,
        n_components: int = 20,
        *,
        structure: str = "merge",
        smoothing: float = 0.1,
        tol: float = 1e-3,
        max_iter: int = 500,
        n_init: int = 10,
        binarize: float | str | None = "auto",
        level: float = 0.1,
        linkage: str = "anchor",
        correction: str = "none",
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.structure = structure
        self.smoothing = smoothing
        self.tol = tol
        self.max_iter = max_iter
        self.n_init = n_init
        self.binarize = binarize
        self.level = level
        self.linkage = linkage
        self.correction = correction
        self.random_state = random_state

    def fit(self, X: Any, y: None = None, sample_weight: Any = None, X_val: Any = None) -> "MEVMDensity":
        """Learns blocks and parameters.

        An interrupt from the keyboard ends the iterations; the best mixture so far is kept.

        :param X: Zeros and ones, or numbers that are binarised, dense or sparse, shape ``(N, n)``; NaN if missing.
        :param y: Ignored.
        :param sample_weight: Weights of the rows, from 0 to 1e290, not all 0: so many times a row counts.
        :param X_val: Validation rows. The best of all starts, and of all numbers of structure steps, is chosen by them.
        """
        self._check_parameters()
        check_count("n_components", self.n_components)
        check_count("n_init", self.n_init)
        values = self._binarized(self._validate(X, reset=True))
        weights = self._check_weights(sample_weight, values)
        rows, _ = BinaryRows.from_matrix(values[weights > 0], weights[weights > 0]).merged()
        most = min(max(len(rows), FEW_CLASSES), MOST_SHARES // max(len(rows), rows.num_variables))
        check_count("n_components", self.n_components, most)
        held_out = None if X_val is None else self._read_held_out(X_val).merged()[0]
        rng = np.random.default_rng(checked_generator(self.random_state).randint(2**31))
        learner = self._learner(rows)
        best, reached = None, -np.inf
        try:
            for _ in tqdm(range(self.n_init), desc="starts", unit="start", disable=None, leave=False):
                for phase in learner.run(self._deal(len(rows), rng), rng):
                    score = phase.log_likelihood
                    if held_out is not None:
                        score = float(held_out.weights @ logsumexp(phase.mixture.log_joint(held_out), 1))
                    if best is None or score > reached:
                        best, reached = phase, score
        except KeyboardInterrupt:
            if best is None:
                raise
            warnings.warn("fit was interrupted: the best mixture so far is kept", stacklevel=2)
        assert best is not None
        self._mixture, self.n_iter_ = best.mixture, best.num_iterations
        self.weights_ = np.exp(self._mixture.parameters.log_classes)
        self.partition_ = self._mixture.partition
        return self

    def _deal(self, number: int, rng: np.random.Generator) -> np.ndarray:
        """Rows dealt to the classes at random, as probabilities of the classes."""
        classes = rng.permutation(np.arange(number) % self.n_components)
        posterior: np.ndarray = np.equal.outer(np.arange(self.n_components), classes).astype(np.float64)
        return posterior

    def _log_joint(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        return self._mixture.log_joint(self._read(X))

    def score_samples(self, X: Any) -> np.ndarray:
        """Log-probabilities of rows, shape ``(N,)``; missing values (NaN) are summed out."""
        scores: np.ndarray = logsumexp(self._log_joint(X), axis=1)
        return scores

    def score(self, X: Any, y: None = None, sample_weight: Any = None) -> float:
        """Mean log-probability of rows."""
        scores = self.score_samples(X)
        return float(np.average(scores, weights=self._check_weights(sample_weight, scores)))

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of every row, shape ``(N,)``; ``to_pyro().posterior`` has the probabilities."""
        classes: np.ndarray = self._log_joint(X).argmax(1)
        return classes
