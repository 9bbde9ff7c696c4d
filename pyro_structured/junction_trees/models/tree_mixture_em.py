"""Structural expectation maximisation for mixtures of junction trees."""

__all__ = [
    "SharedTreeMixtureEM",
    "TreeComponent",
    "TreeMixture",
    "TreeMixtureEM",
    "TreeMixturePhase",
    "near_random_rows",
    "share_rows",
]

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from scipy.special import logsumexp, softmax
from torch import Tensor

from pyro_structured.foundation.ops.progress import progress_bar
from pyro_structured.junction_trees.distributions.junction_tree import JunctionTree
from pyro_structured.junction_trees.models.thin_tree_search import TreeSearch, TreeSetting, shared_tree
from pyro_structured.junction_trees.models.tree_fitting import (
    TreeDensity,
    TreeRows,
    fit_tree_tables,
    log_prior,
    log_probs_of_codes,
    pseudo_counts,
)
from pyro_structured.junction_trees.ops.categorical_rows import CategoricalRows
from pyro_structured.junction_trees.structures.clique_tree import CliqueTree

# Difference in nats between equal rows and rows that differ in all variables: with much more, components start too far
# apart.
NEARNESS = 5.0
# Number of iterations from one search for structures to the next.
REGROWN = 5
# Number of iterations for the tables of a new structure, where entries are missing.
GAP_ITERATIONS = 10
# Smallest share of a row with which it is used in the search for structures.
SHARE = 1e-3


@dataclass(frozen=True)
class TreeMixture:
    """Densities of trees and their weights.

    :ivar np.ndarray log_weights: Log-weights of the components, shape ``(K,)``.
    :ivar components: Distributions of the K components, of codes.
    """

    log_weights: np.ndarray
    components: tuple[TreeDensity, ...]

    def log_joint(self, codes: np.ndarray) -> np.ndarray:
        """Log-probabilities of rows together with each component, shape ``(N, K)``."""
        parts = [log_probs_of_codes(component, codes) for component in self.components]
        log_joints: np.ndarray = np.stack(parts, 1) + self.log_weights
        return log_joints


class TreeMixturePhase(NamedTuple):
    """Result of an iteration.

    :ivar TreeMixture mixture: The mixture.
    :ivar float objective: Objective of the training rows, per row.
    :ivar float score: Mean log-probability of the validation rows.
    """

    mixture: TreeMixture
    objective: float
    score: float


class TreeComponent:
    """A junction tree, and training and validation rows as entries of its tables.

    :param TreeRows training: Training rows.
    :param TreeRows judged: Validation rows, with the same tree.
    :param JunctionTree distribution: Tables, conditional log-probabilities.
    :param Tensor prior: Pseudo-observations of the joint states, shape ``(table_size,)``.
    """

    def __init__(self, training: TreeRows, judged: TreeRows, distribution: JunctionTree, prior: Tensor) -> None:
        self.training, self.judged, self.distribution, self.prior = training, judged, distribution, prior
        cliques, separators = (
            sum(math.prod(training.rows.known.cardinalities[d] for d in scope) for scope in scopes)
            for scopes in (training.tree.cliques, training.tree.separators)
        )
        self.num_parameters = cliques - separators

    @property
    def density(self) -> TreeDensity:
        """Distribution of codes."""
        return self.training.density(self.distribution)


class _Expectation(NamedTuple):
    """Expectations over the training rows, given a mixture.

    :ivar np.ndarray log_probs: Log-probabilities of the rows, shape ``(R,)``.
    :ivar np.ndarray shares: Weights of the rows times their responsibilities, shape ``(R, K)``.
    :ivar counts: For each component, expected counts of the joint states of its cliques, shape ``(table_size,)``.
    """

    log_probs: np.ndarray
    shares: np.ndarray
    counts: list[Tensor]


