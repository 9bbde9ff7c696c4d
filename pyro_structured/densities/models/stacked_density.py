"""Average of several density estimators, with weights from held-out rows."""

__all__ = ["StackedDensity", "StackedMember"]

import math
import time
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from pyro_structured.densities.distributions.mixture_of_densities import MixtureOfDensities
from pyro_structured.densities.models.exchangeable_spn import LEAST_ROW_WEIGHT, MOST_ROW_WEIGHT, ExchangeableSPN
from pyro_structured.densities.models.latent_tree_density import (
    LatentTreeDensity,
    average_score,
    mixture_log_probs,
    stacking_weights,
)
from pyro_structured.exchangeable.models.mevm_density import MEVMDensity
from pyro_structured.foundation.models.random_states import checked_generator
from pyro_structured.foundation.models.shared_fit import lone_fit
from pyro_structured.foundation.ops.processor import methods_on_processor
from pyro_structured.foundation.ops.progress import progress_bar, time_limit, verbosity
from pyro_structured.foundation.ops.user_frame import frames_below_user
from pyro_structured.foundation.structures.argument_checks import check_positive
from pyro_structured.foundation.structures.representation import shortened
from pyro_structured.junction_trees.models.categorical_estimator import CategoricalDensity
from pyro_structured.junction_trees.models.junction_tree_mixture import JunctionTreeMixture
from pyro_structured.junction_trees.models.thin_junction_tree import ThinJunctionTree

# Seconds to learn in, and those for data with more columns than the number below.
BUDGET, LONG_BUDGET, WIDE = 280.0, 840.0, 200
# Rows below which tables of many states are too large to be learned well.
FEW_ROWS = 5_000
# Entries of the data up to which a mixture of blocks has several starts: in larger data, each takes long.
STARTS, MOST_ENTRIES = 10, 2**22
# Members of smaller weight are left out.
SMALLEST_WEIGHT = 1e-3
INTERRUPTED, TIME_UP = "fit was interrupted", "time was up"


class StackedMember(NamedTuple):
    """What a member of a stack has got.

    :ivar str name: Its name.
    :ivar float weight: Its weight, 0 if it was left out.
    :ivar float score: Mean log-probability that it gives validation rows, in nats; NaN if it was not learned.
    :ivar float seconds: Time that it took.
    :ivar str note: Why it was not learned, or that its time was up; empty if neither.
    """

    name: str
    weight: float
    score: float
    seconds: float
    note: str


