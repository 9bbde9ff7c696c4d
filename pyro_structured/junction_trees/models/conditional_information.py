"""Information of labels about each other given features and other labels."""

__all__ = ["ConditionalScore", "PairScore", "ShownScore", "held_out_logits"]

import math
from collections.abc import Sequence
from itertools import combinations
from typing import NoReturn

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from pyro_structured.foundation.ops.progress import progress_bar
from pyro_structured.junction_trees.models.chordal_search import EdgeScore
from pyro_structured.junction_trees.models.crf_potentials import ConditionalField
from pyro_structured.junction_trees.models.crf_training import FieldData, FieldOptions, train_field
from pyro_structured.junction_trees.ops.logistic_regression import logistic_likelihood
from pyro_structured.junction_trees.structures.clique_tree import CliqueTree

FOLDS = 5
# Of the small regressions: enough for states that are never together.
RIDGE = 1.0


def held_out_logits(
    data: FieldData, cardinalities: Sequence[int], feature_map: torch.nn.Module, options: FieldOptions
) -> list[Tensor]:
    """Log-weights of the labels' states given the features alone, by logistic regressions on the other rows.

    Rows are dealt to five folds in turn.

    :return: For each label, those of all states but the first, less that of the first, shape ``(N, states - 1)``.
    """
    tree = CliqueTree.from_edges([], cardinalities)
    field = ConditionalField(tree, [])
    fold = torch.arange(len(data.inputs)) % min(FOLDS, len(data.inputs))
    found = torch.zeros(len(fold), tree.table_size, dtype=torch.double)
    for number in tqdm(fold.unique().tolist(), desc="folds", unit="fold", disable=None, leave=False):
        fit = train_field(field, data.part(fold != number), feature_map, False, options)
        if fit.interrupted:
            raise KeyboardInterrupt
        held_out = fold == number
        with torch.no_grad():
            found[held_out] = field.distribution(fit.feature_map(data.inputs[held_out]), fit.weights).clique_logits
    return [part[:, 1:] - part[:, :1] for part in found.split(tree.table_sizes, 1)]


class ConditionalScore:
    r"""How much labels tell about each other, given the features and some other labels.

    .. math::
        \sum \log \frac{p(y_i \mid y_j, y_S, x)}{p(y_i \mid y_S, x)} - \frac{c}{2} \log N (r_i - 1)(r_j - 1),

    the mean of both directions, where these probabilities are those of logistic regressions on labels and on what
    features tell about i, j and S: held-out log-odds.

    :param logits: As of :func:`held_out_logits`.
    :param FieldData data: The labels.
    :param float penalty: The factor c, 1 for the Bayesian information criterion.
    """

    def __init__(self, logits: Sequence[Tensor], data: FieldData, penalty: float) -> None:
        self.logits, self.data = logits, data
        self.sizes = [each.shape[1] + 1 for each in logits]
        self._price = penalty * 0.5 * math.log(max(float(data.weights.sum()), 2.0))
        self._gains: dict[tuple[tuple[int, int], frozenset[int]], float] = {}

    def gain(self, pair: tuple[int, int], separator: frozenset[int]) -> float:
        """What an edge between labels with these common neighbours adds, in nats."""
        found = self._gains.get((pair, separator))
        if found is None:
            one, other = pair
            both = self._information(one, [other], separator) + self._information(other, [one], separator)
            found = self._gains[pair, separator] = float(both) / 2 - self._cost(one, other)
        return found

    def pair_gains(self) -> np.ndarray:
        """Gains of all pairs without common neighbours, at least 0, shape ``(n, n)``."""
        number = len(self.sizes)
        found = np.zeros((number, number))
        for one in progress_bar(range(number), desc="pairs", unit="label"):
            for size in set(self.sizes):
                others = [other for other in range(number) if other != one and self.sizes[other] == size]
                if others:
                    found[one, others] = self._information(one, others, frozenset())
        free = np.array(self.sizes) - 1
        gains: np.ndarray = (found + found.T) / 2 - self._price * np.outer(free, free)
        for one, other in combinations(range(number), 2):
            self._gains[(one, other), frozenset()] = float(gains[one, other])
        np.fill_diagonal(gains, 0.0)
        return gains.clip(0)

    def _cost(self, one: int, other: int) -> float:
        return self._price * (self.sizes[one] - 1) * (self.sizes[other] - 1)

    def _information(self, target: int, others: Sequence[int], separator: frozenset[int]) -> Tensor:
        """Differences of log-likelihoods of regressions with and without other labels, which have as many states."""
        given = sorted(separator)
        ones = torch.ones(len(self.data.labels), 1, dtype=torch.double)
        common = torch.cat([ones, self.logits[target], *(part for d in given for part in self._parts(d))], 1)
        own = torch.stack([self.logits[d] for d in others])
        known = self.data.known[:, [target, *given]].all(1)
        weights = self.data.weights * torch.stack([known & self.data.known[:, d] for d in others])
        without = torch.cat([common.expand(len(others), -1, -1), own], 2)
        extended = torch.cat([without, torch.stack([self._parts(d)[1] for d in others])], 2)
        arguments = self.data.labels[:, target], self.sizes[target], weights, RIDGE
        return logistic_likelihood(extended, *arguments) - logistic_likelihood(without, *arguments)

    def _parts(self, label: int) -> tuple[Tensor, Tensor]:
        """What features tell about a label, and its states but the first."""
        hits = torch.nn.functional.one_hot(self.data.labels[:, label], self.sizes[label])
        return self.logits[label], hits[:, 1:].double()


class PairScore:
    """The same whatever the common neighbours are.

    :param np.ndarray weights: Of all pairs, shape ``(n, n)``.
    """

    def __init__(self, weights: np.ndarray) -> None:
        self.weights = weights

    def gain(self, pair: tuple[int, int], separator: frozenset[int]) -> float:
        """The weight of a pair."""
        return float(self.weights[pair])


class ShownScore:
    """Shows how often a gain was asked for.

    :param EdgeScore score: Whose gain.
    :param tqdm bar: Shows the number.
    """

    def __init__(self, score: EdgeScore, bar: "tqdm[NoReturn]") -> None:
        self.score, self.bar = score, bar

    def gain(self, pair: tuple[int, int], separator: frozenset[int]) -> float:
        """The same."""
        self.bar.update()
        return self.score.gain(pair, separator)
