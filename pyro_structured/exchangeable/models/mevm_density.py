"""Density estimation with mixtures of exchangeable variable models."""

__all__ = ["MEVMDensity"]

import math
import warnings
from collections.abc import Iterable
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from scipy.special import logsumexp, softmax
from sklearn.base import DensityMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from pyro_structured.exchangeable.models.binary_estimator import BlockEstimator
from pyro_structured.exchangeable.models.block_mixture import BlockMixture
from pyro_structured.exchangeable.models.structural_em import Phase, StructuralEM
from pyro_structured.exchangeable.ops.binary_rows import BinaryRows, Matrix
from pyro_structured.exchangeable.ops.expectation_maximization import (
    BlockStatistics,
    complete_statistics,
    expect,
    learned_statistics,
    maximize,
)
from pyro_structured.exchangeable.ops.shared_rows import SharedRows
from pyro_structured.foundation.models.argument_checks import check_count, weighted_mean
from pyro_structured.foundation.models.old_spellings import old_parameters, old_spellings
from pyro_structured.foundation.models.random_states import checked_generator, torch_draws
from pyro_structured.foundation.models.shared_fit import SharedFit, lone_fit
from pyro_structured.foundation.ops.parallel_tasks import in_parallel
from pyro_structured.foundation.ops.process_sums import each, is_shared
from pyro_structured.foundation.ops.processor import methods_on_processor
from pyro_structured.foundation.ops.progress import verbosity
from pyro_structured.foundation.ops.user_frame import frames_below_user

# Bounds of the number of classes: more than rows are empty, and more probabilities do not fit into memory.
FEW_CLASSES, MOST_SHARES = 2**12, 2**30
# Number of starts whose blocks are merged, of those whose parameters have settled, if the table of the data has more
# entries: there, merging takes most of the time.
MERGED_STARTS, MOST_ENTRIES = 2, 2**22
# Largest number of different rows in a step, where rows come in pieces.
STEP_ROWS = 1000


class _Start(NamedTuple):
    """Result of a random start.

    :ivar best: The best mixture; ``None`` if the start was interrupted before there was one.
    :ivar float score: Log-likelihood of the best mixture.
    :ivar bool converged: Whether there were enough iterations.
    :ivar bool interrupted: Whether the start was interrupted from the keyboard.
    """

    best: Phase | None
    score: float
    converged: bool
    interrupted: bool


def _run_start(
    learner: StructuralEM,
    begin: np.ndarray | Phase,
    held_out: BinaryRows | None,
    rng: np.random.Generator,
    most: int | None = None,
) -> _Start:
    """The best of all mixtures whose parameters had settled.

    :param begin: Probabilities of the classes to start from, shape ``(K, R)``, or the first phase to go on from.
    :param BinaryRows held_out: Validation rows, or ``None``.
    :param int most: Largest number of these mixtures; ``None``: all.
    """
    best, reached, converged = None, -np.inf, True
    try:
        for phase in islice(learner.run(begin, rng), most):
            converged, score = phase.converged, phase.log_likelihood
            if held_out is not None:
                score = float(each(held_out.weights @ logsumexp(phase.mixture.log_joint(held_out), 1)).sum())
            if best is None or score > reached:
                best, reached = phase, score
    except KeyboardInterrupt:
        if is_shared():
            raise
        return _Start(best, reached, True, True)
    return _Start(best, reached, converged, False)


