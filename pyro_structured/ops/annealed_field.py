"""Annealed importance sampling of binary fields under patterns."""

__all__ = ["AnnealedWeights", "anneal_field"]

import math
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_structured.ops.convolution import logsumexp
from pyro_structured.ops.count_sample import draw_log
from pyro_structured.ops.evidence import log_odds
from pyro_structured.ops.field_modes import field_modes
from pyro_structured.ops.field_rows import FieldRows
from pyro_structured.ops.grid_passes import log_add
from pyro_structured.ops.joint_field import JointField

# Modes at most, chains at least for each of them, and starts to look for them at most.
MOST_MODES, CHAINS_OF_MODE, MOST_STARTS = 10, 4, 100


class AnnealedWeights(NamedTuple):
    """Weights of chains.

    :ivar Tensor log_weights: Logarithms of weights with the mean Z, or, going back, 1 / Z, shape ``(rows, chains)``.
    :ivar Tensor modes: Numbers of the modes at which chains started, shape ``(rows, chains)``; 0, going back.
    """

    log_weights: Tensor
    modes: Tensor

    @property
    def log_mean(self) -> Tensor:
        """Shape ``(rows,)``."""
        return logsumexp(self.log_weights) - math.log(self.log_weights.shape[-1])

    @property
    def standard_error(self) -> Tensor:
        """Of the logarithm of the mean, shape ``(rows,)``; how many chains start at each mode is no accident."""
        shares = (self.log_weights - self.log_mean.unsqueeze(-1)).exp()
        members = torch.nn.functional.one_hot(self.modes).to(shares.dtype)
        sizes = members.sum(1).clamp(min=1.0)
        means = (shares.unsqueeze(1) @ members).squeeze(1) / sizes
        squares = (shares - means.gather(-1, self.modes)).square().unsqueeze(1) @ members
        sizes = sizes.clamp(min=2.0)
        return (squares.squeeze(1) * sizes / (sizes - 1)).sum(-1).sqrt() / shares.shape[-1]


@torch.no_grad()
def anneal_field(field: FieldRows, num_temperatures: int, labels: Tensor | int) -> AnnealedWeights:
    r"""Runs Markov chains from a mixture of independent pixels to a field, or back from samples of it, and weighs them.

    .. math::
        p_\beta(y, h, z) \propto \bigl(\pi_z q_z(y) r_z(h)\bigr)^{1 - \beta} \tilde p(y, h)^\beta

    with labels y, hidden units h and a mode z: :math:`q_z` are mean-field solutions, :math:`r_z` the hidden units given
    their means, and :math:`\pi_z` proportional to the lower bounds of Z. At :math:`\beta = 0` the sum over all is 1, and
    at :math:`\beta = 1` Z times the number of modes. With the bounds close to the masses of the modes, these masses do
    not change along the way, and nothing has to flow between labels that are far apart. Where there is one mode only,
    this is the geometric path from its mean-field solution.

    Between two of the K + 1 values of :math:`\beta`, the mode is drawn given the labels, then the hidden units, and then
    labels of one colour after the other. Weights are sums over hidden units and modes. Half of the chains start at the
    modes in equal numbers, half in proportion to :math:`\pi`, and have weights that make up for it.

    Chains move at the nearest positive integer to T, where there is a joint distribution with hidden units; if T is
    another number, the last step weighs them once more.

    :param FieldRows field: With finite penalties.
    :param int num_temperatures: Number of steps K.
    :param labels: Number of chains from independent pixels, at least 2; or exact samples of the field, to go back from,
        zeros and ones of shape ``(rows, chains, D)``.
    :return: Cost O(K·(J·D + M·(J + D))) for each chain with M modes, at most 10, times T if it is more than 1.

    **References**

    Neal (2001): Annealed importance sampling. Statistics and Computing 11.
    """
    forward = isinstance(labels, int)
    number = labels if isinstance(labels, int) else labels.shape[1]
    path = _path(field, number)
    if isinstance(labels, int):
        modes, total = path.start(labels)
        current = torch.bernoulli((path.odds + path.of_modes(path.tilts, modes)).sigmoid())
    else:
        current = labels
        modes, total = labels.new_zeros(labels.shape[:2], dtype=torch.long), labels.new_zeros(labels.shape[:2])
    betas = [step / num_temperatures for step in range(num_temperatures + 1)]
    pairs = list(pairwise(betas)) if forward else list(pairwise(betas[::-1]))
    by_mode = total.unsqueeze(-1)
    for place, (old, new) in enumerate(pairs):
        if place:
            current = path.moved(current, by_mode, old)
        elif not forward:
            total = total - path.last_step(current)
        added, differing = path.added(current), path.differing(current)
        before, by_mode = (path.log_weights(current, added, beta) for beta in (old, new))
        total = total + logsumexp(by_mode) - logsumexp(before) - (new - old) * differing
    return AnnealedWeights(total + path.last_step(current) if forward else total, modes)


