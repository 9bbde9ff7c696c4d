"""Mutual information of labels given features and other labels."""

__all__ = ["ConditionalScore", "PairScore", "ShownScore", "dealt_rows", "held_out_logits"]

import math
from collections.abc import Sequence
from itertools import combinations
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from pyro_structured.foundation.ops.parallel_tasks import in_parallel
from pyro_structured.foundation.ops.progress import progress_bar
from pyro_structured.junction_trees.models.chordal_search import EdgeScore
from pyro_structured.junction_trees.models.crf_potentials import ConditionalField
from pyro_structured.junction_trees.models.crf_training import FieldData, FieldOptions, train_field
from pyro_structured.junction_trees.ops.logistic_regression import logistic_likelihood
from pyro_structured.junction_trees.structures.clique_tree import CliqueTree

FOLDS = 5
# Ridge penalty of the small regressions: enough for states that never occur together.
RIDGE = 1.0
# Largest sum of integer weights: larger integers are not exact floating point numbers.
MOST_DEALT = 2**53


def dealt_rows(data: FieldData) -> tuple[FieldData, Tensor]:
    """Rows, and the numbers of the folds that they are dealt to in turn, shape ``(R,)``.

    With integer weights, a row is dealt as if it were repeated as often: it is returned once for each of its folds.
    """
    number = len(data.weights)
    if bool((data.weights % 1 != 0).any()) or data.weights.sum() > MOST_DEALT:
        return data, torch.arange(number) % min(FOLDS, number)
    ends = data.weights.long().cumsum(0).unsqueeze(-1)
    folds = min(FOLDS, int(ends[-1]))
    # Numbers of rows in each fold, among all rows before each end.
    before = (ends + folds - 1 - torch.arange(folds)) // folds
    times = before.diff(dim=0, prepend=torch.zeros_like(before[:1]))
    rows, fold = times.nonzero(as_tuple=True)
    return data.part(rows)._replace(weights=times[rows, fold].to(data.weights)), fold


def _fitted_logits(
    data: FieldData, held_out: Tensor, field: ConditionalField, feature_map: torch.nn.Module, options: FieldOptions
) -> Tensor | None:
    """Log-weights of the states of held-out rows, learned from the other rows; ``None`` after an interrupt."""
    fit = train_field(field, data.part(~held_out), feature_map, False, options)
    if fit.interrupted:
        return None
    with torch.no_grad():
        return field.distribution(fit.feature_map(data.inputs[held_out]), fit.weights).clique_logits


def held_out_logits(
    data: FieldData,
    folds: Tensor,
    cardinalities: Sequence[int],
    feature_map: torch.nn.Module,
    options: FieldOptions,
    n_jobs: Any = None,
) -> list[Tensor]:
    """Log-weights of the labels' states given the features alone, by logistic regressions on the rows of other folds.

    :param Tensor folds: Numbers of the rows' folds, shape ``(N,)``.
    :param n_jobs: Number of processes.
    :return: For each label, log-weights of all states but the first, less that of the first, shape ``(N, states - 1)``.
    """
    tree = CliqueTree.from_edges([], cardinalities)
    field = ConditionalField(tree, [])
    held_out = [folds == number for number in folds.unique()]
    clique_logits = torch.zeros(len(folds), tree.table_size, dtype=torch.double)
    tasks = ((data, rows, field, feature_map, options) for rows in held_out)
    parts = in_parallel(_fitted_logits, tasks, len(held_out), n_jobs, desc="folds", unit="fold")
    for rows, logits in zip(held_out, parts, strict=True):
        if logits is None:
            raise KeyboardInterrupt
        clique_logits[rows] = logits
    return [logits[:, 1:] - logits[:, :1] for logits in clique_logits.split(tree.table_sizes, 1)]


