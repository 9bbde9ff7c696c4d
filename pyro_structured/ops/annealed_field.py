"""Annealed importance sampling of binary fields under patterns."""

__all__ = ["anneal_field"]

from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_structured.ops.evidence import log_odds
from pyro_structured.ops.field_rows import FieldRows
from pyro_structured.ops.grid_passes import log_add
from pyro_structured.ops.joint_field import JointField


@torch.no_grad()
def anneal_field(field: FieldRows, num_temperatures: int, labels: Tensor | int) -> tuple[Tensor, Tensor]:
    r"""Runs Markov chains from independent pixels to a field, or back from samples of it, and weighs them.

    .. math::
        \log p_\beta(y) = \sum_i s_i(y_i) - \beta \sum_{(i, j)} p_{ij} [y_i \ne y_j] + f_T\bigl(a_0 + \beta W (y - m)
        \bigr) + \text{const}, \qquad a_0 = c + W m,

    with the means m of the pixels by themselves, so that neither penalties nor patterns tell labels apart at
    :math:`\beta = 0`, and :math:`\log Z_0 = \sum_i \log \sum_y e^{s_i(y)} + f_T(a_0)`. Between two of the K + 1 values
    of :math:`\beta`, hidden units are drawn given the labels, and then labels of one colour after the other.

    Chains move at the nearest positive integer to T, where there is a joint distribution with hidden units; if T is
    another number, the last step weighs them once more.

    :param FieldRows field: With finite penalties.
    :param int num_temperatures: Number of steps K.
    :param labels: Number of chains from independent pixels; or exact samples of the field, to go back from, zeros and
        ones of shape ``(rows, chains, D)``.
    :return: Log Z of the independent pixels, shape ``(rows,)``, and the logarithms of the chains' weights, shape
        ``(rows, chains)``, whose exponentials have the mean Z / Z_0, or, going back, Z_0 / Z. Cost O(K·J·D) for each
        chain, times T if it is more than 1.

    **References**

    Neal (2001): Annealed importance sampling. Statistics and Computing 11.
    """
    path = _path(field)
    forward = isinstance(labels, int)
    if isinstance(labels, int):
        current = torch.bernoulli(path.odds.sigmoid().expand(field.num_rows, labels, -1))
    else:
        current = labels
    betas = [step / num_temperatures for step in range(num_temperatures + 1)]
    pairs = list(pairwise(betas)) if forward else list(pairwise(betas[::-1]))
    total = current.new_zeros(current.shape[:2])
    for place, (old, new) in enumerate(pairs):
        if place:
            current = path.moved(current, old)
        elif not forward:
            total = total - path.last_step(current)
        total = total + path.step(current, old, new)
    return path.log_start, total + path.last_step(current) if forward else total


class _Path(NamedTuple):
    """Distributions between that of independent pixels and a field.

    :ivar FieldRows field: With an axis of chains in its table, at a temperature at which chains can move.
    :ivar float temperature: That of the field.
    :ivar Tensor odds: Of the pixels by themselves, shape ``(rows, 1, D)``.
    :ivar Tensor level: What their means add to the activations, shape ``(rows, 1, J)``.
    """

    field: FieldRows
    temperature: float
    odds: Tensor
    level: Tensor

    @property
    def log_start(self) -> Tensor:
        """Log Z of the first distribution, shape ``(rows,)``."""
        off, on = self.field.states.chunk(2, -1)
        return log_add(off, on).sum(-1) + self.field.potential(self._activations(self.level, 0.0))[:, 0]

    def step(self, labels: Tensor, old: float, new: float) -> Tensor:
        """Logarithms of ratios of weights, shape ``(rows, chains)``."""
        added = self._added(labels)
        found = self.field.potential(self._activations(added, new)) - self.field.potential(
            self._activations(added, old)
        )
        if self.field.paired:
            ends = labels[..., self.field.edges]
            differ = (ends[..., 0] != ends[..., 1]).to(labels.dtype)
            found = found - (new - old) * (differ @ self.field.penalties.unsqueeze(-1)).squeeze(-1)
        return found

    def last_step(self, labels: Tensor) -> Tensor:
        """From the temperature at which chains move to that of the field."""
        if self.temperature == self.field.temperature:
            return labels.new_zeros(labels.shape[:2])
        activations = self._activations(self._added(labels), 1.0)
        return self.field._replace(temperature=self.temperature).potential(activations) - self.field.potential(
            activations
        )

    def moved(self, labels: Tensor, beta: float) -> Tensor:
        """One sweep."""
        field = JointField(
            odds=self.odds,
            penalties=beta * self.field.penalties.unsqueeze(1),
            weights=beta * self.field.weights,
            biases=self._activations(self.level.new_zeros(()), beta),
            composition=self.field.composition,
            replicas=int(self.field.temperature),
            shape=self.field.shape,
        )
        return field.sweep(labels, 1)

    def _added(self, labels: Tensor) -> Tensor:
        """What labels add to the activations, shape ``(rows, chains, J)``."""
        return labels @ self.field.weights.mT

    def _activations(self, added: Tensor, beta: float) -> Tensor:
        return self.field.biases.unsqueeze(1) + (self.level + beta * (added - self.level))


def _path(field: FieldRows) -> _Path:
    field, temperature = field.detach(), field.temperature
    odds = log_odds(*field.states.chunk(2, -1)).unsqueeze(1)
    if isinstance(field.composition, Tensor):
        field = field._replace(composition=field.composition.unsqueeze(1))
    return _Path(
        field=field._replace(temperature=float(max(1, round(temperature)))),
        temperature=temperature,
        odds=odds,
        level=odds.sigmoid() @ field.weights.mT,
    )