class TreeMixtureEM:
    r"""Structural expectation maximisation: steps for parameters and for structures, none of which lowers the
    objective.

    The objective is

    .. math::
        \sum_i \log \sum_k w_k p_k(x_i) + \sum_k \Bigl(\log \mathrm{prior}(p_k) - \frac{c}{2} \log N \cdot
        |p_k|\Bigr),

    with the numbers of parameters :math:`|p_k|`. For fixed responsibilities, it is bounded from below by a sum over
    components, which every step increases, or leaves as it is.

    :param CategoricalRows training: Training rows.
    :param CategoricalRows judged: Validation rows.
    :param int treewidth: The largest treewidth.
    :param float penalty: The factor c.
    :param float smoothing: Pseudo-observations of each component, more than 0: of independent variables, with their
        frequencies in the data.
    :param float tol: Nats per row; a smaller increase of the objective ends the iterations.
    :param int max_iter: Largest number of iterations.
    """

    def __init__(
        self,
        training: CategoricalRows,
        judged: CategoricalRows,
        treewidth: int,
        penalty: float,
        smoothing: float,
        tol: float,
        max_iter: int,
    ) -> None:
        self.training, self.judged = training, judged
        self.treewidth, self.smoothing, self.tol, self.max_iter = treewidth, smoothing, tol, max_iter
        self._penalty = penalty * math.log(max(training.total, 2.0))
        # Probabilities of the columns' states; with one more row of each, none is impossible.
        counts = [each + 1.0 for each in training.counts_of_all([[d] for d in range(len(training.cardinalities))])]
        self.singles = [count / count.sum() for count in counts]

    def run(self, responsibilities: np.ndarray) -> Iterator[TreeMixturePhase]:
        """Mixture after each iteration; the objective never falls.

        :param np.ndarray responsibilities: Probabilities of the components to start from, shape ``(R, K)``.
        """
        shares = self.training.weights[:, None] * responsibilities
        components = [self.start(share) for share in shares.T]
        reached, settled = -math.inf, False
        for iteration in progress_bar(range(self.max_iter), desc="EM", unit="iteration"):
            structural = settled or iteration % REGROWN == 0
            if structural:
                components = self._regrow(components, shares)
            with np.errstate(divide="ignore"):
                log_weights = np.log(shares.sum(0) / self.training.total)
            log_probs, shares, counts = self._expectation(components, log_weights)
            objective = self.training.weights @ log_probs + sum(map(self._regularisation, components))
            objective /= self.training.total
            judged = np.stack([each.judged.log_probs(each.distribution) for each in components], 1) + log_weights
            score = float(np.average(logsumexp(judged, axis=1), weights=self.judged.weights))
            mixture = TreeMixture(log_weights, tuple(each.density for each in components))
            yield TreeMixturePhase(mixture, float(objective), score)
            if structural and objective - reached < self.tol:
                return
            settled = not structural and objective - reached < self.tol
            reached = objective
            for component, expected in zip(components, counts, strict=True):
                component.distribution = component.training.tables(expected, component.prior)

    def _expectation(self, components: list[TreeComponent], log_weights: np.ndarray) -> _Expectation:
        weights = self.training.weights
        if self.training.is_complete:
            joint = (
                np.stack([component.training.log_probs(component.distribution) for component in components], 1)
                + log_weights
            )
            log_probs, shares = share_rows(joint, weights)
            counts = [component.training.counts(share) for component, share in zip(components, shares.T, strict=True)]
            return _Expectation(log_probs, shares, counts)
        # Beliefs about missing entries are too many to be kept: each batch is used for all expectations at once.
        size = sum(component.distribution.tree.table_size for component in components)
        parts, shared = [component.training.beliefs(component.distribution, size) for component in components], []
        counts = [torch.zeros_like(component.prior) for component in components]
        for beliefs in zip(*parts, strict=True):
            joint = torch.stack([log_probs for log_probs, _ in beliefs], 1).numpy() + log_weights
            shared.append(share_rows(joint, weights[: len(joint)]))
            weights = weights[len(joint) :]
            for count, (_, marginals), share in zip(counts, beliefs, shared[-1][1].T, strict=True):
                count += torch.from_numpy(share) @ marginals
        log_probs, shares = map(np.concatenate, zip(*shared, strict=True))
        return _Expectation(log_probs, shares, counts)

    def start(self, share: np.ndarray) -> TreeComponent:
        """Component of the simplest structure.

        :param np.ndarray share: Weights of the training rows, shape ``(R,)``.
        """
        return self._component(CliqueTree.from_edges([], self.training.cardinalities), share)

    def proposals(
        self, component: TreeComponent, certain: CategoricalRows, penalty: float, share: np.ndarray
    ) -> Iterator[TreeComponent]:
        """Components of other structures than the present one.

        :param TreeComponent component: The present component.
        :param CategoricalRows certain: Training rows for which the component is responsible, with their weights.
        :param float penalty: Price of a parameter, in units of half the logarithm of the number of these rows.
        :param np.ndarray share: Weights of all training rows, shape ``(R,)``.
        """
        tree = TreeSearch(certain).tree(TreeSetting(self.treewidth, penalty))
        if tree != component.distribution.tree:
            yield self._component(tree, share)

    def _component(self, tree: CliqueTree, share: np.ndarray) -> TreeComponent:
        rows = self.training.reweighted(share)
        distribution, _ = fit_tree_tables(TreeRows(rows, tree), self.smoothing, GAP_ITERATIONS, singles=self.singles)
        prior = pseudo_counts(tree, self.smoothing, self.singles)
        return TreeComponent(TreeRows(self.training, tree), TreeRows(self.judged, tree), distribution, prior)

    def _regrow(self, components: list[TreeComponent], shares: np.ndarray) -> list[TreeComponent]:
        """Components with new structures, where these are better than the present ones."""
        regrown = []
        for component, share in zip(components, shares.T, strict=True):
            certain, penalty = self._certain(share)
            proposed = self.proposals(component, certain, penalty, share) if certain.total else []
            regrown.append(max([component, *proposed], key=lambda each: self._value(each, share)))
        return regrown

    def _certain(self, share: np.ndarray) -> tuple[CategoricalRows, float]:
        """Rows for which a component is responsible, and the price of a parameter in units of half the logarithm of
        their number: it is the same for all components, however many rows they have.
        """
        certain = self.training.reweighted(np.where(share > SHARE, share, 0.0))
        return certain, self._penalty / math.log(max(certain.total, 2.0))

    def _value(self, component: TreeComponent, share: np.ndarray) -> float:
        """Component's part of the lower bound of the objective."""
        log_probs = component.training.log_probs(component.distribution)
        return float(share @ log_probs) + self._regularisation(component)

    def _regularisation(self, component: TreeComponent) -> float:
        prior = log_prior(component.distribution, component.prior)
        return prior - 0.5 * self._penalty * component.num_parameters