@methods_on_processor
class StackedDensity(CategoricalDensity):
    r"""Density of categorical vectors that is an average of several estimators' densities, the one to take first.

    .. math::
        p(x) = \sum_m w_m p_m(x).

    Members are learned one after the other from the same rows, each with a share of the time that the members before
    have left: trees of latent variables, which may take most, such trees of few states, if there are less than 5,000
    rows besides validation rows, the tree of Chow and Liu, a junction tree, a mixture of junction trees, and, for
    columns of two categories, a mixture of exchangeable blocks, with ten starts up to four million entries, and a
    sum-product network. Weights are those that give validation rows the largest probability, which is a concave
    problem. On such rows, the average is never worse than the best member. Rows that are impossible under all members
    do not count for weights.

    Columns may have any categories, and missing values (NaN, None or pandas' NA). A sum-product network is only learned
    if rows and validation rows are complete, and no weight of a row is below 1e-30 or above 1e30.

    **Exact**: log-probabilities, also of rows with missing values, and samples; members are local optima. Which steps
    fit into the time depends on the machine: results are the same again if no member's time was up.

    :param members: Pairs of a name and an estimator of the package with ``to_pyro``, which learns from codes (places
        in ``categories_``) instead of the default members. Their ``categories`` are set to all codes; those that have
        no such parameter are for columns of two categories. A ``random_state`` of ``None`` is set to a seed.
    :param time_budget: Seconds after which no further step is begun, and no further member once one has been learned.
        Members keep what they have. Steps take up to a few seconds where there are hundreds of columns or 1e5 rows, and
        reading rows and choosing weights take as long as they do. ``None``: 280, and 840 for more than 200 columns;
        ``math.inf``: no limit.
    :param categories: As for :class:`ThinJunctionTree`.
    :param str handle_unknown: As for :class:`ThinJunctionTree`.
    :param device: As for :class:`LatentTreeDensity`, for trees of latent variables.
    :param verbose: ``None``: a progress bar if standard error is a terminal; ``True``: lines, too, where it is none;
        ``False``: neither.
    :param random_state: Seed, or ``numpy.random.RandomState``, of members, of the choice of validation rows, and of
        samples.
    :ivar members\_: A :class:`StackedMember` for each member: its weight, score and time.
    :ivar estimators\_: The estimators that are averaged, by name.
    :ivar weights\_: Their weights, of sum 1.

    Cost: that of all members.

    **References**

    Smyth, Wolpert (1999): Linearly combining density estimators via stacking. Machine Learning 36.

    Example::

        >>> rng = np.random.default_rng(0)
        >>> X = rng.integers(3, size=(600, 2)).repeat(2, axis=1)
        >>> model = StackedDensity(random_state=0).fit(X)
        >>> [member.name for member in model.members_]
        ['latent trees', 'latent trees of few states', 'Chow-Liu tree', 'junction tree', 'mixture of junction trees']
        >>> round(float(np.exp(model.score_samples([[2, 2, 0, 0]])[0])), 1)
        0.1
    """

    def __init__(
        self,
        *,
        members: Sequence[tuple[str, Any]] | None = None,
        time_budget: float | None = None,
        categories: str | int | Sequence[Any] = "auto",
        handle_unknown: str = "other",
        device: Any = None,
        verbose: bool | None = None,
        random_state: Any = None,
    ) -> None:
        self.members = members
        self.time_budget = time_budget
        self.categories = categories
        self.handle_unknown = handle_unknown
        self.device = device
        self.verbose = verbose
        self.random_state = random_state

    @lone_fit
    def fit(self, X: Any, y: Any = None, *, X_val: Any = None, sample_weight: Any = None) -> "StackedDensity":
        """Learns the members and their weights.

        An interrupt from the keyboard ends learning: the members so far are averaged; without any, it is raised again.

        :param X: Categories, shape ``(N, n)``: an array, a tensor, a data frame, a sparse matrix, or a ``DataLoader``
            of torch, a table, file or dataset of pyarrow, which are read once.
        :param y: Not used.
        :param X_val: Validation rows, shape ``(M, n)``, on which members end learning and weights are chosen. ``None``:
            a random tenth of the rows, from which nothing else is learned.
        :param sample_weight: Weights of the rows, from 0 to 1e290, not all 0, shape ``(N,)``: so many times a row
            counts.
        :raises ValueError: if an argument is out of range, a column has no value, there is a category that
            ``handle_unknown`` makes an error, or time was up for all members.
        """
        start = time.monotonic()
        if self.time_budget is not None and not (isinstance(self.time_budget, float) and self.time_budget == math.inf):
            check_positive("time_budget", self.time_budget)
        codes, weights = self._learn_categories(X, sample_weight)
        budget = LONG_BUDGET if codes.shape[1] > WIDE else BUDGET
        end = start + (budget if self.time_budget is None else self.time_budget)
        generator = checked_generator(self.random_state)
        codes, weights, (judged, shares) = self._divide_codes(codes, weights, X_val, generator)
        options: dict[str, Any] = {"X_val": _with_gaps(judged)}
        if (weights != 1).any():
            options["sample_weight"] = weights
        self.members_: list[StackedMember] = []
        learned: list[Any] = []
        with verbosity(self.verbose):
            is_complete = bool((codes >= 0).all() and (judged >= 0).all())
            counted = weights[weights > 0]
            is_plain = is_complete and LEAST_ROW_WEIGHT < counted.min() and counted.max() <= MOST_ROW_WEIGHT
            members = self._candidates(codes, bool(is_plain), generator.randint(2**31))
            for name, estimator, part in progress_bar(members, desc="members", unit="member"):
                start = time.monotonic()
                if start >= end and any(known is not None for known in learned):
                    learned.append(None)
                    self.members_.append(StackedMember(name, 0.0, math.nan, 0.0, TIME_UP))
                    continue
                try:
                    outcome = _fit_within(part * (end - start), estimator, _with_gaps(codes), options)
                except ValueError as error:
                    raise ValueError(f"members: {name}: {error}") from error
                seconds = time.monotonic() - start
                learned.append(estimator if outcome.is_learned else None)
                self.members_.append(StackedMember(name, 0.0, math.nan, seconds, outcome.note))
                if outcome.is_interrupted:
                    if not any(estimator is not None for estimator in learned):
                        raise KeyboardInterrupt
                    warnings.warn(
                        f"{INTERRUPTED}: {len(learned)} of {len(members)} members were tried",
                        stacklevel=frames_below_user(),
                    )
                    break
        self._weigh(learned, _with_gaps(judged), shares / shares.sum())
        return self

    def _candidates(self, codes: np.ndarray, is_plain: bool, seed: int) -> list[tuple[str, Any, float]]:
        """Names of the members, estimators, and the share that each may take of the time that is left.

        :param bool is_plain: Whether no entry is missing, in validation rows neither, and weights are moderate.
        """
        if self.members is not None:
            given = _checked_members(self.members)
            own = [(name, _seeded(self._of_codes(name, clone(each)), seed)) for name, each in given]
            return [(name, each, 1 / (len(own) - place)) for place, (name, each) in enumerate(own)]
        columns: dict[str, Any] = {"categories": self._all_codes, "handle_unknown": "error", "random_state": seed}
        most, is_wide = len(np.unique(codes, axis=0)), codes.shape[1] > WIDE
        latent = LatentTreeDensity(n_states=32 if is_wide else 64, n_trees=4, device=self.device, **columns)
        members = [("latent trees", latent, 0.6)]
        if len(codes) < FEW_ROWS:
            few_states = LatentTreeDensity(n_states=8, n_trees=4, device=self.device, **columns)
            members.append(("latent trees of few states", few_states, 0.2))
        members += [
            ("Chow-Liu tree", ThinJunctionTree(treewidth=1, **columns), 0.2),
            ("junction tree", ThinJunctionTree(**columns), 0.2),
            ("mixture of junction trees", JunctionTreeMixture(n_components=min(10, most), **columns), 0.4),
        ]
        if set(self._num_states) == {2}:
            options: dict[str, Any] = {"binarize": None, "random_state": seed}
            n_init = STARTS if codes.size <= MOST_ENTRIES else 1
            blocks = MEVMDensity(n_components=min(20, most), n_init=n_init, **options)
            members.append(("exchangeable blocks", blocks, 0.4))
            if is_plain:
                members.append(("sum-product network", ExchangeableSPN(**options), 1.0))
        return members

    @property
    def _all_codes(self) -> list[list[int]]:
        """Codes of all columns, those of unknown values too."""
        return [list(range(number)) for number in self._num_states]

    def _of_codes(self, name: str, estimator: Any) -> Any:
        """The estimator with the codes as its categories, also those that training rows lack: without them, its states
        would be others than those of the average.
        """
        if "categories" in estimator.get_params(deep=False):
            return estimator.set_params(categories=self._all_codes)
        if set(self._num_states) != {2}:
            raise ValueError(
                "members: expected estimators with a parameter categories, as columns have "
                f"{shortened(self._num_states)} states, got {type(estimator).__name__} for {name!r}"
            )
        return estimator

    def _weigh(self, learned: Sequence[Any], judged: np.ndarray, shares: np.ndarray) -> None:
        """Keeps the members that get a weight.

        :param learned: Estimators of all members in ``members_``, ``None`` for those that were not learned.
        :param np.ndarray judged: Validation rows, shape ``(M, n)``.
        :param np.ndarray shares: Their weights, of sum 1.
        """
        known = [place for place, estimator in enumerate(learned) if estimator is not None]
        if not known:
            notes = [f"{member.name}: {member.note}" for member in self.members_]
            raise ValueError(f"time_budget: expected time for at least one member, got none in time: {notes}")
        log_probs = np.stack([learned[place].score_samples(judged) for place in known], 1)
        scores = shares @ log_probs
        weights = stacking_weights(log_probs, shares)
        fewer = np.where(weights < SMALLEST_WEIGHT, 0.0, weights)
        fewer = fewer / fewer.sum()
        # A member of small weight may be the only one that gives some row a probability.
        if average_score(log_probs, shares, fewer) >= scores.max():
            weights = fewer
        for place, weight, score in zip(known, weights, scores, strict=True):
            self.members_[place] = self.members_[place]._replace(weight=float(weight), score=float(score))
        self.weights_ = weights[weights > 0]
        kept = [place for place, weight in zip(known, weights, strict=True) if weight > 0]
        self.estimators_ = {self.members_[place].name: learned[place] for place in kept}

    def score_samples(self, X: Any) -> np.ndarray:
        """Log-probabilities of rows, in nats; missing entries are summed out.

        :param X: Categories, shape ``(N, n)``.
        :raises ValueError: if there is a category that ``handle_unknown`` makes an error.
        """
        check_is_fitted(self)
        rows = _with_gaps(self._read(X))
        scores = np.stack([estimator.score_samples(rows) for estimator in self.estimators_.values()], 1)
        return mixture_log_probs(scores, self.weights_)

    def to_pyro(self) -> MixtureOfDensities:
        """Density as a Pyro distribution of codes: places in ``categories_``, and the place after them for unknown
        values, where a column has a state for them; in float64 on the processor.
        """
        check_is_fitted(self)
        members = [estimator.to_pyro() for estimator in self.estimators_.values()]
        return MixtureOfDensities(torch.from_numpy(self.weights_).log(), members)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "estimators_")


