"""Sum-product networks with exchangeable leaves, as a density estimator."""

__all__ = ["LEAST_ROW_WEIGHT", "MOST_ROW_WEIGHT", "ExchangeableSPN"]

import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.base import DensityMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from pyro_structured.densities.distributions.sum_product_network import SumProductNetwork
from pyro_structured.densities.models.network_scores import NetworkScores
from pyro_structured.densities.models.region_network import RegionNetwork
from pyro_structured.densities.structures.region_tree import RegionTree
from pyro_structured.exchangeable.models.binary_estimator import BinaryEstimator
from pyro_structured.exchangeable.ops.binary_rows import Matrix
from pyro_structured.exchangeable.structures.partition import Partition
from pyro_structured.foundation.models.argument_checks import check_count, checked_numbers, weighted_mean
from pyro_structured.foundation.models.old_spellings import old_parameters, old_spellings
from pyro_structured.foundation.models.random_states import checked_generator, torch_draws
from pyro_structured.foundation.models.shared_fit import lone_fit
from pyro_structured.foundation.ops.parallel_tasks import in_parallel
from pyro_structured.foundation.ops.processor import methods_on_processor
from pyro_structured.foundation.ops.progress import progress_bar, verbosity
from pyro_structured.foundation.ops.row_pieces import row_pieces
from pyro_structured.foundation.ops.user_frame import frames_below_user
from pyro_structured.junction_trees.models.categorical_estimator import HELD_OUT, MOST_DEALT

# Number of steps in a row with a relative gain below the second number after which a network is finished.
PATIENCE, SMALLEST_GAIN = 2, 2e-5
# Largest smoothing: with more, the data would be lost in single precision.
MOST_SMOOTHING = 1e6
LEAST_ROW_WEIGHT, MOST_ROW_WEIGHT = 1e-30, 1e30
# Largest number of states: a region has a transition for each pair of its states and its parent's.
MOST_STATES = 2**12
# Rows without gaps that are scored at once; for those with gaps, the largest number of rows, networks, states and
# variables, multiplied.
ROWS, SCORED_AT_ONCE = 2**13, 2**20


class _Improved(NamedTuple):
    """Result of the learning of one network.

    :ivar tables: Tables of the best step; ``None`` after an interrupt before the first step.
    :ivar log_likelihoods: Mean log-likelihoods of the training rows for all steps.
    :ivar float score: Mean log-probability of the validation rows in the best step, in nats.
    :ivar bool settled: Whether the number of steps was sufficient.
    :ivar bool interrupted: Whether there was an interrupt from the keyboard.
    """

    tables: dict[str, Tensor] | None
    log_likelihoods: list[float]
    score: float
    settled: bool
    interrupted: bool


def _improve(network: RegionNetwork, held_out: Tensor, max_iter: int) -> _Improved:
    """Learns a network until its score stops improving.

    :param RegionNetwork network: The network, whose parameters are changed.
    :param Tensor held_out: Weights of the validation rows, shape ``(N,)``, not all 0.
    :param int max_iter: Largest number of steps.
    """
    best, waited, tables = -np.inf, 0, None
    gained: list[float] = []
    try:
        with progress_bar(total=max_iter, desc="EM", unit="step") as bar:
            for step in range(max_iter + 1):
                log_prob, counts, uses = network.expect()
                gained.append(float(log_prob @ network.weights / network.weights.sum()))
                score = float(log_prob @ held_out / held_out.sum())
                waited = 0 if score - best > SMALLEST_GAIN * abs(score) else waited + 1
                if step == 0 or score > best:
                    best, tables = score, network.tables()
                if waited == PATIENCE:
                    return _Improved(tables, gained, best, True, False)
                if step < max_iter:
                    network.maximize(counts, uses)
                    bar.update()
    except KeyboardInterrupt:
        return _Improved(tables, gained, best, True, True)
    return _Improved(tables, gained, best, False, False)


