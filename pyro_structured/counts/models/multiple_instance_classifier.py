"""Classification of bags of which only some instances say what the bag is."""

__all__ = ["MultipleInstanceClassifier"]

import copy
import math
import warnings
from collections.abc import Callable
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d
from torch import Tensor
from torch.func import functional_call

from pyro_structured.counts.distributions.bag_label import BagLabel
from pyro_structured.counts.distributions.recursive_cardinality import RecursiveCardinality
from pyro_structured.counts.models.bag_law import LAWS, BagLaw
from pyro_structured.counts.models.bags import Bags
from pyro_structured.foundation.models.argument_checks import check_count, checked_weights, plain_array
from pyro_structured.foundation.models.missing_values import find_missing
from pyro_structured.foundation.models.number_tables import read_held_out, read_numbers
from pyro_structured.foundation.models.random_states import checked_generator
from pyro_structured.foundation.models.shared_fit import lone_fit
from pyro_structured.foundation.models.sparse_descent import descend
from pyro_structured.foundation.ops.processor import methods_on_processor
from pyro_structured.foundation.ops.progress import progress_bar, verbosity
from pyro_structured.foundation.ops.user_frame import frames_below_user
from pyro_structured.foundation.structures.argument_checks import check_choice

# Standard deviations at which features are cut: a score is linear, and no row is to outweigh all others.
FARTHEST = 5.0
# Standard deviation of a column, in units of the rounding of its largest number, up to which it counts as constant.
ROUNDING = 10.0
# Numbers among hyperparameters: what they have to be, and a check.
NUMBERS: dict[str, tuple[str, Callable[[float], bool]]] = {
    "strength": ("more than 0 and less than 1", lambda value: 0 < value < 1),
    "leak": ("at least 0 and less than 1", lambda value: 0 <= value < 1),
    "fraction": ("more than 0 and at most 1", lambda value: 0 < value <= 1),
    "scale": ("more than 0", lambda value: 0 < value < math.inf),
    "l1": ("at least 0", lambda value: 0 <= value < math.inf),
    "l2": ("at least 0", lambda value: 0 <= value < math.inf),
    "learning_rate": ("more than 0", lambda value: 0 < value < math.inf),
    "tol": ("at least 0", lambda value: 0 <= value < math.inf),
}