def _seeded(estimator: Any, seed: int) -> Any:
    """The estimator with a seed, unless it has one, or takes none."""
    if estimator.get_params(deep=False).get("random_state", 0) is None:
        estimator.set_params(random_state=seed)
    return estimator


def _with_gaps(codes: np.ndarray) -> np.ndarray:
    """Codes as other estimators read them: NaN in place of -1, if there are any."""
    # In the smallest type that holds them.
    return codes if (codes >= 0).all() else np.where(codes < 0, np.float16(np.nan), codes)


def _checked_members(members: Any) -> list[tuple[str, Any]]:
    """Pairs of a name and an estimator, or a ValueError."""
    pairs = members if isinstance(members, (list, tuple)) else []
    fine = [
        isinstance(pair, (list, tuple))
        and len(pair) == 2
        and isinstance(pair[0], str)
        and all(hasattr(pair[1], name) for name in ("fit", "score_samples", "to_pyro"))
        and not isinstance(pair[1], type)
        for pair in pairs
    ]
    if not fine or not all(fine) or len({pair[0] for pair in pairs}) < len(pairs):
        raise ValueError(
            "members: expected pairs of different names and of estimators with fit, score_samples and to_pyro, got "
            f"{shortened(members)}"
        )
    return [(name, estimator) for name, estimator in pairs]


