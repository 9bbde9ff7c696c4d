"""Annealed importance sampling of fields of several labels under patterns."""

__all__ = ["anneal_labels"]

from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_structured.fields.ops.annealed_field import AnnealedWeights
from pyro_structured.fields.ops.field import Field
from pyro_structured.fields.ops.field_sweeps import sweep, times
from pyro_structured.foundation.ops.log_space import logsumexp


@torch.no_grad()
def anneal_labels(field: Field, num_temperatures: int, labels: Tensor | int) -> AnnealedWeights:
    r"""Runs Markov chains from independent pixels to a field, or back from samples of it, and weighs them.

    .. math::
        \log p_\beta(y) = \sum_i s_i(y_i) - \beta \sum_{(i, j)} p_{ij} [y_i \ne y_j] + f_n\bigl(a_0 + \beta W (x(y) - m)
        \bigr) + \text{const}, \qquad a_0 = c + W m,

    with the indicators x of labels and their means m in pixels by themselves, so that neither penalties nor patterns
    tell labels apart at :math:`\beta = 0`. Between two of the K + 1 values of :math:`\beta`, hidden units are drawn
    given the labels, and then labels of one colour after the other.

    :param Field field: A field with finite penalties, at a temperature that is a positive integer if there are
        patterns.
    :param int num_temperatures: Number of steps K.
    :param labels: Number of chains from independent pixels, at least 2; or exact samples of the field, to go back from,
        shape ``(rows, chains, D)``.
    :return: Cost O(K·n·J·L·D) for each chain, with L labels.

    **References**

    Neal (2001): Annealed importance sampling. Statistics and Computing 11.

    Example::

        >>> states, pair = torch.zeros(1, 6).double(), torch.ones(1, 1).double()
        >>> field = Field(states, pair[0], pair, (1, 2), torch.ones(1, 1, 6).double(), 0 * pair, "sum", 1.0)
        >>> estimate = anneal_labels(field, 100, 100).log_mean
        >>> exact = (3 + 6 * torch.tensor([-1.0]).exp()).log() + torch.tensor([2.0]).exp().log1p()
        >>> bool((estimate - exact).abs() < 0.1)
        True
    """
    path = _Path.of(field)
    forward = isinstance(labels, int)
    current = path.start(labels) if isinstance(labels, int) else labels
    total = path.log_start.expand(current.shape[:2]) if forward else -path.log_start.expand(current.shape[:2])
    betas = [step / num_temperatures for step in range(num_temperatures + 1)]
    for place, (old, new) in enumerate(pairwise(betas if forward else betas[::-1])):
        if place:
            current = sweep(path.at(old), current, 1)
        total = total + path.step(current, old, new)
    ends = current if isinstance(labels, int) else labels
    return AnnealedWeights(total, torch.zeros_like(total, dtype=torch.long), ends)


class _Path(NamedTuple):
    """Distributions between that of independent pixels and a field.

    :ivar Tensor level: Log-odds that the means of the pixels by themselves lend to the hidden units, shape ``(rows,
        J)``.
    """

    field: Field
    level: Tensor

    @classmethod
    def of(cls, field: Field) -> "_Path":
        """Path from independent pixels to a field."""
        means = field.label_states.softmax(-2).flatten(-2)
        return cls(field, times(means.unsqueeze(1), field.weights.mT).squeeze(1))

    @property
    def log_start(self) -> Tensor:
        """Log Z of the first distribution, shape ``(rows, 1)``."""
        total = logsumexp(self.field.label_states, -2).sum(-1) + self.field.potential(self.field.biases + self.level)
        return total.unsqueeze(1)

    def start(self, number: int) -> Tensor:
        """Labels of independent pixels, shape ``(rows, number, D)``."""
        probs = self.field.label_states.softmax(-2).transpose(-1, -2).unsqueeze(1)
        drawn: Tensor = torch.distributions.Categorical(probs.expand(self.field.num_rows, number, -1, -1)).sample()
        return drawn.double()

    def at(self, beta: float) -> Field:
        r"""Field of the distribution at :math:`\beta`."""
        field = self.field
        biases = field.biases + (1 - beta) * self.level
        return field._replace(penalties=beta * field.penalties, weights=beta * field.weights, biases=biases)

    def step(self, labels: Tensor, old: float, new: float) -> Tensor:
        r"""Log-ratios of the weights at two values of :math:`\beta`, shape ``(rows, chains)``."""
        added = times(self.field.indicators(labels), self.field.weights.mT)
        ratios = self._potential(added, new) - self._potential(added, old)
        ends = labels[..., self.field.edges]
        penalties = self.field.penalties.unsqueeze(1)
        differ: Tensor = penalties.where(ends[..., 0] != ends[..., 1], 0.0).sum(-1)
        return ratios - (new - old) * differ

    def _potential(self, added: Tensor, beta: float) -> Tensor:
        level = self.level.unsqueeze(1)
        return self.field.potential(self.field.biases.unsqueeze(1) + level + beta * (added - level), 1)
