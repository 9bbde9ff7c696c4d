"""Trees of latent variables, as a density estimator."""

__all__ = ["LatentTreeDensity"]

import warnings
from collections.abc import Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.special import logsumexp
from sklearn.cluster import MiniBatchKMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from pyro_structured.densities.distributions.latent_tree import LatentTree
from pyro_structured.densities.distributions.mixture_of_densities import MixtureOfDensities
from pyro_structured.densities.models.latent_tree_em import LatentTreeEM, center_tree
from pyro_structured.densities.structures.hidden_tree import HiddenTree
from pyro_structured.foundation.models.argument_checks import check_count, checked_numbers
from pyro_structured.foundation.models.random_states import checked_generator
from pyro_structured.foundation.models.shared_fit import lone_fit
from pyro_structured.foundation.ops.parallel_tasks import in_parallel
from pyro_structured.foundation.ops.processor import methods_on_processor
from pyro_structured.foundation.ops.progress import check_time, progress_bar, verbosity
from pyro_structured.foundation.ops.user_frame import frames_below_user
from pyro_structured.junction_trees.models.categorical_estimator import CategoricalDensity
from pyro_structured.junction_trees.models.tree_fitting import parts_of_codes
from pyro_structured.junction_trees.ops.categorical_rows import CategoricalRows, mutual_information

# Shares of the counts that a batch replaces, at first and at last; and the factor between.
FIRST_SHARE, LEAST_SHARE, FACTOR = 0.5, 0.02, 0.5
# Power of the number of steps that is the share of a step, where rows come in pieces.
DECAY = -0.6
# Nats: a smaller gain on validation rows counts as none.
SMALLEST_GAIN = 1e-4
# Largest number of latent states: tables have a number for each pair of them, and each variable.
MOST_STATES = 2**12
# Rows that count more than so many times the mean are dealt to several batches.
HEAVY = 4.0
# Largest and smallest number of pseudo-observations, relative to the mean weight of a row, in single precision.
MOST_SMOOTHING = 1e20
# Largest mean weight of further rows, and 1 / smallest, relative to that of the first ones, likewise.
MOST_RELATIVE = 1e20
# Number of iterations that find the weights of several trees.
WEIGHT_ITERATIONS = 200
# Largest number of rows among which clusters are found, and of numbers that are held for these.
MOST_CLUSTERED, MOST_FEATURES = 20_000, 2**26
# Weights of rows that a random weight does not leave out, for all that.
SMALLEST_SHAKEN = 1e-9


class _Start(NamedTuple):
    """What a tree is learned from.

    :ivar CategoricalRows training: Rows to learn from.
    :ivar CategoricalRows judged: Validation rows.
    :ivar parents: Parent of each variable.
    :ivar int num_states: Number of latent states.
    :ivar float smoothing: Number of pseudo-observations.
    :ivar int batch_size: Number of rows in a batch.
    :ivar int max_iter: Largest number of passes through the rows.
    :ivar int patience: Number of passes without a gain.
    :ivar device: Device of the tables.
    :ivar int seed: Seed of clusters, noise and batches.
    """

    training: CategoricalRows
    judged: CategoricalRows
    parents: Sequence[int]
    num_states: int
    smoothing: float
    batch_size: int
    max_iter: int
    patience: int
    device: torch.device
    seed: int


class _Learned(NamedTuple):
    """A tree.

    :ivar LatentTreeEM learner: The learner, with the best tables.
    :ivar np.ndarray scores: Log-probabilities of the validation rows, shape ``(M,)``.
    :ivar history: Mean log-probability of the validation rows after each pass.
    :ivar bool converged: Whether the number of passes was sufficient.
    :ivar bool interrupted: Whether there was an interrupt from the keyboard.
    """

    learner: LatentTreeEM
    scores: np.ndarray
    history: list[float]
    converged: bool
    interrupted: bool