class _Outcome(NamedTuple):
    """Outcome of the fit of a member.

    :ivar bool is_learned: Whether it can be used.
    :ivar str note: What happened, if anything.
    :ivar bool is_interrupted: Whether there was an interrupt from the keyboard.
    """

    is_learned: bool
    note: str
    is_interrupted: bool


def _fit_within(seconds: float, estimator: Any, X: np.ndarray, options: dict[str, Any]) -> _Outcome:
    """Fits an estimator, whose iterations end when time is up, with what they have.

    :param float seconds: Largest time.
    :param options: Options of ``fit``.
    """
    end = time.monotonic() + seconds
    with warnings.catch_warnings(record=True) as caught, time_limit(seconds):
        warnings.simplefilter("always")
        try:
            estimator.fit(X, **options)
            is_learned = True
        except KeyboardInterrupt:
            is_learned = False
    is_up = time.monotonic() >= end
    messages = [str(warning.message) for warning in caught]
    # Estimators keep the best of what they have, and warn, whatever it was that interrupted them.
    is_short = not is_learned or any(INTERRUPTED in message for message in messages)
    for warning, message in zip(caught, messages, strict=True):
        if INTERRUPTED not in message and not issubclass(warning.category, ConvergenceWarning):
            warnings.warn(warning.message, stacklevel=frames_below_user())
    return _Outcome(is_learned, TIME_UP if is_short and is_up else "", is_short and not is_up)