class _Path(NamedTuple):
    """Distributions between a mixture of independent pixels and a field.

    :ivar FieldRows field: With an axis of chains in its table, at a temperature at which chains can move.
    :ivar float temperature: That of the field.
    :ivar Tensor odds: Of the pixels by themselves, shape ``(rows, 1, D)``.
    :ivar Tensor tilts: What modes add to them, shape ``(rows, modes, D)``.
    :ivar Tensor levels: What the means of the pixels add to the activations, shape ``(rows, modes, J)``.
    :ivar Tensor log_shares: Of the modes, shape ``(rows, modes)``.
    :ivar Tensor log_starts: Log Z of pixels and hidden units of each mode, shape ``(rows, modes)``.
    """

    field: FieldRows
    temperature: float
    odds: Tensor
    tilts: Tensor
    levels: Tensor
    log_shares: Tensor
    log_starts: Tensor

    @property
    def used(self) -> Tensor:
        """Whether there are these modes."""
        return self.log_shares > -torch.inf

    def start(self, number: int) -> tuple[Tensor, Tensor]:
        """Modes of so many chains, and the logarithms of their shares over those of the chains there."""
        used = self.used.to(self.log_shares.dtype)
        portions = (used / used.sum(-1, keepdim=True) + self.log_shares.exp()) / 2
        places = (torch.arange(number, device=used.device, dtype=used.dtype) + 0.5) / number
        ends = portions.cumsum(-1)[:, :-1].contiguous()
        modes = torch.searchsorted(ends, places.expand(len(ends), -1).contiguous())
        sizes = torch.nn.functional.one_hot(modes, used.shape[-1]).sum(1)
        return modes, (self.log_shares - (sizes / number).log()).gather(-1, modes)

    def of_modes(self, each: Tensor, modes: Tensor) -> Tensor:
        """What has an axis of modes, for the modes of the chains."""
        rows = torch.arange(len(modes), device=modes.device).unsqueeze(-1)
        return each[rows, modes]

    def added(self, labels: Tensor) -> Tensor:
        """What labels add to the activations, shape ``(rows, chains, J)``."""
        return labels @ self.field.weights.mT

    def differing(self, labels: Tensor) -> Tensor:
        """Penalties of neighbours that differ, shape ``(rows, chains)``."""
        if not self.field.paired:
            return labels.new_zeros(labels.shape[:2])
        ends = labels[..., self.field.edges]
        differ = (ends[..., 0] != ends[..., 1]).to(labels.dtype)
        return (differ @ self.field.penalties.unsqueeze(-1)).squeeze(-1)

    def log_weights(self, labels: Tensor, added: Tensor, beta: float) -> Tensor:
        """Of the modes together with labels, but for the pixels by themselves and penalties, shape ``(rows, chains,
        modes)``.
        """
        bases = labels @ self.tilts.mT + (self.log_shares - self.log_starts).unsqueeze(1)
        ends = -self.used.sum(-1, keepdim=True).to(labels.dtype).log().unsqueeze(1)
        weights = torch.where(self.used.unsqueeze(1), (1 - beta) * bases + beta * ends, -torch.inf)
        levels = self.levels.unsqueeze(1)
        return weights + self._widened.potential(
            self.field.biases[:, None, None] + (levels + beta * (added.unsqueeze(-2) - levels))
        )

    @property
    def _widened(self) -> FieldRows:
        """With an axis of modes in its table."""
        composition = self.field.composition
        return self.field._replace(
            composition=composition if isinstance(composition, str) else composition.unsqueeze(1)
        )

    def last_step(self, labels: Tensor) -> Tensor:
        """From the temperature at which chains move to that of the field."""
        if self.temperature == self.field.temperature:
            return labels.new_zeros(labels.shape[:2])
        activations = self.field.biases.unsqueeze(1) + self.added(labels)
        return self.field._replace(temperature=self.temperature).potential(activations) - self.field.potential(
            activations
        )

    def moved(self, labels: Tensor, by_mode: Tensor, beta: float) -> Tensor:
        """One sweep."""
        modes = draw_log(by_mode) if by_mode.shape[-1] > 1 else by_mode.new_zeros(by_mode.shape[:2], dtype=torch.long)
        field = JointField(
            odds=self.odds + (1 - beta) * self.of_modes(self.tilts, modes),
            penalties=beta * self.field.penalties.unsqueeze(1),
            weights=beta * self.field.weights,
            biases=self.field.biases.unsqueeze(1) + (1 - beta) * self.of_modes(self.levels, modes),
            composition=self.field.composition,
            replicas=int(self.field.temperature),
            shape=self.field.shape,
        )
        return field.sweep(labels, 1)


def _path(field: FieldRows, num_chains: int) -> _Path:
    field, temperature = field.detach(), field.temperature
    field = field._replace(temperature=float(max(1, round(temperature))))
    modes = field_modes(field, max(1, min(MOST_MODES, num_chains // CHAINS_OF_MODE)), min(num_chains, MOST_STARTS))
    odds = log_odds(*field.states.chunk(2, -1)).unsqueeze(1)
    levels = (odds + modes.tilts).sigmoid() @ field.weights.mT
    if isinstance(field.composition, Tensor):
        field = field._replace(composition=field.composition.unsqueeze(1))
    off, on = field.states.unsqueeze(1).chunk(2, -1)
    return _Path(
        field=field,
        temperature=temperature,
        odds=odds,
        tilts=modes.tilts,
        levels=levels,
        log_shares=modes.bounds - logsumexp(modes.bounds).unsqueeze(-1),
        log_starts=log_add(off, on + modes.tilts).sum(-1) + field.potential(field.biases.unsqueeze(1) + levels),
    )