def _learn(*settings: Any) -> _Learned:
    """Learns a tree from what :class:`_Start` names."""
    start = _Start(*settings)
    rng = np.random.RandomState(start.seed)
    learner, rows, weights = _begin(start, rng)
    judged, share = learner.read(start.judged.values.T), FIRST_SHARE
    shares = start.judged.weights / start.judged.total
    scores = learner.log_probs(judged).double().cpu().numpy()
    best, waited, kept, history = float(shares @ scores), 0, learner.state(), list[float]()
    number = len(weights)
    size = max(1, round(number / start.batch_size))
    converged = interrupted = False
    try:
        for _ in progress_bar(range(start.max_iter), desc="passes", unit="pass"):
            order = torch.from_numpy(rng.permutation(number)).to(rows.device)
            for batch in order.tensor_split(size):
                check_time()
                learner.step(rows[batch], weights[batch], number / len(batch), share if size > 1 else 1.0)
            found = learner.log_probs(judged).double().cpu().numpy()
            history.append(float(shares @ found))
            waited += 1
            if history[-1] > best + SMALLEST_GAIN:
                best, waited, kept, scores = history[-1], 0, learner.state(), found
            if waited == start.patience:
                share, waited = share * FACTOR, 0
                if share < LEAST_SHARE or size == 1:
                    converged = True
                    break
                learner.load(kept)
    except KeyboardInterrupt:
        interrupted = True
    learner.load(kept)
    return _Learned(learner, scores, history, converged, interrupted)


def _begin(start: _Start, rng: np.random.RandomState) -> tuple[LatentTreeEM, Tensor, Tensor]:
    """Learner with its first tables, and the rows and weights that it learns from, heavy ones several times."""
    rows, sizes = start.training, start.training.cardinalities
    mean = rows.total / len(rows.weights)
    relative = rows.weights / mean
    smoothing = float(np.clip(start.smoothing / mean, 1 / MOST_SMOOTHING, MOST_SMOOTHING))
    frequencies = torch.zeros(len(sizes), max(sizes))
    for d, (states, known) in enumerate(zip(rows.values, rows.observed, strict=True)):
        # Half a row more for every state, those included that are only for values to come.
        counts = np.bincount(states[known], relative[known], sizes[d]) + 0.5
        frequencies[d, : sizes[d]] = torch.from_numpy(counts / counts.sum())
    options = frequencies, float(relative.sum()), (smoothing, smoothing), start.device
    learner = LatentTreeEM(start.parents, start.num_states, *options)
    copies, dealt, weights = _deal(learner, rows, mean)
    check_time()
    clusters = torch.from_numpy(_clusters(rows, relative, start.num_states, rng).repeat(copies))
    shape = len(sizes), start.num_states, start.num_states
    noise = torch.from_numpy(rng.standard_exponential(shape).astype(np.float32))
    learner.start(dealt, weights, clusters.to(start.device), noise.to(start.device))
    return learner, dealt, weights


def _deal(learner: LatentTreeEM, rows: CategoricalRows, mean: float) -> tuple[np.ndarray, Tensor, Tensor]:
    """How often each row comes, so that none is too heavy; rows and weights for a learner.

    :param float mean: Weight that counts as 1.
    """
    copies = np.ceil(rows.weights / (HEAVY * rows.total / len(rows.weights))).astype(int)
    weights = torch.from_numpy((rows.weights / mean / copies).repeat(copies))
    dealt = learner.read(rows.values.T.repeat(copies, axis=0))
    return copies, dealt, weights.to(dealt.device, torch.float32)