class SharedTreeMixtureEM(TreeMixtureEM):
    """Steps as those of :class:`TreeMixtureEM`, for components that have the same cliques."""

    def _regrow(self, components: list[TreeComponent], shares: np.ndarray) -> list[TreeComponent]:
        parts, penalties = zip(*map(self._certain, shares.T), strict=True)
        tree = shared_tree(parts, self.treewidth, penalties)
        if tree == components[0].distribution.tree:
            return components
        proposed = [self._component(tree, share) for share in shares.T]
        return max(components, proposed, key=lambda each: sum(map(self._value, each, shares.T)))


def share_rows(joint: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Log-probabilities of rows, shape ``(R,)``, and weights times responsibilities, shape ``(R, K)``.

    :param np.ndarray joint: Log-probabilities of rows together with each component, shape ``(R, K)``.
    """
    log_probs = logsumexp(joint, axis=1)
    return log_probs, weights[:, None] * np.exp(joint - log_probs[:, None])


def near_random_rows(rows: CategoricalRows, number: int, generator: np.random.RandomState) -> np.ndarray:
    """Responsibilities of components to start from, the larger the more similar a row is to a random row of each.

    :return: Shape ``(R, number)``.
    """
    chosen = generator.choice(len(rows.weights), number, replace=number > len(rows.weights))
    known = rows.observed.T.astype(float)
    different = known @ known[chosen].T - rows.hits @ rows.hits[chosen].T
    responsibilities: np.ndarray = softmax(-NEARNESS * different / len(rows.cardinalities), axis=1)
    return responsibilities