@old_parameters("n_components")
@methods_on_processor
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
    Merging from single variables takes memory O(N n + n²), for :func:`merge_partition`. Rows that come in pieces are
    learned by :meth:`partial_fit`.

    :param int n_components: Number K of classes, at least 1.
    :param str structure: ``"merge"`` finds blocks by :func:`merge_partition`, whenever the parameters have settled, and
        starts with independent variables. ``"welch"`` finds them by :func:`welch_partition` in every iteration, as in
        the paper. ``"welch+merge"`` merges Welch's blocks. ``"independent"`` is a latent naive Bayes model.
    :param float smoothing: Positive number, added to the number of rows of every value, and of every count of a block,
        in every class.
    :param float tol: Nats per row, positive: a smaller increase of the objective ends the iterations.
    :param int max_iter: Largest number of iterations, at least 1.
    :param int n_init: Number of random starts, at least 1. The best mixture has the largest log-likelihood: of the
        validation rows, if there are any. In tables of more than :math:`2^{22}` entries, blocks are merged only in the
        two starts that are best when their parameters have settled for the first time.
    :param binarize: Number above which values are ones. ``"auto"``: 0, with a warning if there are others than 0
        and 1. ``None``: values have to be zeros and ones.
    :param float level: Significance level of Welch's tests, between 0 and 1.
    :param str linkage: Pairs of means that are compared, ``"anchor"`` or ``"single"``, as for :func:`welch_partition`.
    :param str correction: Correction of the level, ``"none"`` or ``"bonferroni"``, as for :func:`welch_partition`.
    :param n_jobs: Number of processes for the random starts, as for scikit-learn; results are the same. Where values
        are missing and blocks are merged, starts draw from one generator, so that one process makes them all.
    :param verbose: ``None``: a progress bar if standard error is a terminal; ``True``: lines, too, where it is none;
        ``False``: neither.
    :param random_state: Seed, or ``numpy.random.RandomState``, of the random starts, and of samples.
    :ivar n_iter\_: Number of iterations that led to the mixture, from its start.
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
        *,
        n_components: int = 20,
        structure: str = "merge",
        smoothing: float = 0.1,
        tol: float = 1e-3,
        max_iter: int = 500,
        n_init: int = 10,
        binarize: float | str | None = "auto",
        level: float = 0.1,
        linkage: str = "anchor",
        correction: str = "none",
        n_jobs: int | None = None,
        verbose: bool | None = None,
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
        self.n_jobs = n_jobs
        self.verbose = verbose
        self.random_state = random_state

    @old_spellings("sample_weight", "X_val")
    def fit(
        self, X: Any, y: Any = None, *, sample_weight: Any = None, X_val: Any = None, rows: Any = None
    ) -> "MEVMDensity":
        """Learns blocks and parameters.

        An interrupt from the keyboard ends the iterations; the best mixture so far is kept.

        :param X: Zeros and ones, or numbers that are binarised, shape ``(N, n)``, NaN if missing: an array, a tensor, a
            data frame, a sparse matrix, or a ``DataLoader`` of torch, a table, file or dataset of pyarrow, which are
            read once.
        :param y: Not used.
        :param sample_weight: Weights of the rows, from 0 to 1e290, not all 0, shape ``(N,)``: the numbers of times
            that they count.
        :param X_val: Validation rows, shape ``(M, n)``. The best of all starts, and of all numbers of structure steps,
            is chosen by them.
        :param rows: Numbers of the rows of X among those of all processes, as :func:`shard_rows` returns them: all
            processes of ``torch.distributed`` learn the mixture that one would learn from all rows, and each is given
            its own rows, with their weights, and validation rows of its own, or all of them. ``None``: a process learns
            by itself. With rows, interrupts are errors in all processes, ``n_jobs`` has to be 1, and each takes memory
            for a digest of every distinct row of all, and for 2^14 rows from which blocks are merged, of each class
            that it merges. Where values are missing and there are more distinct rows, others are drawn for them than in
            a single process.
        :raises ValueError: if a parameter is out of range, or data or weights are of another kind; in several
            processes, if this happens in any of them.
        :raises NotImplementedError: if processes learn together, and ``n_jobs`` is not 1.
        :raises RuntimeError: if another process has ended, or has failed by anything else, such as an interrupt.
        """
        with SharedFit(self, rows) as fit:
            with fit.checks(X_val="none" if X_val is None else "some"):
                shared = self._read_shared(X, sample_weight, fit)
                held_out = None if X_val is None else self._read_held_out(X_val).merged()[0]
                rng = np.random.default_rng(fit.generator(self.random_state).randint(2**31))
            with verbosity(self.verbose), fit.quiet():
                best = self._best_of_starts(shared, held_out, rng)
            fit.check_result(partition=best.mixture.counts.labels.tolist())
            self._total = float(each(float(shared.rows.weights.sum())).sum())
        self._mixture, self.n_iter_ = best.mixture, best.num_iterations
        self._smoothing = float(self.smoothing)
        self._statistics: BlockStatistics | None = None
        self.weights_ = np.exp(self._mixture.parameters.log_classes)
        self.partition_ = self._mixture.partition
        return self

    @lone_fit
    def partial_fit(self, X: Any, y: Any = None, *, sample_weight: Any = None) -> "MEVMDensity":
        """Learns parameters from some rows more: for data that come in pieces.

        The first call is :meth:`fit`, which finds the blocks in its rows: give it enough of them. Further calls, and
        calls after :meth:`fit`, keep the blocks, and no rows: their rows, a thousand different ones at a time and in
        random order, are dealt to the classes by the probabilities under the parameters so far, their gaps are filled
        in likewise, and the parameters are learned anew from the sums of all counts. These are steps of expectation
        maximisation in which a batch replaces the share of the expected counts that it has in the weight of all rows so
        far. With one class and without gaps, parameters are **exactly** those of all rows together, for these blocks;
        otherwise they are near a local optimum, and depend on the pieces. Settings are those of the first call. Rows
        that come several times count several times.

        The first piece decides about the blocks: of a million rows in five pieces, nothing is lost, compared with a fit
        to all of them, and in ten pieces .013 nats a row (docs/benchmarks/large_data.md).

        Cost of a further call: one pass through its rows; memory for the parameters, besides that for the rows.

        :param X: As for :meth:`fit`.
        :param y: Not used.
        :param sample_weight: As for :meth:`fit`.
        :raises ValueError: as :meth:`fit`. The mixture stays as it is.
        """
        if not hasattr(self, "_mixture"):
            self.fit(X, sample_weight=sample_weight)
            return self
        rows, _ = _distinct_rows(*self._weighted_values(X, sample_weight, reset=False))
        order = checked_generator(self.random_state).permutation(len(rows))
        counts, parameters, smoothing = self._mixture.counts, self._mixture.parameters, self._smoothing
        statistics = self._statistics
        if statistics is None:
            statistics = learned_statistics(counts, parameters, smoothing, self._total)
        for places in np.array_split(order, math.ceil(len(rows) / STEP_ROWS)):
            batch = rows.selected(places)
            levels = counts.with_gaps(batch.largest_gap)
            _, _, found = expect(levels, parameters, batch)
            statistics = statistics + complete_statistics(levels, found, smoothing, parameters)
            parameters = maximize(counts, statistics, smoothing)
        self._mixture, self._statistics = BlockMixture(counts, parameters), statistics
        self.weights_ = np.exp(parameters.log_classes)
        return self

    def _weighted_values(self, X: Any, sample_weight: Any, reset: bool) -> tuple[Matrix, np.ndarray]:
        values = self._binarized(self._validate(X, reset=reset))
        return values, self._check_weights(sample_weight, values)

    def _read_shared(self, X: Any, sample_weight: Any, fit: SharedFit) -> SharedRows:
        """Distinct rows of positive weight."""
        self._check_parameters()
        check_count("n_components", self.n_components)
        check_count("n_init", self.n_init)
        if is_shared() and self.n_jobs not in (None, 1):
            raise NotImplementedError(f"n_jobs: expected 1 where processes learn together, got {self.n_jobs!r}")
        values, weights = self._weighted_values(X, sample_weight, reset=True)
        numbers = fit.place(weights)
        rows, places = _distinct_rows(values, weights)
        shared = SharedRows(rows, numbers[np.unique(places, return_index=True)[1]])
        most = min(max(shared.number, FEW_CLASSES), MOST_SHARES // max(shared.number, rows.num_variables))
        check_count("n_components", self.n_components, most)
        return shared

    def _best_of_starts(self, shared: SharedRows, held_out: BinaryRows | None, rng: np.random.Generator) -> Phase:
        learner = self._learner(shared.rows, shared=shared)
        begins: Iterable[np.ndarray | Phase] = (self._deal(shared, rng) for _ in range(self.n_init))
        number, starts = self.n_init, list[_Start]()
        draws = shared.has_gaps and "merge" in self.structure
        n_jobs = 1 if draws or is_shared() else self.n_jobs

        def run(most: int | None, unit: str) -> None:
            tasks = ((learner, begin, held_out, rng, most) for begin in begins)
            for start in in_parallel(_run_start, tasks, number, n_jobs, desc=f"{unit}s", unit=unit):
                starts.append(start)
                if start.interrupted:
                    raise KeyboardInterrupt

        try:
            large = shared.number * shared.rows.num_variables > MOST_ENTRIES
            if large and "merge" in self.structure and number > MERGED_STARTS:
                run(1, "settling")
                number = MERGED_STARTS
                best_first = sorted(starts, key=lambda start: -start.score)
                begins = [start.best for start in best_first[:number] if start.best is not None]
            run(None, "start")
        except KeyboardInterrupt:
            if is_shared() or all(start.best is None for start in starts):
                raise
            warnings.warn("fit was interrupted: the best mixture so far is kept", stacklevel=frames_below_user())
        if not all(start.converged for start in starts):
            message = f"no convergence in {self.max_iter} iterations"
            warnings.warn(message, ConvergenceWarning, stacklevel=frames_below_user())
        best = max(starts, key=lambda start: start.score).best
        assert best is not None
        return best

    def _deal(self, shared: SharedRows, rng: np.random.Generator) -> np.ndarray:
        """Rows dealt to the classes at random, as probabilities of the classes, shape ``(K, R)``."""
        classes = rng.permutation(np.arange(shared.number) % self.n_components)[shared.place]
        posterior: np.ndarray = np.equal.outer(np.arange(self.n_components), classes).astype(np.float64)
        return posterior

    def _log_joint(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        return self._mixture.log_joint(self._read(X))

    def score_samples(self, X: Any) -> np.ndarray:
        """Log-probabilities of rows, shape ``(N,)``; missing values (NaN) are summed out."""
        scores: np.ndarray = logsumexp(self._log_joint(X), axis=1)
        return scores

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Mean log-probability of rows.

        :param y: Not used.
        :param sample_weight: Weights of the rows, as for :meth:`fit`.
        """
        return weighted_mean(self.score_samples(X), sample_weight)

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of every row, shape ``(N,)``."""
        classes: np.ndarray = self._log_joint(X).argmax(1)
        return classes

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities of the classes for every row, shape ``(N, K)``."""
        probabilities: np.ndarray = softmax(self._log_joint(X), axis=1)
        return probabilities

    def sample(self, n_samples: int = 1, random_state: Any = None) -> np.ndarray:
        """Draws rows: zeros and ones, uint8, shape ``(n_samples, n)``.

        :param int n_samples: Number of rows, at least 1.
        :param random_state: Seed, with which two calls draw the same, or ``numpy.random.RandomState``; torch's
            generator stays as it is. ``None``: that of the constructor; if this is ``None``, too, torch's generator.
        :raises ValueError: if an argument is of another kind.
        """
        density = self.to_pyro()
        check_count("n_samples", n_samples)
        with torch_draws(self.random_state if random_state is None else random_state):
            return density.sample((n_samples,)).numpy().astype(np.uint8)


def _distinct_rows(values: Matrix, weights: np.ndarray) -> tuple[BinaryRows, np.ndarray]:
    """Different rows of positive weight, and the place of each such row among them."""
    if not weights.all():
        values, weights = values[weights > 0], weights[weights > 0]
    return BinaryRows.from_matrix(values, weights).merged()
