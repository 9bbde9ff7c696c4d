"""Structural expectation maximisation for mixtures of junction trees."""

__all__ = ["TreeMixture", "TreeMixtureEM", "TreeMixturePhase", "near_random_rows"]

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp, softmax
from tqdm.auto import tqdm

from pyro_structured.distributions import JunctionTree
from pyro_structured.models.thin_tree_search import TreeSearch, TreeSetting
from pyro_structured.models.tree_tables import TreeRows, fit_tree_tables, log_prior, log_probs_of_codes
from pyro_structured.ops.categorical_rows import CategoricalRows
from pyro_structured.structures import CliqueTree

# By so many nats, rows that differ in all variables are less alike; with much more, components start too far apart.
NEARNESS = 5.0
# Iterations between two searches for structures.
REGROWN = 5
# For the tables of a new structure, where entries are missing.
GAP_ITERATIONS = 10
# Of a row: with less of them, structures are not searched for in it.
SHARE = 1e-3


@dataclass(frozen=True)
class TreeMixture:
    """Junction trees and their weights.

    :ivar np.ndarray log_weights: Shape ``(K,)``.
    :ivar components: The distributions of the K components.
    """

    log_weights: np.ndarray
    components: tuple[JunctionTree, ...]

    def log_joint(self, codes: np.ndarray) -> np.ndarray:
        """Log-probabilities of rows together with each component, shape ``(N, K)``."""
        parts = [log_probs_of_codes(each, codes) for each in self.components]
        found: np.ndarray = np.stack(parts, 1) + self.log_weights
        return found


class TreeMixturePhase(NamedTuple):
    """What an iteration leads to.

    :ivar TreeMixture mixture: The mixture.
    :ivar float objective: That of the training rows, per row.
    :ivar float score: Mean log-probability of the validation rows.
    :ivar int num_iterations: Since the start.
    """

    mixture: TreeMixture
    objective: float
    score: float
    num_iterations: int


class _Component:
    """A junction tree, and both parts of the data as entries of its tables."""

    def __init__(self, training: CategoricalRows, judged: CategoricalRows, distribution: JunctionTree) -> None:
        self.distribution, tree = distribution, distribution.tree
        self.training, self.judged = TreeRows(training, tree), TreeRows(judged, tree)
        self.num_parameters = sum(tree.table_sizes) - sum(
            math.prod(tree.cardinalities[d] for d in separator) for separator in tree.separators
        )


class TreeMixtureEM:
    r"""Alternates steps for parameters with steps for structures, each of which is taken only if it is better.

    The objective is

    .. math::
        \sum_i \log \sum_k w_k p_k(x_i) + \sum_k \Bigl(\log \mathrm{prior}(p_k) - \frac{c}{2} \log N \cdot
        |p_k|\Bigr),

    with the numbers of parameters :math:`|p_k|`. For fixed responsibilities, it is bounded from below by a sum over
    components, which every step increases, or leaves as it is.

    :param CategoricalRows training: The rows that are learned from.
    :param CategoricalRows judged: Validation rows.
    :param int treewidth: The largest treewidth.
    :param float penalty: The factor c.
    :param float smoothing: Pseudo-observations of each component, more than 0.
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

    def run(self, responsibilities: np.ndarray) -> Iterator[TreeMixturePhase]:
        """The mixture after each iteration; the objective never falls.

        :param np.ndarray responsibilities: Probabilities of the components to start from, shape ``(R, K)``.
        """
        independent = CliqueTree.from_edges([], self.training.cardinalities)
        shares = self.training.weights[:, None] * responsibilities
        components = [self._component(independent, share) for share in shares.T]
        reached, settled = -math.inf, False
        for iteration in tqdm(range(self.max_iter), desc="EM", unit="iteration", disable=None, leave=False):
            structural = settled or iteration % REGROWN == 0
            for place, share in enumerate(shares.T):
                components[place] = self._improved(components[place], share, structural)
            with np.errstate(divide="ignore"):
                log_weights = np.log(shares.sum(0) / self.training.total)
            joint = np.stack([each.training.log_probs(each.distribution) for each in components], 1) + log_weights
            log_probs = logsumexp(joint, axis=1)
            objective = self.training.weights @ log_probs + sum(map(self._regularisation, components))
            objective /= self.training.total
            judged = np.stack([each.judged.log_probs(each.distribution) for each in components], 1) + log_weights
            score = float(np.average(logsumexp(judged, axis=1), weights=self.judged.weights))
            mixture = TreeMixture(log_weights, tuple(each.distribution for each in components))
            yield TreeMixturePhase(mixture, float(objective), score, iteration + 1)
            if structural and objective - reached < self.tol:
                return
            settled = not structural and objective - reached < self.tol
            reached = objective
            shares = self.training.weights[:, None] * np.exp(joint - log_probs[:, None])

    def _component(self, tree: CliqueTree, share: np.ndarray) -> _Component:
        found, _ = fit_tree_tables(self.training.reweighted(share), tree, self.smoothing, GAP_ITERATIONS)
        return _Component(self.training, self.judged, found)

    def _improved(self, component: _Component, share: np.ndarray, structural: bool) -> _Component:
        """With new tables, and with another structure if that is better."""
        component.distribution = component.training.fit(share, self.smoothing, component.distribution)
        certain = self.training.reweighted(np.where(share > SHARE, share, 0.0))
        if not structural or not certain.total:
            return component
        # The price of a parameter is the same for all components, however many rows they have.
        setting = TreeSetting(self.treewidth, self._penalty / math.log(max(certain.total, 2.0)))
        tree = TreeSearch(certain).tree(setting)
        if tree == component.distribution.tree:
            return component
        return max(component, self._component(tree, share), key=lambda each: self._value(each, share))

    def _value(self, component: _Component, share: np.ndarray) -> float:
        """What a component adds to the bound on the objective."""
        log_probs = component.training.log_probs(component.distribution)
        return float(share @ log_probs) + self._regularisation(component)

    def _regularisation(self, component: _Component) -> float:
        return log_prior(component.distribution, self.smoothing) - 0.5 * self._penalty * component.num_parameters


def near_random_rows(rows: CategoricalRows, number: int, generator: np.random.RandomState) -> np.ndarray:
    """Responsibilities of components to start from: each is of the rows that are like one of them, at random.

    :return: Shape ``(R, number)``.
    """
    chosen = generator.choice(len(rows.weights), number, replace=number > len(rows.weights))
    known = rows.observed.T.astype(float)
    different = known @ known[chosen].T - rows.hits @ rows.hits[chosen].T
    found: np.ndarray = softmax(-NEARNESS * different / len(rows.cardinalities), axis=1)
    return found