@old_parameters("n_networks", "n_states", "max_region_size", "smoothing", "max_iter", "binarize", "random_state")
@methods_on_processor
class ExchangeableSPN(DensityMixin, BinaryEstimator):  # type: ignore[misc]
    r"""Density of binary vectors: an average of sum-product networks with leaves of exchangeable variables.

    Each network is a :class:`~pyro_structured.distributions.SumProductNetwork`. Its regions join variables of large
    mutual information; the tree of the regions is that of largest mutual information. Rows are clustered for each
    region, and a state of the region starts as one cluster: a Chow-Liu tree and the blocks of
    :func:`merge_partition`. Then all parameters, and the trees, are improved by expectation maximisation. Networks
    differ by their random clusters, and by random weights of the rows with which the regions are found.

    Networks end learning, and the best step of each is kept, by the probability of rows that nothing else is learned
    from. With several numbers for ``smoothing``, the first network is learned with each, and all others with the best.

    Log-probabilities are exact, also of rows with missing values; learning needs complete rows (:class:`MEVMDensity`
    does not).

    :param int n_networks: Number M of networks, at least 1.
    :param int n_states: Number K of states of each region, from 1 to 4096; more states need more rows.
    :param int max_region_size: Largest number of variables in a region, at least 1. One region of all variables makes a
        network a mixture of leaves.
    :param smoothing: Number of rows, drawn like all the data, that are added to those of every state, from 0 to 1e6. A
        number, or several to choose from.
    :param int max_iter: Largest number of steps of expectation maximisation for each network, at least 1.
    :param binarize: Values above this number are ones. ``"auto"``: above 0, with a warning if there are others than 0
        and 1. ``None``: values have to be zeros and ones.
    :param n_jobs: Number of processes for the networks, as for scikit-learn; results are the same.
    :param verbose: ``None``: a progress bar if standard error is a terminal; ``True``: lines, too, where it is none;
        ``False``: neither.
    :param random_state: Seed, or ``numpy.random.RandomState``, of the networks, and of samples.
    :ivar log_likelihoods\_: Mean log-likelihoods of the rows that are learned from, for all steps of every network.
        With smoothing they may fall a little.
    :ivar float smoothing\_: The chosen number of rows.

    Cost about O(N n K (n + K)) a step; memory O(N n (n + K)), and O(M K (n + G K)) for networks of G regions.

    **References**

    Niepert, Domingos (2014): Exchangeable variable models. ICML. Section 6 suggests such leaves.
    Lüdtke, Bartelt, Stuckenschmidt (2022): Exchangeability-aware sum-product networks. IJCAI: another learner, which
    tests for exchangeability as it splits variables.
    Gens, Domingos (2013): Learning the structure of sum-product networks. ICML.
    Liu, Van den Broeck (2021): Tractable regularization of probabilistic circuits. NeurIPS: trees of latent states.

    Example::

        >>> x = np.random.default_rng(0).integers(2, size=(400, 2)).repeat(2, axis=1)  # two pairs of equal variables
        >>> model = ExchangeableSPN(n_networks=1, n_states=2, random_state=0).fit(x)
        >>> bool(model.score_samples([[1, 1, 0, 0]])[0] > model.score_samples([[1, 0, 1, 0]])[0] + 3)
        True
        >>> model.to_pyro().marginals.shape
        torch.Size([4])
    """

    def __init__(
        self,
        *,
        n_networks: int = 8,
        n_states: int = 40,
        max_region_size: int = 20,
        smoothing: float | Sequence[float] = (0.5, 2.0, 8.0),
        max_iter: int = 50,
        binarize: float | str | None = "auto",
        n_jobs: int | None = None,
        verbose: bool | None = None,
        random_state: Any = None,
    ) -> None:
        self.n_networks = n_networks
        self.n_states = n_states
        self.max_region_size = max_region_size
        self.smoothing = smoothing
        self.max_iter = max_iter
        self.binarize = binarize
        self.n_jobs = n_jobs
        self.verbose = verbose
        self.random_state = random_state

    @old_spellings("X_val")
    @lone_fit
    def fit(self, X: Any, y: Any = None, *, X_val: Any = None, sample_weight: Any = None) -> "ExchangeableSPN":
        """Learns the networks.

        An interrupt from the keyboard ends learning: the finished networks are kept, or the best step of the first one.

        :param X: Zeros and ones, or numbers that are binarised, shape ``(N, n)``: an array, a tensor, a data frame, a
            sparse matrix, or a ``DataLoader`` of torch, a table, file or dataset of pyarrow, which are read once.
        :param y: Not used.
        :param X_val: Validation rows, shape ``(M, n)``, on which a network is judged after every step: the best one is
            kept, and learning stops early. ``None``: a random tenth of the rows, from which nothing else is learned.
        :param sample_weight: Weights of the rows, 0, or 1e-30 to 1e30, not all 0, shape ``(N,)``: so many times a
            row counts.
        :raises ValueError: if a parameter is out of range, or the data are not zeros and ones.
        """
        self._check_parameters()
        rows = _dense(self._binarized(self._validate(X, reset=True, ensure_all_finite=True)))
        times = self._check_weights(sample_weight, rows)
        # In single precision, sums of other weights are infinite, or zero.
        counted = times > LEAST_ROW_WEIGHT
        if times.max() > MOST_ROW_WEIGHT or not counted.any():
            raise ValueError(f"sample_weight: expected 0, or {LEAST_ROW_WEIGHT:g} to {MOST_ROW_WEIGHT:g}, got others")
        rows, times = rows[counted], times[counted]
        judged = rows[:0]
        if X_val is not None:
            judged = _dense(self._binarized(self._validate_held_out(X_val, ensure_all_finite=True), "X_val"))
        # Equal rows are counted, because many data sets have few different ones.
        joined, places = np.unique(np.concatenate([rows, judged]), axis=0, return_inverse=True)
        places = places.reshape(-1)
        weights, held_out = (
            np.bincount(indices, row_weights, len(joined))
            for indices, row_weights in ((places[: len(rows)], times), (places[len(rows) :], None))
        )
        generator = checked_generator(self.random_state)
        if X_val is None:
            weights, held_out = hold_out(weights, generator)
        data = [torch.from_numpy(each.astype(np.float32)) for each in (joined, weights, held_out)]
        self._distribution = _assemble(self._learn(data, generator))
        self._scores = NetworkScores(self._distribution)
        return self

    def _learn(self, data: Sequence[Tensor], generator: np.random.RandomState) -> list[dict[str, Tensor]]:
        """Tables of all networks, or of those that were finished before an interrupt.

        :param data: Different rows, and their weights for learning and for judging.
        """
        values, weights, held_out = data
        seeds = generator.randint(2**31, size=self.n_networks)
        smoothings = checked_numbers("smoothing", self.smoothing)
        finished: list[_Improved] = []

        def tasks(seeds: np.ndarray, smoothings: Sequence[float]) -> Iterator[tuple[RegionNetwork, Tensor, int]]:
            """Networks, made one after the other, since each takes memory."""
            for seed in seeds:
                for smoothing in smoothings:
                    options = self.n_states, self.max_region_size, smoothing, np.random.RandomState(seed)
                    yield RegionNetwork(values, weights, *options), held_out, self.max_iter

        def learn(seeds: np.ndarray, smoothings: Sequence[float]) -> Iterator[_Improved]:
            number = len(seeds) * len(smoothings)
            shown = {"desc": "networks", "unit": "network"}
            for network in in_parallel(_improve, tasks(seeds, smoothings), number, self.n_jobs, **shown):
                # An interrupted network is kept only if no other is finished.
                if not network.interrupted or (network.tables is not None and not finished):
                    yield network
                if network.interrupted:
                    raise KeyboardInterrupt

        self.smoothing_ = smoothings[0]
        try:
            with verbosity(self.verbose):
                for smoothing, network in zip(smoothings, learn(seeds[:1], smoothings), strict=True):
                    if not finished or network.score > finished[0].score:
                        finished, self.smoothing_ = [network], smoothing
                for network in learn(seeds[1:], [self.smoothing_]):
                    finished.append(network)
        except KeyboardInterrupt:
            if not finished:
                raise
            message = f"fit was interrupted: {len(finished)} of {self.n_networks} networks are kept"
            warnings.warn(message, stacklevel=frames_below_user())
        self.log_likelihoods_ = [network.log_likelihoods for network in finished]
        unsettled = sum(not network.settled for network in finished)
        if unsettled:
            message = f"no convergence in {self.max_iter} steps of {unsettled} of {self.n_networks} networks"
            warnings.warn(message, ConvergenceWarning, stacklevel=frames_below_user())
        return [network.tables for network in finished if network.tables is not None]

    def _check_parameters(self) -> None:
        for name in ("n_networks", "max_region_size", "max_iter"):
            check_count(name, getattr(self, name))
        check_count("n_states", self.n_states, MOST_STATES)
        if max(checked_numbers("smoothing", self.smoothing)) > MOST_SMOOTHING:
            raise ValueError(f"smoothing: expected numbers from 0 to {MOST_SMOOTHING:g}, got {self.smoothing!r}")

    def score_samples(self, X: Any) -> np.ndarray:
        """Log-probabilities of rows, in nats; missing entries, NaN, are summed out.

        :param X: Numbers as for :meth:`fit`, and NaN, shape ``(N, n)``.
        :return: Float64, shape ``(N,)``.
        """
        check_is_fitted(self)
        rows = _dense(self._binarized(self._validate(X)))
        missing = np.isnan(rows)
        log_probs = torch.empty(len(rows), dtype=torch.float64)
        structure = self._distribution.structure
        size = structure.num_networks * structure.num_states * structure.num_variables
        with torch.no_grad():
            for batch in torch.from_numpy(np.flatnonzero(~missing.any(1))).split(ROWS):
                log_probs[batch] = self._scores(torch.from_numpy(rows[batch.numpy()].astype(np.float64)))
            for batch in torch.from_numpy(np.flatnonzero(missing.any(1))).split(max(1, SCORED_AT_ONCE // size)):
                values = torch.from_numpy(np.nan_to_num(rows[batch.numpy()].astype(np.float64)))
                observed = torch.from_numpy(~missing[batch.numpy()])
                log_probs[batch] = self._distribution.marginal_log_prob(values, observed)
        return log_probs.numpy()

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Mean log-probability of rows, in nats.

        :param y: Not used.
        :param sample_weight: Weights of the rows, as for :meth:`fit`.
        """
        return weighted_mean(self.score_samples(X), sample_weight)

    def sample(self, n_samples: int = 1, random_state: Any = None) -> np.ndarray:
        """Draws rows: zeros and ones, uint8, shape ``(n_samples, n)``.

        :param int n_samples: Number of rows, at least 1.
        :param random_state: Seed, with which two calls draw the same, or ``numpy.random.RandomState``; torch's
            generator stays as it is. ``None``: that of the constructor; if this is ``None``, too, torch's generator.
        :raises ValueError: if an argument is of another kind.
        """
        check_is_fitted(self)
        check_count("n_samples", n_samples)
        with torch_draws(self.random_state if random_state is None else random_state):
            return self._distribution.sample((n_samples,)).numpy().astype(np.uint8)

    def to_pyro(self) -> SumProductNetwork:
        """Density as a Pyro distribution, in float64; cast its samples for models in float32."""
        check_is_fitted(self)
        return self._distribution

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_distribution")

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = False
        return tags


def _dense(values: Matrix) -> np.ndarray:
    """Zeros, ones and NaN in the smallest type."""
    if isinstance(values, np.ndarray):
        return values
    kind = np.float16 if np.isnan(values.data).any() else np.uint8
    dense = np.empty(values.shape, dtype=kind)
    for piece in row_pieces(*values.shape):
        dense[piece] = values[piece].toarray()
    return dense


def hold_out(weights: np.ndarray, generator: np.random.RandomState) -> tuple[np.ndarray, np.ndarray]:
    """Weights of different rows, divided at random: nine tenths to learn from, and a tenth to judge by.

    Whole weights are numbers of equal rows, which are drawn one by one; a single row is in both parts.

    :param np.ndarray weights: Weights of at least 0, shape ``(R,)``.

    Example::

        >>> training, judged = hold_out(np.array([15.0, 5.0]), np.random.RandomState(0))
        >>> training.sum(), judged.sum()
        (np.float64(18.0), np.float64(2.0))
    """
    if (weights % 1 == 0).all() and weights.sum() <= MOST_DEALT:
        rows, each = np.arange(len(weights)).repeat(weights.astype(int)), np.ones(int(weights.sum()))
    else:
        rows, each = weights.nonzero()[0], weights[weights > 0]
    if len(rows) == 1:
        return weights, weights
    chosen = generator.permutation(len(rows))[: max(1, round(HELD_OUT * len(rows)))]
    judged = np.bincount(rows[chosen], each[chosen], len(weights))
    return np.bincount(rows, each, len(weights)) - judged, judged


def _assemble(tables: list[dict[str, Tensor]]) -> SumProductNetwork:
    """Mixture of all networks; networks with fewer regions than others get empty ones."""
    number = max(len(table["region_parents"]) for table in tables)

    def stack(name: str) -> Tensor:
        return torch.stack([table[name] for table in tables])

    def pad(name: str) -> Tensor:
        tensors = [table[name] for table in tables]
        return torch.stack([torch.cat([t, t.new_zeros(number - len(t), *t.shape[1:])]) for t in tensors])

    return SumProductNetwork(
        torch.zeros(len(tables), dtype=torch.float64),
        pad("transition_logits").double(),
        pad("leaf_logits").double(),
        stack("conditional_logits").double(),
        stack("statistic_logits").double(),
        RegionTree(
            stack("regions"),
            pad("region_parents"),
            stack("parents"),
            Partition(stack("labels")),
        ),
    )
