"""Classification with mixtures of exchangeable variable models."""

__all__ = ["MEVMClassifier"]

import warnings
from collections import deque
from typing import Any

import numpy as np
from scipy.special import log_softmax
from sklearn.base import ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from pyro_structured.exchangeable.models.binary_estimator import BlockEstimator
from pyro_structured.exchangeable.models.structural_em import Phase
from pyro_structured.exchangeable.ops.binary_rows import BinaryRows
from pyro_structured.foundation.models.argument_checks import plain_array
from pyro_structured.foundation.models.missing_values import find_missing
from pyro_structured.foundation.models.random_states import checked_generator
from pyro_structured.foundation.models.shared_fit import lone_fit
from pyro_structured.foundation.ops.processor import methods_on_processor
from pyro_structured.foundation.ops.progress import verbosity
from pyro_structured.foundation.ops.user_frame import frames_below_user


@methods_on_processor
class MEVMClassifier(ClassifierMixin, BlockEstimator):  # type: ignore[misc]
    r"""Mixture of exchangeable variable models whose class is given: naive Bayes with blocks of exchangeable variables.

    .. math::
        p(y, x) = p(y) \prod_{b \in \mathcal{X}_y} q_{yb}(t_b) \binom{n_b}{t_b}^{-1}, \qquad t_b = \sum_{d \in b} x_d.

    The blocks of each class are learned. One block makes any symmetric function of the variables learnable: parity and
    exact values, which are beyond naive Bayes and linear classifiers, and thresholds; few blocks make parameters of
    rare variables reliable. Learning takes one pass over the data to count, and is linear in the number of nonzero
    values; if some labels are missing, it takes such a pass for every iteration of expectation maximisation. Missing
    values (NaN) are summed out; if a row has g of them, that takes memory O(g K n): about 60 bytes times g K n, or
    times s K n if no block has more than s < g variables.

    :param str structure: ``"welch+merge"`` finds blocks of variables with equal means by :func:`welch_partition`, and
        then merges those that belong together by :func:`merge_partition`. ``"welch"`` is the paper's;
        ``"merge"`` starts with single variables, and takes memory for all pairs of them; ``"independent"`` is naive
        Bayes.
    :param float smoothing: Positive number, added to the number of rows of every value, and of every count of a block,
        in every class.
    :param float tol: Nats per row, positive: a smaller increase of the objective ends the iterations.
    :param int max_iter: Largest number of iterations, at least 1.
    :param binarize: Number above which values are ones. ``"auto"``: 0, with a warning if there are others than 0
        and 1. ``None``: values have to be zeros and ones.
    :param unlabeled: The label, such as -1 or ``"?"``, but neither ``None`` nor NaN, that marks rows whose class is not
        known; they are learned from by expectation maximisation. ``None``: all are known.
    :param float level: Significance level of Welch's tests, between 0 and 1.
    :param str linkage: Pairs of means that are compared, ``"anchor"`` or ``"single"``, as for :func:`welch_partition`.
    :param str correction: Correction of the level, ``"none"`` or ``"bonferroni"``, as for :func:`welch_partition`.
    :param verbose: ``None``: a progress bar if standard error is a terminal; ``True``: lines, too, where it is none;
        ``False``: neither.
    :param random_state: Seed, or ``numpy.random.RandomState``; only missing values need it.
    :ivar n_iter\_: Number of iterations.
    :ivar classes\_: Labels of the classes, shape ``(K,)``; the component ``k`` of ``to_pyro()`` is ``classes_[k]``.
    :ivar partition\_: Blocks of all classes, a :class:`~pyro_structured.structures.Partition` of batch shape ``(K,)``.

    **References**

    Niepert, Domingos (2014): Exchangeable variable models. ICML. Definition 4.1, Theorems 4.2 and 4.4, Section 5.1. The
    merging is ours.

    Example::

        >>> X = np.random.default_rng(0).permuted(np.tri(21, 20, -1, dtype=int)[np.arange(2100) % 21], axis=1)
        >>> classifier = MEVMClassifier().fit(X[:2000], X[:2000].sum(1) % 2)
        >>> classifier.score(X[2000:], X[2000:].sum(1) % 2)  # parity of 20 variables
        1.0
    """

    def __init__(
        self,
        *,
        structure: str = "welch+merge",
        smoothing: float = 0.1,
        tol: float = 1e-3,
        max_iter: int = 500,
        binarize: float | str | None = "auto",
        unlabeled: Any = None,
        level: float = 0.1,
        linkage: str = "anchor",
        correction: str = "none",
        verbose: bool | None = None,
        random_state: Any = None,
    ) -> None:
        self.structure = structure
        self.smoothing = smoothing
        self.tol = tol
        self.max_iter = max_iter
        self.binarize = binarize
        self.unlabeled = unlabeled
        self.level = level
        self.linkage = linkage
        self.correction = correction
        self.verbose = verbose
        self.random_state = random_state

    @lone_fit
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "MEVMClassifier":
        """Learns blocks and parameters.

        An interrupt from the keyboard ends the iterations; the last mixture is kept.

        :param X: Zeros and ones, or numbers that are binarised, shape ``(N, n)``, NaN if missing: an array, a tensor, a
            data frame, a sparse matrix, or a ``DataLoader`` of torch, a table, file or dataset of pyarrow, which are
            read once.
        :param y: Labels, shape ``(N,)``.
        :param sample_weight: Weights of the rows, from 0 to 1e290, not all 0, shape ``(N,)``: the numbers of times
            that they count.
        """
        self._check_parameters()
        y = plain_array(y, "y")
        if y is not None and find_missing(np.asarray(y, dtype=object)).any():
            raise ValueError(
                "y: expected labels, got missing ones; the parameter unlabeled says which label marks them"
            )
        X, y = self._validate(X, reset=True, y=y)
        check_classification_targets(y)
        weights = self._check_weights(sample_weight, X)
        counted = weights > 0
        labels = self._number(y[counted])
        rows, place = BinaryRows.from_matrix(self._binarized(X)[counted], weights[counted]).merged(labels)
        merged = np.empty(len(rows), dtype=np.int64)
        merged[place] = labels
        allowed = (np.equal.outer(np.arange(len(self.classes_)), merged) | (merged < 0)).astype(np.float64)
        learner = self._learner(rows, allowed)
        rng = np.random.default_rng(checked_generator(self.random_state).randint(2**31))
        last: deque[Phase] = deque(maxlen=1)
        try:
            with verbosity(self.verbose):
                last.extend(learner.run(allowed * (merged >= 0), rng))  # rows without labels wait for the first E-step
        except KeyboardInterrupt:
            if not last:
                raise
            warnings.warn("fit was interrupted: the last mixture is kept", stacklevel=frames_below_user())
        if not last[0].converged:
            message = f"no convergence in {self.max_iter} iterations"
            warnings.warn(message, ConvergenceWarning, stacklevel=frames_below_user())
        self._mixture, self.n_iter_ = last[0].mixture, last[0].num_iterations
        self.partition_ = self._mixture.partition
        return self

    def _number(self, y: np.ndarray) -> np.ndarray:
        """Indices of the labels among the classes, integers of shape ``(N,)``; -1 for missing labels."""
        label = np.asarray(plain_array(self.unlabeled), dtype=object)
        if label.ndim or self.unlabeled is not None and find_missing(label):
            raise ValueError(f"unlabeled: expected a label or None, got {self.unlabeled!r}")
        known = np.ones(len(y), dtype=bool) if self.unlabeled is None else y != label.item()
        if not known.any():
            raise ValueError(f"y: expected at least one label other than {self.unlabeled!r}, got none")
        self.classes_, numbers = np.unique(y[known], return_inverse=True)
        labels = np.full(len(y), -1)
        labels[known] = numbers
        return labels

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Log-probabilities of the classes for every row, shape ``(N, K)``."""
        check_is_fitted(self)
        log_probs: np.ndarray = log_softmax(self._mixture.log_joint(self._read(X)), axis=1)
        return log_probs

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities of the classes for every row, shape ``(N, K)``."""
        probabilities: np.ndarray = np.exp(self.predict_log_proba(X))
        return probabilities

    def predict(self, X: Any) -> np.ndarray:
        """The label of the most probable class of every row, shape ``(N,)``."""
        best = self.predict_log_proba(X).argmax(1)
        labels: np.ndarray = self.classes_[best]
        return labels