class ConditionalScore:
    r"""Penalised conditional mutual information of labels, given the features and some other labels.

    .. math::
        \sum \log \frac{p(y_i \mid y_j, y_S, x)}{p(y_i \mid y_S, x)} - \frac{c}{2} \log N (r_i - 1)(r_j - 1),

    the mean of both directions, where these probabilities are those of logistic regressions on labels and on the
    held-out log-odds of i, j and S given the features.

    :param logits: Held-out log-odds, as of :func:`held_out_logits`.
    :param FieldData data: The labels.
    :param float penalty: The factor c, 1 for the Bayesian information criterion.
    """

    def __init__(self, logits: Sequence[Tensor], data: FieldData, penalty: float) -> None:
        self.logits, self.data = logits, data
        self.sizes = [label_logits.shape[1] + 1 for label_logits in logits]
        self._price = penalty * 0.5 * math.log(max(float(data.weights.sum()), 2.0))
        self._gains: dict[tuple[tuple[int, int], frozenset[int]], float] = {}

    def gain(self, pair: tuple[int, int], separator: frozenset[int]) -> float:
        """Gain of an edge between labels with these common neighbours, in nats."""
        gain_of_pair = self._gains.get((pair, separator))
        if gain_of_pair is None:
            first, second = pair
            both = self._information(first, [second], separator) + self._information(second, [first], separator)
            gain_of_pair = self._gains[pair, separator] = float(both) / 2 - self._cost(first, second)
        return gain_of_pair

    def pair_gains(self) -> np.ndarray:
        """Gains of all pairs without common neighbours, at least 0, shape ``(n, n)``."""
        number = len(self.sizes)
        information = np.zeros((number, number))
        for first in progress_bar(range(number), desc="pairs", unit="label"):
            for size in set(self.sizes):
                others = [second for second in range(number) if second != first and self.sizes[second] == size]
                if others:
                    information[first, others] = self._information(first, others, frozenset())
        free = np.array(self.sizes) - 1
        gains: np.ndarray = (information + information.T) / 2 - self._price * np.outer(free, free)
        for first, second in combinations(range(number), 2):
            self._gains[(first, second), frozenset()] = float(gains[first, second])
        np.fill_diagonal(gains, 0.0)
        return gains.clip(0)

    def _cost(self, one: int, other: int) -> float:
        return self._price * (self.sizes[one] - 1) * (self.sizes[other] - 1)

    def _information(self, target: int, others: Sequence[int], separator: frozenset[int]) -> Tensor:
        """Differences of log-likelihoods of regressions on a separator with and without each other label, shape
        ``(len(others),)``; the others have equally many states.
        """
        given = sorted(separator)
        ones = torch.ones(len(self.data.labels), 1, dtype=torch.double)
        common = torch.cat([ones, self.logits[target], *(features for d in given for features in self._parts(d))], 1)
        own = torch.stack([self.logits[d] for d in others])
        known = self.data.known[:, [target, *given]].all(1)
        weights = self.data.weights * torch.stack([known & self.data.known[:, d] for d in others])
        without = torch.cat([common.expand(len(others), -1, -1), own], 2)
        extended = torch.cat([without, torch.stack([self._parts(d)[1] for d in others])], 2)
        arguments = self.data.labels[:, target], self.sizes[target], weights, RIDGE
        return logistic_likelihood(extended, *arguments) - logistic_likelihood(without, *arguments)

    def _parts(self, label: int) -> tuple[Tensor, Tensor]:
        """Held-out log-odds of a label, shape ``(N, states - 1)``, and indicators of its states but the first."""
        hits = torch.nn.functional.one_hot(self.data.labels[:, label], self.sizes[label])
        return self.logits[label], hits[:, 1:].double()


class PairScore:
    """Score of edges that does not depend on common neighbours.

    :param np.ndarray weights: Weights of all pairs, shape ``(n, n)``.
    """

    def __init__(self, weights: np.ndarray) -> None:
        self.weights = weights

    def gain(self, pair: tuple[int, int], separator: frozenset[int]) -> float:
        """Weight of a pair."""
        return float(self.weights[pair])


class ShownScore:
    """Score of edges that shows the number of computed gains.

    :param EdgeScore score: The score itself.
    :param tqdm bar: Progress bar of the number.
    """

    def __init__(self, score: EdgeScore, bar: "tqdm[NoReturn]") -> None:
        self.score, self.bar = score, bar

    def gain(self, pair: tuple[int, int], separator: frozenset[int]) -> float:
        """Gain by the score itself."""
        self.bar.update()
        return self.score.gain(pair, separator)
