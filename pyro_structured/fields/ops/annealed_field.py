"""Annealed importance sampling of binary fields under patterns."""

__all__ = ["AnnealedWeights", "anneal_field"]

import math
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_structured.fields.ops.annealed_path import AnnealedPath
from pyro_structured.fields.ops.field_modes import FieldModes, field_modes
from pyro_structured.fields.ops.field_rows import FieldRows
from pyro_structured.foundation.ops.log_space import logsumexp

# Modes at most, chains at least for each of them, and starts to look for them at most.
MOST_MODES, CHAINS_OF_MODE, MOST_STARTS = 10, 4, 100
# The share of the steps after which a way is chosen.
TRIAL = 0.1
# By how many standard errors its estimate is reduced: those of few heavy weights tell too little.
CAUTION = 4


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
        sizes = members.sum(1)
        means = (shares.unsqueeze(1) @ members).squeeze(1) / sizes.clamp(min=1.0)
        squares = ((shares - means.gather(-1, self.modes)).square().unsqueeze(1) @ members).squeeze(1)
        return (squares * sizes / (sizes - 1).clamp(min=1.0)).sum(-1).sqrt() / shares.shape[-1]


@torch.no_grad()
def anneal_field(field: FieldRows, num_temperatures: int, labels: Tensor | int) -> AnnealedWeights:
    r"""Runs Markov chains from independent pixels to a field, or back from samples of it, and weighs them.

    Between two of the K + 1 values of :math:`\beta` of :class:`AnnealedPath`, a mode is drawn given the labels, then
    hidden units, and then labels of one colour after the other; weights are sums over modes and hidden units.

    There are two ways. One comes from the best mean-field solutions that are apart, with shares proportional to the
    bounds of Z that they prove: where these are close to the masses of the modes, nothing has to flow along the way
    between labels that are far apart. The other comes from the pixels by themselves, and is better where solutions are
    more than can be followed. A trial with a tenth of the steps goes either way, and a row takes the one of the larger
    estimate less four standard errors; the weights of the trial are not used again.

    Chains move at the nearest positive integer to T, where there is a joint distribution with hidden units; if T is
    another number, the last step weighs them once more.

    :param FieldRows field: With finite penalties.
    :param int num_temperatures: Number of steps K.
    :param labels: Number of chains from independent pixels, at least 2; or exact samples of the field, to go back from,
        zeros and ones of shape ``(rows, chains, D)``.
    :return: Cost O(K·(J·D + M·(J + D))) for each chain, with M modes, times T if it is more than 1.

    **References**

    Neal (2001): Annealed importance sampling. Statistics and Computing 11.
    """
    number = labels if isinstance(labels, int) else labels.shape[1]
    field, temperature = field.detach(), field.temperature
    field = field._replace(temperature=float(max(1, round(temperature))))
    modes = field_modes(field, max(1, min(MOST_MODES, number // CHAINS_OF_MODE)), min(number, MOST_STARTS))
    first = torch.arange(modes.bounds.shape[-1], device=modes.bounds.device) == 0
    plain = FieldModes(torch.zeros_like(modes.tilts), torch.zeros_like(modes.bounds).masked_fill(~first, -torch.inf))
    scores = []
    for each in (modes, FieldModes(plain.tilts[:, :1], plain.bounds[:, :1])):
        tried = _run(AnnealedPath.of(field, temperature, each), max(1, round(TRIAL * num_temperatures)), number)
        scores.append(tried.log_mean - CAUTION * tried.standard_error)
    better = (scores[0] >= scores[1]).unsqueeze(-1)
    if not bool(better.any()):
        modes = FieldModes(plain.tilts[:, :1], plain.bounds[:, :1])
    else:
        tilts = torch.where(better.unsqueeze(-1), modes.tilts, plain.tilts)
        modes = FieldModes(tilts, torch.where(better, modes.bounds, plain.bounds))
    return _run(AnnealedPath.of(field, temperature, modes), num_temperatures, labels)


def _run(path: AnnealedPath, num_temperatures: int, labels: Tensor | int) -> AnnealedWeights:
    forward = isinstance(labels, int)
    if isinstance(labels, int):
        current, modes, total = path.start(labels)
    else:
        current, total = labels, -path.last_step(labels)
        modes = torch.zeros_like(total, dtype=torch.long)
    betas = [step / num_temperatures for step in range(num_temperatures + 1)]
    by_mode = total.unsqueeze(-1)
    for place, (old, new) in enumerate(pairwise(betas if forward else betas[::-1])):
        if place:
            current = path.moved(current, by_mode, old)
        ratios, by_mode = path.step(current, old, new)
        total = total + ratios
    return AnnealedWeights(total + path.last_step(current) if forward else total, modes)
