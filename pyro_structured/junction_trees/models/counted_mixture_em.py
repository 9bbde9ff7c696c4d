"""Expectation maximisation for mixtures of junction trees with tables of counts."""

__all__ = ["CountedMixtureEM"]

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
import torch
from scipy.special import logsumexp

from pyro_structured.foundation.ops.progress import progress_bar
from pyro_structured.junction_trees.distributions.counted_junction_tree import CountedJunctionTree
from pyro_structured.junction_trees.distributions.junction_tree import JunctionTree
from pyro_structured.junction_trees.models.counted_tree_fitting import CountedTreeRows, count_rare_states
from pyro_structured.junction_trees.models.tree_mixture_em import (
    TreeMixture,
    TreeMixtureEM,
    TreeMixturePhase,
    share_rows,
)

# Number of iterations by which all tables are improved in one maximisation step.
STEP_ITERATIONS = 10


class CountedMixtureEM:
    r"""Steps from a mixture of junction trees, whose cliques are kept, to one that has tables of counts, too.

    The objective, which never falls, is the log-likelihood of the training rows, with the pseudo-observations of
    :class:`TreeMixtureEM` and the price of tables of counts of :class:`CountedTreeRows`, for each component.

    :param TreeMixtureEM learner: Learner of the mixture without counts, of complete rows.
    :param components: The mixture's components without counts.
    :param float stiffness: Price of second differences of tables of counts, more than 0.
    """

    def __init__(self, learner: TreeMixtureEM, components: Sequence[JunctionTree], stiffness: float) -> None:
        self._learner, self._components, self._stiffness = learner, components, stiffness

    @cached_property
    def _rows(self) -> list[CountedTreeRows]:
        learner = self._learner
        return [
            CountedTreeRows(learner.training, tree, count_rare_states(tree), learner.smoothing, learner.singles)
            for tree in (component.tree for component in self._components)
        ]

    def run(self, responsibilities: np.ndarray) -> Iterator[TreeMixturePhase]:
        """Mixture after each iteration.

        :param np.ndarray responsibilities: Probabilities of the components to start from, shape ``(R, K)``.
        """
        training, judged = self._learner.training, self._learner.judged
        components = [rows.start(tree) for rows, tree in zip(self._rows, self._components, strict=True)]
        shares, reached = training.weights[:, None] * responsibilities, -np.inf
        for _ in progress_bar(range(self._learner.max_iter), desc="counts", unit="iteration"):
            components = [self._improved(*each) for each in zip(self._rows, components, shares.T, strict=True)]
            with np.errstate(divide="ignore"):
                mixture = TreeMixture(np.log(shares.sum(0) / training.total), tuple(components))
            log_probs, shares = share_rows(mixture.log_joint(training.values.T), training.weights)
            rest = (rows.regularisation(d, self._stiffness) for rows, d in zip(self._rows, components, strict=True))
            objective = float(training.weights @ log_probs + sum(rest)) / training.total
            judged_log_probs = logsumexp(mixture.log_joint(judged.values.T), axis=1)
            score = float(np.average(judged_log_probs, weights=judged.weights))
            yield TreeMixturePhase(mixture, objective, score)
            if objective - reached < self._learner.tol:
                return
            reached = objective

    def _improved(
        self, rows: CountedTreeRows, component: CountedJunctionTree, share: np.ndarray
    ) -> CountedJunctionTree:
        return rows.fit(torch.from_numpy(share), component, self._stiffness, STEP_ITERATIONS)
