"""Conditional random fields on junction trees."""

__all__ = ["JunctionTreeCRF"]

import copy
import warnings
from collections.abc import Iterable
from numbers import Real
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import Tags
from sklearn.utils.validation import check_consistent_length, check_is_fitted

from pyro_structured.foundation.models.argument_checks import check_count, checked_weights
from pyro_structured.foundation.models.number_tables import read_numbers
from pyro_structured.foundation.models.old_spellings import old_parameters
from pyro_structured.foundation.models.shared_fit import lone_fit
from pyro_structured.foundation.ops.processor import methods_on_processor
from pyro_structured.foundation.ops.progress import progress_bar, verbosity
from pyro_structured.foundation.ops.user_frame import frames_below_user
from pyro_structured.foundation.structures.argument_checks import check_choice, checked_groups
from pyro_structured.junction_trees.distributions.junction_tree import JunctionTree
from pyro_structured.junction_trees.models.chordal_search import grow_chordal_graph
from pyro_structured.junction_trees.models.conditional_information import (
    ConditionalScore,
    PairScore,
    ShownScore,
    dealt_rows,
    held_out_logits,
)
from pyro_structured.junction_trees.models.crf_potentials import ConditionalField
from pyro_structured.junction_trees.models.crf_training import FieldData, FieldOptions, train_field
from pyro_structured.junction_trees.models.graph_cut_search import cut_graph
from pyro_structured.junction_trees.models.label_columns import LabelColumns
from pyro_structured.junction_trees.ops.chordal_graph import neighbor_sets
from pyro_structured.junction_trees.structures.clique_tree import CliqueTree

METHODS = ("chordal", "pairwise", "graph_cut")