@methods_on_processor
class MultipleInstanceClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    r"""Classifies bags of instances: a label says how many of a bag's instances are positive, not which ones.

    .. math::
        p(t \mid x) \propto \sum_{y \in \{0, 1\}^n} \exp\Big(f_t\big(\sum_d y_d\big) + \sum_{d=1}^n y_d\, s(x_d)\Big),
        \qquad t \in \{0, 1\},

    for a bag of n instances with features :math:`x_d`. The scores s are linear, or a module; the *law*
    :math:`f_t` says which counts go with which label. This is :class:`~pyro_structured.distributions.BagLabel`. Of more
    than two classes, each has scores of its own and is positive or not, given that exactly one is positive:
    :math:`p(k \mid x) \propto Z_1(s_k) / Z_0(s_k)`; where each row is a bag, that is logistic regression, for the law
    of one positive instance.

    Features are standardised, with the mean and the standard deviation of the training rows, and cut at five standard
    deviations.

    **Exact**: the likelihood, its gradient and all probabilities. The weights are a local maximum, up to ``tol``; L1
    gives exact zeros.

    :param law: ``"noisy_or"``: each positive instance makes the bag positive with probability ``strength``, and nothing
        does with probability ``leak``. ``"normal"``: :math:`f_t(c) = -(c / n - \mu_t)^2 / (2 \sigma^2)`, where
        :math:`\mu_0 = 0`, :math:`\mu_1` is ``fraction``, :math:`\sigma` is ``scale``. ``"at_least"``: a bag is positive
        if at least ``fraction`` of its instances are, and one. ``"exactly"``: if ``count`` are. ``"learned"``: both
        :math:`f_t` are linear between nine fractions of positive instances, and begin as ``"normal"``; the prior of
        their deviations is standard normal. A callable ``law(n)`` makes tables of shape ``(T, n + 1)``; a tensor of
        tables, shape ``(T, D + 1)``, is for bags of at most D instances. T is 2, or the number of classes, and then
        all classes share one score.
    :param float strength: Between 0 and 1. Below .3, hardly any number of positive instances makes a bag positive.
    :param float leak: In [0, 1).
    :param float fraction: In (0, 1].
    :param float scale: Positive.
    :param int count: At least 1, at most the number of instances of the smallest bag.
    :param torch.nn.Module module: Module that maps standardised features, float64 of shape ``(N, columns)``, to scores,
        shape ``(N, 1)``, or ``(N, classes)`` where each class has its own. A copy is trained, in evaluation mode,
        except parameters that require no gradient. ``None``: ``torch.nn.Linear`` that begins with zeros.
    :param float l1: Factor of the sum of absolute values of the weights, the trained parameters with at least two axes,
        beside the sum of the bags' negative log-likelihoods; at least 0.
    :param float l2: Factor of half the sum of their squares, at least 0.
    :param batch_size: Number of bags in a step of Adam; bags of about the same size are together. Then there are
        ``max_iter`` passes over all bags, whatever ``tol``. ``None``: L-BFGS on all bags together.
    :param float learning_rate: Size of Adam's steps, positive.
    :param float tol: Tolerance of L-BFGS, at least 0: largest entry of the projected gradient of the objective for each
        bag.
    :param int max_iter: Largest number of iterations of L-BFGS, or the number of passes; at least 1.
    :param verbose: ``None``: a progress bar if standard error is a terminal; ``True``: lines, too, where it is none;
        ``False``: neither.
    :param random_state: Seed, or ``numpy.random.RandomState``, of the order of batches.
    :ivar classes\_: Labels of bags, shape ``(K,)``.
    :ivar module\_: The trained module.
    :ivar coef\_: Weights of standardised features, shape ``(scores, columns)``, where there is no module.
    :ivar intercept\_: Scores of the mean of all features, shape ``(scores,)``, where there is no module.
    :ivar n_iter\_: Number of iterations or passes.

    Results for bags are in the order of ``np.unique(groups)``. Cost of an iteration: that of
    :class:`~pyro_structured.distributions.BagLabel`, bags of similar size padded together.

    **References**

    Tarlow, Swersky, Zemel, Adams, Frey (2012): Fast exact inference for recursive cardinality models. UAI. Section 6.3
    and Figure 8.
    Dietterich, Lathrop, Lozano-Perez (1997): Solving the multiple instance problem with axis-parallel rectangles.
    Artificial Intelligence.

    Example::

        >>> rng = np.random.default_rng(0)
        >>> X, bag = rng.normal(size=(600, 2)), np.arange(600) // 3
        >>> positive = X[:, 0] > 1.2  # not known
        >>> y = np.isin(bag, bag[positive])  # one positive instance, or more
        >>> classifier = MultipleInstanceClassifier(law="noisy_or").fit(X, y, bag)
        >>> classifier.predict_proba(X, bag).shape
        (200, 2)
        >>> found = classifier.predict_instance_proba(X, bag) > 0.5
        >>> bool((found == positive).mean() > 0.95)
        True
    """

    module_: torch.nn.Module

    def __init__(
        self,
        *,
        law: Any = "noisy_or",
        strength: float = 0.9,
        leak: float = 0.01,
        fraction: float = 0.5,
        scale: float = 0.2,
        count: int = 1,
        module: torch.nn.Module | None = None,
        l1: float = 0.0,
        l2: float = 1.0,
        batch_size: int | None = None,
        learning_rate: float = 0.01,
        tol: float = 1e-4,
        max_iter: int = 1000,
        verbose: bool | None = None,
        random_state: Any = None,
    ) -> None:
        self.law = law
        self.strength = strength
        self.leak = leak
        self.fraction = fraction
        self.scale = scale
        self.count = count
        self.module = module
        self.l1 = l1
        self.l2 = l2
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.tol = tol
        self.max_iter = max_iter
        self.verbose = verbose
        self.random_state = random_state

    # Also where gradients are switched off.
    @torch.inference_mode(False)
    @torch.enable_grad()
    @lone_fit
    def fit(
        self,
        X: Any,
        y: Any,
        groups: Any = None,
        sample_weight: Any = None,
        *,
        X_val: Any = None,
        y_val: Any = None,
        groups_val: Any = None,
    ) -> "MultipleInstanceClassifier":
        """Learns the weights. An interrupt from the keyboard keeps those of the last iteration.

        :param X: Numbers, a row for each instance, shape ``(N, columns)``.
        :param y: Labels of the rows' bags, equal in a bag, shape ``(N,)``.
        :param groups: Labels that tell which rows are a bag, shape ``(N,)``; ``None``: each row is one.
        :param sample_weight: Weights of the rows, equal in a bag, from 0 to 1e290, not all 0, shape ``(N,)``: the
            numbers of times that bags count.
        :param X_val: Validation rows: the iteration is kept whose weights give their bags the largest likelihood.
        :param y_val: Their bags' labels.
        :param groups_val: Which of them are a bag.
        :raises ValueError: if a parameter is out of range, a label or weight is not constant in a bag, which the
            message names, the law gives a bag's label no probability, or a loss is not finite.
        """
        self._check_parameters()
        generator = checked_generator(self.random_state)
        values, labels, bags, weights = self._read(X, y, groups, sample_weight)
        self.classes_, targets = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y: expected labels of at least two classes, got one class, {labels[0]}")
        self._standardise(values, weights[bags.numbers])
        objective = _Objective(self, self._inputs(values), bags, targets, weights)
        with verbosity(self.verbose):
            kept = _Best(self._validation(X_val, y_val, groups_val))
            vector, self.n_iter_ = self._learn(objective, kept, generator)
        self.module_, self._learned = objective.finished(vector if kept.vector is None else kept.vector)
        if self.module is None:
            self.coef_, self.intercept_ = (value.detach().numpy() for value in self.module_.parameters())
        return self

    def _check_parameters(self) -> None:
        for name in ("count", "max_iter", *(("batch_size",) if self.batch_size is not None else ())):
            check_count(name, getattr(self, name))
        for name, (expected, fits) in NUMBERS.items():
            value = getattr(self, name)
            if not isinstance(value, Real) or isinstance(value, bool) or not fits(float(value)):
                raise ValueError(f"{name}: expected a number of {expected}, got {value!r}")
        if self.module is not None and not isinstance(self.module, torch.nn.Module):
            raise ValueError(f"module: expected a torch.nn.Module or None, got {type(self.module).__name__}")
        if isinstance(self.law, str):
            check_choice("law", self.law, LAWS)
            self._law = LAWS[self.law](self)
        elif callable(self.law):
            self._law = BagLaw.from_function(self.law)
        else:
            self._law = BagLaw.from_table(self.law)

    def _read(self, X: Any, y: Any, groups: Any, sample_weight: Any) -> tuple[np.ndarray, np.ndarray, Bags, np.ndarray]:
        """Rows of positive weight, and labels and weights of their bags."""
        values = read_numbers(self, X, reset=True)
        weights = checked_weights(sample_weight, len(values))
        bags = Bags(groups, len(values))
        bags.constant(weights, "sample_weight")
        counted = weights > 0
        if y is None:
            raise ValueError("y: MultipleInstanceClassifier requires y to be passed, but the target y is None")
        labels = self._labels(y, bags, "y")[bags.numbers][counted]
        bags = Bags(bags.numbers[counted], int(counted.sum()))
        return values[counted], bags.constant(labels, "y"), bags, bags.constant(weights[counted], "sample_weight")

    @staticmethod
    def _labels(y: Any, bags: Bags, name: str) -> np.ndarray:
        """Labels of bags."""
        y = plain_array(y, name)
        check_consistent_length(bags.numbers, y)
        labels = column_or_1d(y, warn=True)
        if find_missing(labels).any():
            raise ValueError(f"{name}: expected labels, got missing ones (NaN)")
        check_classification_targets(labels)
        return bags.constant(labels, name)

    def _numbers(self, labels: np.ndarray, name: str) -> np.ndarray:
        """Places of labels among the classes, or a ValueError."""
        unknown = ~np.isin(labels, self.classes_)
        if unknown.any():
            raise ValueError(f"{name}: expected labels among {self.classes_.tolist()}, got {labels[unknown][0]}")
        return np.searchsorted(self.classes_, labels)

    def _standardise(self, values: np.ndarray, weights: np.ndarray) -> None:
        # In units in which nothing overflows, and around a first mean, for columns far from 0.
        weights = weights / weights.max()
        units = np.abs(values).max(0, initial=0.0)
        scaled = values / np.where(units > 0, units, 1.0)
        means = np.average(scaled, 0, weights)
        means += np.average(scaled - means, 0, weights)
        scales = np.sqrt(np.average((scaled - means) ** 2, 0, weights))
        constant = scales <= ROUNDING * np.finfo(np.float64).eps
        self._means, self._scales = means * units, np.where(constant, np.inf, scales * units)

    def _inputs(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(((values - self._means) / self._scales).clip(-FARTHEST, FARTHEST))

    def _validation(self, X: Any, y: Any, groups: Any) -> "_Objective | None":
        if X is None and y is None and groups is None:
            return None
        if X is None:
            raise ValueError("X_val: expected validation rows, got None")
        values = read_held_out(self, X)
        if y is None:
            raise ValueError("y_val: expected labels of the validation rows, got None")
        bags = Bags(groups, len(values))
        targets = self._numbers(self._labels(y, bags, "y_val"), "y_val")
        return _Objective(self, self._inputs(values), bags, targets, np.ones(len(targets)))

    def _learn(
        self, objective: "_Objective", kept: "_Best", generator: np.random.RandomState
    ) -> tuple[np.ndarray, int]:
        """Parameters in the end, and the number of iterations or passes."""
        objective.check_start()
        if self.batch_size is not None:
            return self._step(objective, kept, generator, self.batch_size)
        prices = float(self.l1) / objective.total * objective.penalised.numpy()
        tol = float(self.tol)
        found = descend(objective.gradient, objective.start.numpy(), prices, tol, self.max_iter, kept)
        if found.slope is None or found.slope > tol:
            reason = "it was interrupted" if found.slope is None else "there is no convergence"
            message = f"{reason} after {found.num_iterations} iterations"
            warnings.warn(message, ConvergenceWarning, stacklevel=frames_below_user())
        return found.vector, found.num_iterations

    def _step(
        self, objective: "_Objective", kept: "_Best", generator: np.random.RandomState, size: int
    ) -> tuple[np.ndarray, int]:
        """Steps of Adam, each followed by the proximal step of L1 with Adam's own size for each weight."""
        vector = objective.start.clone().requires_grad_()
        prices = float(self.l1) / objective.total * objective.penalised
        optimizer = torch.optim.Adam([vector], lr=float(self.learning_rate))
        number = 0
        try:
            for _ in progress_bar(range(self.max_iter), desc="passes", unit="pass"):
                batches = [objective.block(part) for part in objective.bags.batches(size, generator)]
                for batch in batches:
                    optimizer.zero_grad()
                    loss = objective.loss(vector, batch) * len(batches) + objective.penalty(vector)
                    if not bool(loss.isfinite()):
                        raise ValueError(f"learning_rate: expected steps with finite losses, got {loss.item()}")
                    loss.backward()
                    optimizer.step()
                    _shrink(vector, prices, optimizer)
                number += 1
                kept(vector.detach().numpy())
        except KeyboardInterrupt:
            message = f"it was interrupted after {number} passes"
            warnings.warn(message, ConvergenceWarning, stacklevel=frames_below_user())
        return vector.detach().numpy(), number

    def _bag_labels(self, X: Any, groups: Any) -> tuple[Bags, list[tuple[np.ndarray, Tensor, BagLabel]]]:
        """Bags; and, for each block, its bags, their rows, and labels with a batch of scores and bags."""
        check_is_fitted(self)
        inputs = self._inputs(read_numbers(self, X, reset=False))
        bags = Bags(groups, len(inputs))
        with torch.no_grad():
            found = [(block, bags.rows(block), self._labels_of(inputs, bags, block)) for block in bags.blocks()]
        return bags, found

    def _labels_of(self, inputs: Tensor, bags: Bags, block: np.ndarray) -> BagLabel:
        """Labels of some bags, with a batch of scores and bags."""
        scores = self.module_(inputs[bags.rows(block)])
        return _distribution(scores, bags.places(block), self._law.tables(bags.sizes[block], self._learned))

    def predict_log_proba(self, X: Any, groups: Any = None) -> np.ndarray:
        """Log-probabilities of the classes of each bag, shape ``(B, K)``.

        :param X: As for :meth:`fit`.
        :param groups: As for :meth:`fit`.
        :raises ValueError: if the columns are others than in ``fit``, or the law has no table for a bag of some size.
        """
        bags, blocks = self._bag_labels(X, groups)
        log_probs = np.empty((len(bags.names), len(self.classes_)))
        for block, _, labels in blocks:
            log_probs[block] = _class_log_probs(labels)
        return log_probs

    def predict_proba(self, X: Any, groups: Any = None) -> np.ndarray:
        """Probabilities of the classes of each bag, shape ``(B, K)``; arguments as for :meth:`predict_log_proba`."""
        probabilities: np.ndarray = np.exp(self.predict_log_proba(X, groups))
        return probabilities

    def predict(self, X: Any, groups: Any = None) -> np.ndarray:
        """The most probable label of each bag, shape ``(B,)``; arguments as for :meth:`predict_log_proba`."""
        best = self.predict_log_proba(X, groups).argmax(1)
        labels: np.ndarray = self.classes_[best]
        return labels

    def score(self, X: Any, y: Any, groups: Any = None, sample_weight: Any = None) -> float:
        """Share of bags whose label is predicted rightly; arguments as for :meth:`fit`.

        :raises ValueError: as :meth:`predict_log_proba` does, and if a label is not constant in a bag.
        """
        predicted = self.predict(X, groups)
        bags = Bags(groups, len(X))
        labels = self._labels(y, bags, "y")
        weights = bags.constant(checked_weights(sample_weight, len(bags.numbers)), "sample_weight")
        return float(np.average(predicted == labels, weights=weights))

    def predict_instance_proba(self, X: Any, groups: Any = None, y: Any = None) -> np.ndarray:
        """Probabilities that instances are positive, given all instances of their bags, shape ``(N,)``; those of each
        class, shape ``(N, K)``, where each class has its own scores.

        :param X: As for :meth:`fit`.
        :param groups: As for :meth:`fit`.
        :param y: Labels of the bags, as for :meth:`fit`, on which to condition; ``None``: they are not known.
        :raises ValueError: as :meth:`predict_log_proba` does, and if a label is unknown, not constant in a bag, or
            impossible.
        """
        bags, blocks = self._bag_labels(X, groups)
        given = None if y is None else self._numbers(self._labels(y, bags, "y"), "y")
        probabilities = np.empty((len(bags.numbers), blocks[0][2].batch_shape[0]))
        for block, rows, labels in blocks:
            log_probs = _class_log_probs(labels)
            if given is not None:
                chosen = torch.from_numpy(given[block]).unsqueeze(-1)
                impossible = (log_probs.gather(-1, chosen) == -math.inf).squeeze(-1).numpy()
                if impossible.any():
                    bag = bags.described(block[impossible.argmax()])
                    raise ValueError(f"y: expected labels of positive probability, got another for {bag}")
                log_probs = torch.full_like(log_probs, -math.inf).scatter(-1, chosen, 0.0)
            marginals = _instance_marginals(labels, log_probs).movedim(0, -1)
            probabilities[rows.numpy()] = marginals[bags.places(block)].numpy()
        return probabilities[:, 0] if probabilities.shape[1] == 1 else probabilities

    def law_tables(self, size: int) -> np.ndarray:
        """Log-potentials of the counts 0 to n in bags of n instances for each label, as learned, shape ``(T, n + 1)``.

        :param int size: Number of instances n, at least 1.
        :raises ValueError: if it is no such number, or the law has no table for it.
        """
        check_is_fitted(self)
        check_count("size", size)
        tables: np.ndarray = self._law.tables([size], self._learned)[0].detach().numpy()
        return tables

    def to_pyro(self, X: Any, groups: Any = None) -> BagLabel:
        """Distribution of the labels of bags, places in ``classes_``, with a batch of bags, padded to the largest.

        Where each class has its own scores, the batch shape is ``(K, B)``, and the labels are 1 where the bag is
        positive for the class; the classes are these, given that exactly one is 1. Arguments as for
        :meth:`predict_log_proba`.
        """
        check_is_fitted(self)
        inputs = self._inputs(read_numbers(self, X, reset=False))
        bags = Bags(groups, len(inputs))
        with torch.no_grad():
            labels = self._labels_of(inputs, bags, np.arange(len(bags.sizes)))
        if len(labels.instance_logits) > 1:
            return labels
        return BagLabel(labels.instance_logits[0], labels.label_count_logits[0])


@torch.no_grad()
def _shrink(vector: Tensor, prices: Tensor, optimizer: torch.optim.Adam) -> None:
    """Brings entries nearer to zero, as far as Adam's last step moved those whose slope was their price."""
    state, options = optimizer.state[vector], optimizer.param_groups[0]
    spread = (state["exp_avg_sq"] / (1 - options["betas"][1] ** state["step"])).sqrt() + options["eps"]
    vector.copy_(vector.sign() * (vector.abs() - options["lr"] * prices / spread).clamp(min=0))


def _distribution(scores: Tensor, places: Tensor, tables: Tensor) -> BagLabel:
    """Labels, with a batch of scores and bags.

    :param Tensor scores: One row for each instance, bag by bag.
    :param Tensor places: Whether there is an instance, shape ``(B, D)``.
    :param Tensor tables: Laws, shape ``(B, T, D + 1)``.
    """
    padding = scores.new_full((scores.shape[1], *places.shape), -math.inf)
    return BagLabel(padding.masked_scatter(places, scores.T.contiguous()), tables, validate_args=False)


def _class_log_probs(labels: BagLabel) -> Tensor:
    """Log-probabilities of the classes, shape ``(B, K)``."""
    log_probs = labels.logits
    if len(log_probs) == 1:
        return log_probs[0]
    found = (log_probs[..., 1] - log_probs[..., 0]).T.log_softmax(-1)
    if bool(found.isnan().any()):
        raise ValueError(
            "law: expected a possible positive label of some class, and possible negative ones, in each bag"
        )
    return found


def _instance_marginals(labels: BagLabel, log_probs: Tensor) -> Tensor:
    """Probabilities that instances are positive, shape ``(scores, B, D)``, where classes have given log-probabilities:
    one law of counts, the mixture of those given each label.
    """
    own = labels.logits
    if len(own) > 1:
        probs = log_probs.T.exp()
        log_probs = torch.stack([(1 - probs).log(), probs.log()], -1)
    weights = torch.where(log_probs == -math.inf, -math.inf, log_probs - own)
    tables = (weights.unsqueeze(-1) + labels.label_count_logits).logsumexp(-2)
    return RecursiveCardinality(labels.instance_logits, tables, validate_args=False).marginals


class _Block(NamedTuple):
    """Bags that are padded together.

    :ivar numpy.ndarray bags: Their numbers.
    :ivar Tensor inputs: Their rows, bag by bag.
    :ivar Tensor places: Whether there is an instance, shape ``(B, D)``.
    :ivar tables: Their laws, shape ``(B, T, D + 1)``; ``None`` if these are learned.
    """

    bags: np.ndarray
    inputs: Tensor
    places: Tensor
    tables: Tensor | None


class _Objective:
    """Mean negative log-likelihood of bags with penalties, but for L1, as a function of a flat vector of parameters."""

    def __init__(
        self,
        estimator: MultipleInstanceClassifier,
        inputs: Tensor,
        bags: Bags,
        targets: np.ndarray,
        weights: np.ndarray,
    ) -> None:
        self.law, self.inputs, self.bags = estimator._law, inputs, bags
        self.targets, self.weights = torch.from_numpy(targets), torch.from_numpy(weights)
        self.total, self.l2 = float(weights.sum()), float(estimator.l2)
        self.blocks = [self.block(part) for part in bags.blocks()]
        self.module = _first_module(estimator, inputs, self.blocks[0])
        self.trained = {key: value.detach() for key, value in self.module.named_parameters() if value.requires_grad}
        self.start = torch.cat([value.reshape(-1) for value in (*self.trained.values(), self.law.start)])
        kinds = [torch.full((value.numel(),), float(value.dim() > 1)) for value in self.trained.values()]
        self.penalised = torch.cat([*kinds, torch.zeros(self.law.start.numel())]).double()

    def block(self, bags: np.ndarray) -> _Block:
        tables = None if self.law.start.numel() else self.law.tables(self.bags.sizes[bags], self.law.start)
        return _Block(bags, self.inputs[self.bags.rows(bags)], self.bags.places(bags), tables)

    def unpack(self, vector: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Parameters of the module by name, and learned numbers of the law."""
        tensors = (*self.trained.values(), self.law.start)
        parts = vector.split([tensor.numel() for tensor in tensors])
        *parameters, learned = (part.reshape(tensor.shape) for part, tensor in zip(parts, tensors, strict=True))
        return dict(zip(self.trained, parameters, strict=True)), learned

    def log_probs(self, vector: Tensor, block: _Block) -> Tensor:
        """Log-probabilities of the labels of a block's bags."""
        parameters, learned = self.unpack(vector)
        tables = self.law.tables(self.bags.sizes[block.bags], learned) if block.tables is None else block.tables
        scores = functional_call(self.module, parameters, block.inputs)
        log_probs = _class_log_probs(_distribution(scores, block.places, tables))
        return log_probs.gather(-1, self.targets[block.bags].unsqueeze(-1)).squeeze(-1)

    def loss(self, vector: Tensor, block: _Block) -> Tensor:
        """The block's share of the mean negative log-likelihood."""
        return -self.weights[block.bags] @ self.log_probs(vector, block) / self.total

    def penalty(self, vector: Tensor) -> Tensor:
        """That of L2, and the prior of a learned law."""
        _, learned = self.unpack(vector)
        squares = self.l2 * (self.penalised @ vector.square()) + (learned - self.law.start).square().sum()
        return 0.5 * squares / self.total

    def gradient(self, vector: np.ndarray) -> tuple[float, np.ndarray]:
        leaf = torch.from_numpy(vector).requires_grad_()
        value = self.penalty(leaf) + sum(self.loss(leaf, block) for block in self.blocks)
        (slopes,) = torch.autograd.grad(value, leaf)
        return float(value.detach()), slopes.numpy()

    @torch.no_grad()
    def check_start(self) -> None:
        """Raises a ValueError that names a bag whose label the law gives no probability."""
        for block in self.blocks:
            impossible = ~self.log_probs(self.start, block).isfinite().numpy()
            if impossible.any():
                bag = self.bags.described(block.bags[impossible.argmax()])
                raise ValueError(f"law: expected a positive probability of each bag's label, got none for {bag}")

    def finished(self, vector: np.ndarray) -> tuple[torch.nn.Module, Tensor]:
        """The trained module, and the learned numbers of the law."""
        parameters, learned = self.unpack(torch.from_numpy(vector.copy()))
        self.module.load_state_dict({**self.module.state_dict(), **parameters})
        return self.module, learned


@torch.no_grad()
def _first_module(estimator: MultipleInstanceClassifier, inputs: Tensor, block: _Block) -> torch.nn.Module:
    """A copy of the given module, or a linear one, or a ValueError if its output is of another kind."""
    law, num_classes = estimator._law, len(estimator.classes_)
    num_tables = law.tables([int(block.places[0].sum())], law.start).shape[1]
    if num_tables not in (2, num_classes):
        raise ValueError(f"law: expected 2 tables, or {num_classes}, one for each class, got {num_tables}")
    num_scores = 1 if num_tables == num_classes else num_classes
    if estimator.module is None:
        linear = torch.nn.Linear(inputs.shape[1], num_scores, dtype=torch.double)
        for parameter in linear.parameters():
            parameter.zero_()
        return linear
    module = copy.deepcopy(estimator.module).double().eval()
    try:
        output = module(inputs[:2])
    except RuntimeError as error:
        raise ValueError(
            f"module: expected one for inputs of shape (N, {inputs.shape[1]}), got one that fails: {error}"
        ) from error
    if not isinstance(output, Tensor) or output.shape != (len(inputs[:2]), num_scores) or output.dtype != torch.double:
        kind = isinstance(output, Tensor)
        got = f"{output.dtype} of shape {tuple(output.shape)}" if kind else type(output).__name__
        raise ValueError(f"module: expected scores in float64 of shape ({len(inputs[:2])}, {num_scores}), got {got}")
    return module


class _Best:
    """The parameters with the largest likelihood of validation bags; none if there are none of these."""

    def __init__(self, validation: _Objective | None) -> None:
        self.validation, self.loss = validation, math.inf
        self.vector: np.ndarray | None = None

    @torch.no_grad()
    def __call__(self, vector: np.ndarray) -> None:
        if self.validation is None:
            return
        tensor = torch.from_numpy(vector)
        loss = float(sum(self.validation.loss(tensor, block) for block in self.validation.blocks))
        if loss < self.loss:
            self.loss, self.vector = loss, vector.copy()