def _clusters(rows: CategoricalRows, weights: np.ndarray, number: int, rng: np.random.RandomState) -> np.ndarray:
    """Clusters of similar rows, integers below ``number``, shape ``(R,)``; found among some of the rows."""
    at_once = max(number, min(MOST_CLUSTERED, MOST_FEATURES // sum(rows.cardinalities)))
    chosen = rng.permutation(len(weights))[:at_once]
    options = {"n_init": 3, "random_state": rng}
    means = MiniBatchKMeans(min(number, len(chosen)), **options)
    means.fit(_features(rows, chosen), sample_weight=weights[chosen])
    parts = np.array_split(np.arange(len(weights)), max(1, len(weights) // at_once))
    labels: np.ndarray = np.concatenate([means.predict(_features(rows, part)) for part in parts]).astype(np.int64)
    return labels


def _features(rows: CategoricalRows, chosen: np.ndarray) -> np.ndarray:
    """Whether rows have each state of each variable, equal shares of missing ones, shape ``(number, states)``."""
    columns = []
    for column, size in zip(rows.values[:, chosen], rows.cardinalities, strict=True):
        hits = (column[:, None] == np.arange(size)).astype(np.float32)
        hits[column < 0] = 1 / size
        columns.append(hits)
    return np.concatenate(columns, 1)


@methods_on_processor
class LatentTreeDensity(CategoricalDensity):
    r"""Density of categorical vectors: a tree of latent variables, one above each column, learned from rows.

    .. math::
        p(x) = \sum_z \prod_v p(z_v \mid z_{\mathrm{parent}(v)})\, p(x_v \mid z_v).

    The latent variables have K states each, and their tree is that of Chow and Liu: the tree of the columns that has
    the largest mutual information. Rows are clustered, and at the start all latent variables of a row are its cluster,
    so that the model is a mixture of independent columns; expectation maximisation by small batches of rows, each of
    which replaces a share of the expected counts, then learns how far each latent variable follows its neighbours. The
    share is halved whenever validation rows gain no more, and the tables are those of the best pass. Several trees,
    which differ by random weights of the rows in the mutual information, by clusters and batches, are averaged with
    weights that give validation rows the largest probability.

    Columns may have any categories, and missing values (NaN, None or pandas' NA).

    **Exact**: log-probabilities of rows, also with missing values, samples, and the gradient of each batch. Tables are
    learned in single precision, and lead to a local optimum; a pass over rows in batches may lower the likelihood.

    :param n_states: Number K of states of each latent variable, from 1 to 4096. A number, or several to choose from.
        More states fit better to many rows; a pass takes O(K²) time.
    :param int n_trees: Number of trees, at least 1.
    :param smoothing: Pseudo-observations, more than 0: so many rows, distributed like all data, are added to those of
        each latent state, and so many are spread evenly over the pairs of states of neighbours. A number, or several to
        choose from.
    :param int batch_size: Number of different rows in a batch, at least 1. Small batches find better optima, in more
        time.
    :param int max_iter: Largest number of passes through the rows, at least 1.
    :param int n_iter_no_change: Number of passes without a better validation score after which a batch counts half as
        much; the fifth time, learning ends.
    :param device: Device on which tables are learned and rows are scored, as for ``torch.device``; ``None``: the
        processor.
    :param categories: As for :class:`ThinJunctionTree`.
    :param str handle_unknown: As for :class:`ThinJunctionTree`.
    :param n_jobs: Number of processes for the trees, as for scikit-learn; results are the same.
    :param verbose: ``None``: a progress bar if standard error is a terminal; ``True``: lines, too, where it is none;
        ``False``: neither.
    :param random_state: Seed, or ``numpy.random.RandomState``, of starts and batches, of the choice of validation rows,
        and of samples.
    :ivar trees\_: The trees (:class:`~pyro_structured.structures.HiddenTree`); variables are numbered as the columns.
    :ivar weights\_: Weights of the trees, shape ``(n_trees,)``.
    :ivar int n_states\_: The chosen number of states.
    :ivar float smoothing\_: The chosen number of pseudo-observations.
    :ivar scores\_: For each tree, the mean log-probability of the validation rows after each pass.

    Cost of a pass: O(N n K²) in products of matrices; memory O(n K² + B n K) for batches of B rows.

    **References**

    Liu, Van den Broeck (2021): Tractable regularization of probabilistic circuits. NeurIPS: hidden Chow-Liu trees.
    Chow, Liu (1968): Approximating discrete probability distributions with dependence trees. IEEE Trans. Inf. Theory
    14(3).
    Cappé, Moulines (2009): On-line expectation-maximization algorithm for latent data models. JRSS B 71(3).

    Example::

        >>> rng = np.random.default_rng(0)
        >>> kind = rng.integers(3, size=2000)
        >>> X = (rng.random((2000, 6)) < np.eye(3).repeat(2, axis=1)[kind] * 0.8 + 0.1).astype(int)
        >>> model = LatentTreeDensity(n_states=3, random_state=0).fit(X)
        >>> np.exp(model.score_samples([[1, 1, 0, 0, 0, 0], [1, np.nan, np.nan, np.nan, np.nan, np.nan]])).round(1)
        array([0.2, 0.4])
    """

    def __init__(
        self,
        *,
        n_states: int | Sequence[int] = 32,
        n_trees: int = 1,
        smoothing: float | Sequence[float] = 1.0,
        batch_size: int = 250,
        max_iter: int = 500,
        n_iter_no_change: int = 3,
        device: Any = None,
        categories: str | int | Sequence[Any] = "auto",
        handle_unknown: str = "other",
        n_jobs: int | None = None,
        verbose: bool | None = None,
        random_state: Any = None,
    ) -> None:
        self.n_states = n_states
        self.n_trees = n_trees
        self.smoothing = smoothing
        self.batch_size = batch_size
        self.max_iter = max_iter
        self.n_iter_no_change = n_iter_no_change
        self.device = device
        self.categories = categories
        self.handle_unknown = handle_unknown
        self.n_jobs = n_jobs
        self.verbose = verbose
        self.random_state = random_state

    @lone_fit
    def fit(self, X: Any, y: Any = None, *, X_val: Any = None, sample_weight: Any = None) -> "LatentTreeDensity":
        """Learns the trees and their tables.

        An interrupt from the keyboard ends the passes; the best tables so far are kept.

        :param X: Categories, shape ``(N, n)``: an array, a tensor, a data frame, a sparse matrix, or a ``DataLoader``
            of torch, a table, file or dataset of pyarrow, which are read once.
        :param y: Not used.
        :param X_val: Validation rows, shape ``(M, n)``, which end learning and choose settings. ``None``: a random
            tenth of the rows, from which nothing else is learned.
        :param sample_weight: Weights of the rows, from 0 to 1e290, not all 0, shape ``(N,)``: so many times a row
            counts.
        :raises ValueError: if a parameter is out of range, a column has no value, or there is a category that
            ``handle_unknown`` makes an error.
        """
        settings = self._settings()
        device = _checked_device(self.device)
        codes, weights = self._learn_categories(X, sample_weight)
        generator = checked_generator(self.random_state)
        training, judged = self._divide(codes, weights, X_val, generator)
        trees = self._trees(training, generator)
        limits = self.batch_size, self.max_iter, self.n_iter_no_change
        starts = [
            _Start(training, judged, parents, num_states, smoothing, *limits, device, generator.randint(2**31))
            for num_states, smoothing in settings
            for parents in trees
        ]
        with verbosity(self.verbose):
            learned = self._learn_all(starts)
        self._keep_best(starts, learned, judged.weights / judged.total)
        self._mean_weight = training.total / len(training.weights)
        return self

    @lone_fit
    def partial_fit(self, X: Any, y: Any = None, *, sample_weight: Any = None) -> "LatentTreeDensity":
        """Learns from some rows more, each in one step: for data that come in pieces.

        The first call finds categories, trees and tables to start from in its rows: give ``categories`` where these may
        lack some, and enough rows for clusters. Shares of the counts that batches replace fall with the number of all
        steps, as its power -.6, so that passes over the same pieces go on improving tables. Settings are the first
        ones, and several trees have equal weights. After :meth:`fit`, it goes on from the fitted tables.

        :param X: Categories, shape ``(N, n)``.
        :param y: Not used.
        :param sample_weight: As for :meth:`fit`; the mean is from 1e-20 to 1e20 times that of the first rows.
        :raises ValueError: as :meth:`fit`.
        """
        generator = checked_generator(self.random_state)
        if not hasattr(self, "_learners"):
            (num_states, smoothing), *_ = self._settings()
            device = _checked_device(self.device)
            rows = self._rows(*self._learn_categories(X, sample_weight))
            trees = self._trees(rows, generator)
            limits = self.batch_size, self.max_iter, self.n_iter_no_change
            seeds = generator.randint(2**31, size=self.n_trees)
            pairs = zip(trees, seeds, strict=True)
            starts = (_Start(rows, rows, tree, num_states, smoothing, *limits, device, seed) for tree, seed in pairs)
            self._learners = [_begin(start, np.random.RandomState(start.seed))[0] for start in starts]
            self.trees_ = [HiddenTree(each, num_states, self._num_states) for each in trees]
            self.weights_ = np.full(self.n_trees, 1 / self.n_trees)
            self.n_states_, self.smoothing_ = num_states, smoothing
            self.scores_ = [list[float]() for _ in trees]
            self._mean_weight = rows.total / len(rows.weights)
        else:
            rows = self._rows(*self._read_piece(X, sample_weight))
            ratio = rows.total / len(rows.weights) / self._mean_weight
            if not 1 / MOST_RELATIVE <= ratio <= MOST_RELATIVE:
                raise ValueError(
                    f"sample_weight: expected a mean from {1 / MOST_RELATIVE:g} to {MOST_RELATIVE:g} times that of the "
                    f"first rows, got {ratio:g} times"
                )
            for learner in self._learners:
                learner.extend(rows.total / self._mean_weight)
        for learner in self._learners:
            _, dealt, row_weights = _deal(learner, rows, self._mean_weight)
            order = torch.from_numpy(generator.permutation(len(dealt))).to(dealt.device)
            for batch in order.tensor_split(max(1, round(len(order) / self.batch_size))):
                share = (1.0 + learner.num_steps) ** DECAY
                scale = learner.total / float(row_weights[batch].sum())
                learner.step(dealt[batch], row_weights[batch], scale, share)
        return self

    def _settings(self) -> list[tuple[int, float]]:
        """Checked pairs of numbers of states and of pseudo-observations."""
        for name in ("n_trees", "batch_size", "max_iter", "n_iter_no_change"):
            check_count(name, getattr(self, name))
        several = isinstance(self.n_states, (list, tuple, np.ndarray)) and np.size(self.n_states) > 0
        numbers: list[Any] = list(self.n_states) if several else [self.n_states]  # type: ignore[arg-type]
        for number in numbers:
            check_count("n_states", number, MOST_STATES)
        smoothings = checked_numbers("smoothing", self.smoothing)
        if 0 in smoothings:
            raise ValueError(f"smoothing: expected more than 0, got {self.smoothing!r}")
        return [(int(number), smoothing) for number, smoothing in product(numbers, smoothings)]

    def _trees(self, training: CategoricalRows, generator: np.random.RandomState) -> list[list[int]]:
        """Parents of the variables in all trees; the first one is that of the rows as they are."""
        trees = [center_tree(mutual_information(training.known))]
        mean = training.total / len(training.weights)
        for _ in range(self.n_trees - 1):
            check_time()
            # The Bayesian bootstrap (Rubin 1981).
            shaken = training.reweighted(generator.standard_gamma(training.weights / mean) + SMALLEST_SHAKEN)
            trees.append(center_tree(mutual_information(shaken.known)))
        return trees

    def _learn_all(self, starts: Sequence[_Start]) -> list[_Learned]:
        """Trees of all starts, or of those before an interrupt."""
        learned: list[_Learned] = []
        try:
            for tree in in_parallel(_learn, starts, len(starts), self.n_jobs, desc="trees", unit="tree"):
                learned.append(tree)
                if tree.interrupted:
                    raise KeyboardInterrupt
        except KeyboardInterrupt:
            if not learned:
                raise
            warnings.warn("fit was interrupted: the best tables so far are kept", stacklevel=frames_below_user())
        if not all(tree.converged or tree.interrupted for tree in learned):
            message = f"no convergence in {self.max_iter} passes"
            warnings.warn(message, ConvergenceWarning, stacklevel=frames_below_user())
        return learned

    def _keep_best(self, starts: Sequence[_Start], learned: Sequence[_Learned], shares: np.ndarray) -> None:
        """Keeps the trees of the setting that gives validation rows, with these shares, the largest probability."""
        best = -np.inf
        for first in range(0, len(learned), self.n_trees):
            trees = learned[first : first + self.n_trees]
            log_probs = np.stack([tree.scores for tree in trees], 1)
            weights = stacking_weights(log_probs, shares)
            score = average_score(log_probs, shares, weights)
            if score > best or not first:
                best, self.weights_ = score, weights
                self.n_states_, self.smoothing_ = starts[first].num_states, starts[first].smoothing
                self._learners = [tree.learner for tree in trees]
                parents = [start.parents for start in starts[first : first + len(trees)]]
                self.scores_ = [tree.history for tree in trees]
        self.trees_ = [HiddenTree(each, self.n_states_, self._num_states) for each in parents]

    def _distributions(self, device: torch.device) -> list[LatentTree]:
        members = ((learner.logits(), tree) for learner, tree in zip(self._learners, self.trees_, strict=True))
        return [LatentTree(table.to(device), other.to(device), tree) for (table, other), tree in members]

    def score_samples(self, X: Any) -> np.ndarray:
        """Log-probabilities of rows, in nats; missing entries are summed out.

        :param X: Categories, shape ``(N, n)``.
        :raises ValueError: if there is a category that ``handle_unknown`` makes an error.
        """
        check_is_fitted(self)
        codes, device = self._read(X), _checked_device(self.device)
        members = self._distributions(device)
        scores = []
        # Rows with gaps have a number for every state of a column.
        held = self.n_states_ if (codes >= 0).all() else max(self.n_states_, *self._num_states)
        for values, observed in parts_of_codes(codes, len(self._num_states) * held):
            values, observed = values.to(device), observed.to(device)
            whole = bool(observed.all())
            rows = [d.log_prob(values) if whole else d.marginal_log_prob(values, observed) for d in members]
            scores.append(torch.stack(rows, -1).cpu().numpy())
        return mixture_log_probs(np.concatenate(scores), self.weights_)

    def to_pyro(self) -> LatentTree | MixtureOfDensities:
        """Density as a Pyro distribution of codes: places in ``categories_``, and the place after them for unknown
        values, where a column has a state for them; in float64 on the processor. Several trees are a mixture.
        """
        check_is_fitted(self)
        members = self._distributions(torch.device("cpu"))
        if len(members) == 1:
            return members[0]
        return MixtureOfDensities(torch.from_numpy(self.weights_).log(), members)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_learners")


def _checked_device(device: Any) -> torch.device:
    """The device, or a ValueError; ``None`` is the processor."""
    try:
        chosen = torch.device("cpu" if device is None else device)
        # A device without values has none to give back.
        torch.zeros((), device=chosen).item()
    except (RuntimeError, TypeError, AssertionError, ImportError) as error:
        raise ValueError(f"device: expected a device of torch that this machine has, got {device!r}: {error}") from None
    return chosen


def stacking_weights(log_probs: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Weights of a mixture that give rows the largest probability, by expectation maximisation, a concave problem; or
    the weight 1 of the best member, where that gives them more.

    :param np.ndarray log_probs: Log-probabilities of the rows under each member, shape ``(N, M)``. Rows that all
        members exclude do not count.
    :param np.ndarray shares: Weights of the rows, more than 0, of sum 1, shape ``(N,)``.
    :return: Shape ``(M,)``.

    Example::

        >>> stacking_weights(np.log([[0.2, 0.1], [0.2, 0.1], [0.1, 0.4]]), np.full(3, 1 / 3)).round(2)
        array([0.56, 0.44])
    """
    number = log_probs.shape[1]
    weights = np.full(number, 1 / number)
    possible = (log_probs > -np.inf).any(1)
    if not possible.any():
        return weights
    log_probs, shares = log_probs[possible], shares[possible] / shares[possible].sum()
    relative = np.exp(log_probs - log_probs.max(1, keepdims=True))
    for _ in range(WEIGHT_ITERATIONS):
        joint = relative * weights
        weights = shares @ (joint / joint.sum(1, keepdims=True))
    # Weights of members that are almost alike have a long way to go.
    scores = shares @ log_probs
    best: np.ndarray = np.eye(number)[scores.argmax()]
    return weights if average_score(log_probs, shares, weights) >= scores.max() else best


def average_score(log_probs: np.ndarray, shares: np.ndarray, weights: np.ndarray) -> float:
    """Mean log-probability of rows under a mixture; arguments as for :func:`stacking_weights`, and weights of the
    members.
    """
    return float(shares @ mixture_log_probs(log_probs, weights))


def mixture_log_probs(log_probs: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Log-probabilities of rows under a mixture.

    :param np.ndarray log_probs: Log-probabilities of the rows under each member, shape ``(N, M)``.
    :param np.ndarray weights: Weights of the members, at least 0, shape ``(M,)``.
    :return: Shape ``(N,)``.

    Example::

        >>> mixture_log_probs(np.log([[0.2, 0.4]]), np.array([0.5, 0.5])).round(2)
        array([-1.2])
    """
    used = weights > 0
    # Logarithms, as a sum that is divided by a term of subnormal weight overflows.
    mixed: np.ndarray = logsumexp(log_probs[:, used] + np.log(weights[used]), axis=1)
    return mixed