@old_parameters("treewidth")
@methods_on_processor
class JunctionTreeCRF(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    r"""Classifies several labels together: a conditional random field on a graph of small treewidth that is learned.

    .. math::
        p(y \mid x) = \frac{1}{Z(x)} \exp\Bigl(\sum_i \theta_i(y_i, x) + \sum_{ij \in E} \theta_{ij}(y_i, y_j, x)\Bigr),

    where :math:`\theta_i` are linear in the features and :math:`\theta_{ij}` are constants, or linear too. They add up
    to zero over the states of each label. There are no other potentials: cliques of three labels or more only make
    inference exact.

    The graph comes from estimates of the mutual information of pairs of labels, given the features: the log-likelihood
    that a label adds to logistic regressions on held-out log-odds. Then all weights maximise the exact likelihood, less
    penalties. Missing labels (NaN, ``None`` or pandas' NA) are summed out; then, the maximum is a local one. An
    interrupt from the keyboard keeps the edges that were added so far, whose weights are then trained, and during
    training the weights of the last iteration.

    **Exact**: the likelihood, its gradient, all probabilities and the most probable labels, in float64; the solution,
    up to ``tol``, where the objective is convex, which is so without missing labels and feature map; L1 gives exact
    zeros. The graph is found greedily.

    :param int treewidth: Largest treewidth, at least 1: cliques have at most one label more.
    :param str method: ``"chordal"`` adds the edge of largest information given the labels that both are neighbours
        of, which keeps the graph chordal. ``"pairwise"`` adds edges of largest information given the features alone;
        for the treewidth 1 it is a maximum spanning forest. ``"graph_cut"`` gives this information to
        :func:`cut_graph`, as the paper does. Which method fits better depends on the data.
    :param float penalty: Factor of the Bayesian information criterion's penalty of an edge, at least 0; with 1, there
        are fewer edges.
    :param edges: Pairs of labels, a graph of your own, whose treewidth may be larger; ``None``: it is learned. An empty
        list makes independent logistic regressions.
    :param bool edge_features: Whether potentials of edges depend on the features.
    :param float l2: Factor of half the sum of squares of all weights but the labels' intercepts, at least 0. For a
        single label, ``LogisticRegression(C=1 / l2)``.
    :param float l1: Factor of the sum of absolute values of these weights, at least 0.
    :param torch.nn.Module feature_map: Module that maps X, float64 of shape ``(N, columns)``, to features, shape ``(N,
        p)``. A copy is trained jointly with the weights, in evaluation mode, except parameters that require no
        gradient; ``l2`` penalises the parameters that are trained, ``l1`` does not.
        ``None``: the features are X.
    :param float tol: Tolerance, at least 0: largest entry of the projected gradient of the objective for each row.
    :param int max_iter: Largest number of iterations of L-BFGS, at least 1.
    :param n_jobs: Number of processes for the folds of rows that find the graph, as for scikit-learn; results are the
        same.
    :param verbose: ``None``: a progress bar if standard error is a terminal; ``True``: lines, too, where it is none;
        ``False``: neither.
    :ivar classes\_: Labels of each column, a list of arrays; one array for a single label.
    :ivar tree\_: The :class:`~pyro_structured.structures.CliqueTree`.
    :ivar edges\_: Pairs of labels that have potentials.
    :ivar intercept\_: For each label the log-weights of its classes where all features are 0, shape ``(classes,)``.
    :ivar coef\_: For each label the coefficients of the features in these log-weights, shape ``(classes, p)``.
    :ivar edge_intercept\_: For each edge the log-weights of pairs of classes where all features are 0, shape
        ``(classes, classes)``.
    :ivar edge_coef\_: For each edge the coefficients of the features in these log-weights, shape ``(classes, classes,
        p)``, with edge features; otherwise, empty arrays.
    :ivar feature_map\_: The trained module.
    :ivar n_iter\_: Number of iterations.

    Penalties are chosen by ``GridSearchCV(JunctionTreeCRF(), {"l2": [0.1, 1, 10]}, scoring=lambda crf, X, y:
    crf.log_prob(X, y).mean())``. Features should have similar scales. Cost O(N (p n + tables)) for an
    iteration, and O(N) for each of about n² small regressions that find the graph.

    **References**

    Shahaf, Chechetka, Guestrin (2009): Learning thin junction trees via graph cuts. AISTATS. Section 7.
    Lafferty, McCallum, Pereira (2001): Conditional random fields. ICML.

    Example::

        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(500, 1))
        >>> first = rng.random(500) < 1 / (1 + np.exp(-X[:, 0]))
        >>> y = np.stack([first, first ^ (rng.random(500) < 0.1)], 1)  # the second label is mostly the first one
        >>> crf = JunctionTreeCRF(treewidth=1).fit(X, y)
        >>> crf.edges_
        ((0, 1),)
        >>> crf.predict([[-2.0], [2.0]]).tolist()
        [[False, False], [True, True]]
        >>> crf.to_pyro([[2.0]]).marginals_of([0, 1]).shape
        torch.Size([1, 2, 2])
    """

    def __init__(
        self,
        *,
        treewidth: int = 2,
        method: str = "chordal",
        penalty: float = 0.5,
        edges: Iterable[Iterable[int]] | None = None,
        edge_features: bool = False,
        l2: float = 1.0,
        l1: float = 0.0,
        feature_map: torch.nn.Module | None = None,
        tol: float = 1e-4,
        max_iter: int = 1000,
        n_jobs: int | None = None,
        verbose: bool | None = None,
    ) -> None:
        self.treewidth = treewidth
        self.method = method
        self.penalty = penalty
        self.edges = edges
        self.edge_features = edge_features
        self.l2 = l2
        self.l1 = l1
        self.feature_map = feature_map
        self.tol = tol
        self.max_iter = max_iter
        self.n_jobs = n_jobs
        self.verbose = verbose

    # Also where gradients are switched off.
    @torch.inference_mode(False)
    @lone_fit
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "JunctionTreeCRF":
        """Learns the graph and the weights.

        :param X: Numbers, shape ``(N, columns)``.
        :param y: Labels of any type, shape ``(N, n)``, a column for each of the n labels, or ``(N,)`` for a single one;
            NaN, ``None`` or pandas' NA if missing.
        :param sample_weight: Weights of the rows, from 0 to 1e290, not all 0, shape ``(N,)``: so many times a row
            counts.
        :raises ValueError: if a parameter is out of range, a column has no label, or the features are so large that no
            step of the training improves the objective.
        """
        self._check_parameters()
        data = self._read(X, y, sample_weight)
        start = torch.nn.Identity() if self.feature_map is None else copy.deepcopy(self.feature_map).double().eval()
        options = FieldOptions(self.l2, self.l1, self.tol, self.max_iter)
        sizes = [len(classes) for classes in self._labels.classes]
        with verbosity(self.verbose):
            self._learn(data, sizes, start, options)
        return self

    def _learn(self, data: FieldData, sizes: list[int], start: torch.nn.Module, options: FieldOptions) -> None:
        given = self._learned_edges(data, sizes, start, options) if self.edges is None else self.edges
        pairs = checked_groups("edges", given)
        self.tree_ = CliqueTree.from_edges(pairs, sizes)
        self.edges_ = tuple(sorted({(min(pair), max(pair)) for pair in pairs}))
        self._field = ConditionalField(self.tree_, self.edges_)
        fit = train_field(self._field, data, start, self.edge_features, options)
        self._weights, self.feature_map_, self.n_iter_ = fit.weights, fit.feature_map, fit.num_iterations
        if not fit.converged:
            reason = "it was interrupted" if fit.interrupted else "there is no convergence"
            warnings.warn(
                f"{reason} after {self.n_iter_} iterations", ConvergenceWarning, stacklevel=frames_below_user()
            )
        nodes, edges = self._field.node_tables(fit.weights.nodes), self._field.edge_tables(fit.weights.edges)
        self.intercept_, self.coef_ = [table[0] for table in nodes], [table[1:].T for table in nodes]
        self.edge_intercept_ = [table[0] for table in edges]
        self.edge_coef_ = [np.moveaxis(table[1:], 0, -1) for table in edges]

    def _check_parameters(self) -> None:
        for name in ("treewidth", "max_iter"):
            check_count(name, getattr(self, name))
        for name in ("penalty", "l2", "l1", "tol"):
            value = getattr(self, name)
            if not isinstance(value, Real) or not 0 <= float(value) < np.inf:
                raise ValueError(f"{name}: expected a number of at least 0, got {value!r}")
        check_choice("method", self.method, METHODS)
        if not isinstance(self.edge_features, bool | np.bool_):
            raise ValueError(f"edge_features: expected True or False, got {self.edge_features!r}")
        if self.feature_map is not None and not isinstance(self.feature_map, torch.nn.Module):
            raise ValueError(f"feature_map: expected a torch.nn.Module or None, got {type(self.feature_map).__name__}")

    def _read(self, X: Any, y: Any, sample_weight: Any) -> FieldData:
        """Rows of positive weight, with numbered labels."""
        inputs = self._inputs(X, reset=True)
        if y is None:
            raise ValueError("y: JunctionTreeCRF requires y to be passed, but the target y is None")
        check_consistent_length(X, y)
        weights = checked_weights(sample_weight, len(inputs))
        labels = LabelColumns(y, weights > 0)
        self._labels, self.classes_ = labels, labels.classes[0] if labels.single else labels.classes
        rows = FieldData(*map(torch.tensor, (inputs, *labels.encode(y), weights)))
        return rows.part(rows.weights > 0)

    def _inputs(self, X: Any, reset: bool) -> np.ndarray:
        inputs: np.ndarray = read_numbers(self, X, reset)
        return inputs

    def _learned_edges(
        self, data: FieldData, sizes: list[int], feature_map: torch.nn.Module, options: FieldOptions
    ) -> list[tuple[int, int]]:
        """Edges of a graph of small treewidth."""
        if sum(size > 1 for size in sizes) < 2:
            return []
        data, folds = dealt_rows(data)
        logits = held_out_logits(data, folds, sizes, feature_map, options, self.n_jobs)
        score = ConditionalScore(logits, data, self.penalty)
        gains = score.pair_gains()
        if self.method == "graph_cut":
            return cut_graph(gains, self.treewidth, np.log(sizes).tolist())
        neighbors = neighbor_sets(len(sizes), [])
        try:
            with progress_bar(desc="edges", unit="gain") as bar:
                shown = ShownScore(score if self.method == "chordal" else PairScore(gains), bar)
                grow_chordal_graph(shown, neighbors, self.treewidth)
        except KeyboardInterrupt:
            if not any(neighbors):
                raise
            warnings.warn(
                "the search was interrupted: edges so far are kept", ConvergenceWarning, stacklevel=frames_below_user()
            )
        return [(first, second) for first, near in enumerate(neighbors) for second in sorted(near) if first < second]

    def to_pyro(self, X: Any) -> JunctionTree:
        """Distribution of the labels given features, with a batch of rows; states are places in ``classes_``.

        :param X: As for :meth:`fit`.
        """
        check_is_fitted(self)
        inputs = torch.tensor(self._inputs(X, reset=False))
        with torch.no_grad():
            labels = self._field.distribution(self.feature_map_(inputs), self._weights)
        if not bool(labels.clique_logits.isfinite().all()):
            raise ValueError("X: expected features of finite log-weights, got larger ones")
        return labels

    def predict(self, X: Any) -> np.ndarray:
        """Jointly most probable labels of each row, in the shape of ``y`` in :meth:`fit`."""
        states = self.to_pyro(X).mode.numpy()
        return self._labels.decode(states)

    def predict_proba(self, X: Any) -> np.ndarray | list[np.ndarray]:
        """Probabilities of the classes of each label alone, a list of arrays of shape ``(N, classes)``; one array where
        the label is a single one.
        """
        marginals = self.to_pyro(X).marginals.numpy()
        probabilities: list[np.ndarray] = [
            marginals[:, number, : len(classes)] for number, classes in enumerate(self._labels.classes)
        ]
        return probabilities[0] if self._labels.single else probabilities

    def log_prob(self, X: Any, y: Any) -> np.ndarray:
        """Exact log-probabilities of the labels of each row together, given its features, shape ``(N,)``, in nats.

        Missing labels are summed out; -inf where a label was never in its column of the training rows.
        """
        labels = self.to_pyro(X)
        check_consistent_length(X, y)
        states, known = map(torch.from_numpy, self._labels.encode(y))
        log_probs = labels.marginal_log_prob(states.clamp(min=0), known)
        known_log_probs: np.ndarray = log_probs.masked_fill((states < 0).any(1), -torch.inf).numpy()
        return known_log_probs

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Share of rows of which all labels are predicted rightly, as for scikit-learn's other classifiers of several
        labels (missing ones count as right); the mean of :meth:`log_prob` is the log-likelihood.
        """
        predicted = self.to_pyro(X).mode.numpy()
        check_consistent_length(X, y)
        states, known = self._labels.encode(y)
        right = ((predicted == states) | ~known).all(1)
        return float(np.average(right, weights=checked_weights(sample_weight, len(right))))

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        tags.classifier_tags.multi_label = True
        return tags
