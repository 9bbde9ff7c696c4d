"""Annealed importance sampling of binary fields under patterns."""

__all__ = ["AnnealedWeights", "anneal_field", "field_modes"]

import math
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_structured.fields.ops.field import Field
from pyro_structured.fields.ops.field_sweeps import (
    chain_activations,
    checkerboard,
    draw_binary_labels,
    draw_shares,
    neighbour_pull,
    times,
)
from pyro_structured.fields.ops.grid_passes import log_add
from pyro_structured.foundation.ops.draws import draw_log
from pyro_structured.foundation.ops.log_space import logsumexp

# Log-odds of the pixels at starts where all labels are alike.
CERTAIN = 1000.0
# Solutions q and q' count as the same if the sum of |q_i - q'_i| over the pixels is less than this.
SAME = 1.0


class _FieldModes(NamedTuple):
    """Independent pixels around each mode, the best first.

    :ivar Tensor tilts: Log-odds that a mode adds to those of the pixels, finite, shape ``(rows, modes, D)``.
    :ivar Tensor bounds: Lower bounds of log Z at the modes, shape ``(rows, modes)``; -inf where a row has fewer modes.
    """

    tilts: Tensor
    bounds: Tensor


@torch.no_grad()
def field_modes(field: Field, most: int, num_starts: int, num_rounds: int = 50) -> _FieldModes:
    r"""Mean-field solutions from many starts, without those that are alike.

    .. math::
        \log Z \ge \mathbb{E}_q\Bigl[\sum_i s_i(y_i) - \sum_{(i, j)} p_{ij} [y_i \ne y_j]\Bigr] + f_T(W q + c) + H(q).

    The first start is that of :func:`mean_field_logits`; then come labels that are all 0, and all 1, and the labels for
    random states of the hidden units.

    :param Field field: A field with finite penalties and a positive temperature.
    :param int most: The largest number of modes.
    :param int num_starts: Number of starts, at least 1.
    :param int num_rounds: Rounds of updates. Each costs O(J·D) a start and row.
    """
    odds = field.odds.expand(field.num_rows, -1).unsqueeze(1)
    logits = odds + _first_tilts(field, num_starts)
    probs, tilts = logits.sigmoid(), torch.zeros_like(logits)
    for _ in range(num_rounds):
        level = times(field.slopes(chain_activations(field, probs), 1), field.weights)
        if not field.is_paired:
            tilts, probs = level, (odds + level).sigmoid()
            continue
        for colour in checkerboard(field.shape, probs.device):
            pull = neighbour_pull(probs, field.penalties.unsqueeze(1), field.shape)
            tilts = torch.where(colour, level + pull, tilts)
            probs = (odds + tilts).sigmoid()
    return _apart(_FieldModes(tilts, _bounds(field, tilts, probs)), probs, most)


def _first_tilts(field: Field, number: int) -> Tensor:
    """Tilts of the starts, shape ``(rows, starts, D)``."""
    units, shape = field.num_patterns, (field.num_rows, number)
    noise = torch.rand(*shape, units, dtype=field.weights.dtype, device=field.weights.device)
    if field.composition == "min":
        shares = (noise == noise.amax(-1, keepdim=True)).to(noise.dtype)
        shares[:, 0] = 1 / max(1, units)
    else:
        shares = (noise < torch.rand_like(noise[..., :1])).to(noise.dtype)
        shares[:, 0] = 0.5
    tilts = times(shares, field.weights).expand(*shape, -1).clone()
    tilts[:, 1:2], tilts[:, 2:3] = -CERTAIN, CERTAIN
    return tilts


def _bounds(field: Field, tilts: Tensor, probs: Tensor) -> Tensor:
    off, on = field.states.unsqueeze(1).chunk(2, -1)
    patterns = field.potential(chain_activations(field, probs), 1)
    bounds = log_add(off, on + tilts).sum(-1) - (tilts * probs).sum(-1) + patterns
    if field.is_paired:
        bounds = bounds - (field.penalties.unsqueeze(1) * field.differing(probs)).sum(-1)
    return bounds


def _apart(modes: _FieldModes, probs: Tensor, most: int) -> _FieldModes:
    """Modes unlike each other: the best of all, then the best of those unlike it, and so on."""
    left, rows = modes.bounds.clone(), torch.arange(len(probs), device=probs.device)
    tilts, bounds = [], []
    for _ in range(min(most, left.shape[-1])):
        best, place = left.max(-1)
        tilts.append(modes.tilts[rows, place])
        bounds.append(best)
        distance = (probs - probs[rows, place].unsqueeze(1)).abs().sum(-1)
        left = left.masked_fill(distance < SAME, -torch.inf)
    best_bounds = torch.stack(bounds, -1)
    used = int((best_bounds > -torch.inf).any(0).sum())
    return _FieldModes(torch.stack(tilts[:used], 1), best_bounds[:, :used])


class _AnnealedPath(NamedTuple):
    r"""Distributions of labels y, hidden units h, and modes z, one of M.

    .. math::
        p_\beta(y, h, z) \propto \bigl(\pi_z q_z(y) r_z(h)\bigr)^{1 - \beta} \bigl(\tilde p(y, h) / M\bigr)^\beta

    where :math:`q_z` are independent pixels, :math:`r_z` the hidden units given the means of the pixels, and
    :math:`\tilde p` is the field before it is normalised. Sums over all are 1 and Z at the ends.

    :ivar Field field: The field at the end, at a temperature at which chains can move.
    :ivar float temperature: Temperature at the end of the path.
    :ivar Tensor odds: Log-odds of the pixels by themselves, shape ``(rows, 1, D)``.
    :ivar Tensor tilts: Log-odds that the modes add to these, shape ``(rows, modes, D)``.
    :ivar Tensor levels: Activations W m at the means m of the pixels, without biases, shape ``(rows, modes, J)``.
    :ivar Tensor log_shares: Log-probabilities :math:`\log \pi_z` of the modes, shape ``(rows, modes)``; -inf where a
        row has fewer.
    :ivar Tensor log_starts: Log Z of pixels and hidden units of each mode, shape ``(rows, modes)``.
    """

    field: Field
    temperature: float
    odds: Tensor
    tilts: Tensor
    levels: Tensor
    log_shares: Tensor
    log_starts: Tensor

    @staticmethod
    def of(field: Field, temperature: float, modes: _FieldModes) -> "_AnnealedPath":
        """Path from independent pixels to a field.

        :param Field field: The field, at a temperature at which chains can move.
        :param float temperature: Temperature at the end of the path.
        """
        odds = field.odds.unsqueeze(1)
        levels = (odds + modes.tilts).sigmoid() @ field.weights.mT
        off, on = field.states.unsqueeze(1).chunk(2, -1)
        return _AnnealedPath(
            field=field,
            temperature=temperature,
            odds=odds,
            tilts=modes.tilts,
            levels=levels,
            log_shares=modes.bounds - logsumexp(modes.bounds).unsqueeze(-1),
            log_starts=log_add(off, on + modes.tilts).sum(-1) + field.potential(field.biases.unsqueeze(1) + levels, 1),
        )

    @property
    def log_ends(self) -> Tensor:
        """Log-weights of the modes at the end, shape ``(rows, modes)``."""
        used = self.log_shares > -torch.inf
        return (used / used.sum(-1, keepdim=True)).log()

    def start(self, number: int) -> tuple[Tensor, Tensor, Tensor]:
        r"""Labels of the chains, ``(rows, number, D)``, their modes, ``(rows, number)``, and the logarithms of
        :math:`\pi_z` divided by the mode's share of the chains, ``(rows, number)``.

        Half of the chains are spread evenly, half by the shares, so that modes have their chains also where the shares
        are wrong.
        """
        portions = (self.log_ends.exp() + self.log_shares.exp()) / 2
        places = (torch.arange(number, device=portions.device, dtype=portions.dtype) + 0.5) / number
        ends = portions.cumsum(-1)[:, :-1].contiguous()
        modes = torch.searchsorted(ends, places.expand(len(ends), -1).contiguous())
        sizes = torch.nn.functional.one_hot(modes, portions.shape[-1]).sum(1)
        excess = (self.log_shares - (sizes / number).log()).gather(-1, modes)
        return torch.bernoulli((self.odds + _of_modes(self.tilts, modes)).sigmoid()), modes, excess

    def step(self, labels: Tensor, old: float, new: float) -> tuple[Tensor, Tensor]:
        """Log-ratios of the weights, shape ``(rows, chains)``, and log-weights of the modes at the new value, shape
        ``(rows, chains, modes)``.
        """
        added = labels @ self.field.weights.mT
        bases = labels @ self.tilts.mT + (self.log_shares - self.log_starts).unsqueeze(1)
        before, after = (self._by_mode(bases, added, beta) for beta in (old, new))
        ratios = logsumexp(after) - logsumexp(before)
        if self.field.is_paired:
            ends = labels[..., self.field.edges]
            differ = (ends[..., 0] != ends[..., 1]).to(labels.dtype)
            ratios = ratios - (new - old) * (differ @ self.field.penalties.unsqueeze(-1)).squeeze(-1)
        return ratios, after

    def _by_mode(self, bases: Tensor, added: Tensor, beta: float) -> Tensor:
        """Log-weights of modes and labels, without the log-odds of the pixels by themselves and the penalties, shape
        ``(rows, chains, modes)``.
        """
        field, levels = self.field, self.levels.unsqueeze(1)
        activations = field.biases[:, None, None] + (levels + beta * (added.unsqueeze(-2) - levels))
        ends = self.log_ends.unsqueeze(1)
        mixed = (1 - beta) * bases + beta * ends.clamp(min=torch.finfo(ends.dtype).min)
        return (mixed + field.potential(activations, 2)).masked_fill(ends == -torch.inf, -torch.inf)

    def last_step(self, labels: Tensor) -> Tensor:
        """Log-ratios of the weights at the path's temperature and at the one at which chains move, shape ``(rows,
        chains)``.
        """
        if self.temperature == self.field.temperature:
            return labels.new_zeros(labels.shape[:2])
        activations = self.field.biases.unsqueeze(1) + labels @ self.field.weights.mT
        own = self.field._replace(temperature=self.temperature).potential(activations, 1)
        return own - self.field.potential(activations, 1)

    def moved(self, labels: Tensor, by_mode: Tensor, beta: float) -> Tensor:
        """Labels after one sweep, shape ``(rows, chains, D)``.

        :param Tensor by_mode: Log-weights of the modes from :meth:`step`.
        """
        alone = by_mode.shape[-1] == 1
        modes = torch.zeros_like(by_mode[..., 0], dtype=torch.long) if alone else draw_log(by_mode)
        field, odds = self.field, self.odds + (1 - beta) * _of_modes(self.tilts, modes)
        if field.num_patterns:
            weights = beta * field.weights
            biases = field.biases.unsqueeze(1) + (1 - beta) * _of_modes(self.levels, modes)
            shares = draw_shares(field, times(labels, weights.mT) + biases)
            odds = odds + times(shares, weights)
        penalties = beta * field.penalties.unsqueeze(1)
        return draw_binary_labels(labels, odds, penalties, field.shape, torch.rand_like(labels))


def _of_modes(values: Tensor, modes: Tensor) -> Tensor:
    """Values at the modes of the chains, shape ``(rows, chains, n)``.

    :param Tensor values: Shape ``(rows, modes, n)``.
    :param Tensor modes: Numbers of modes, shape ``(rows, chains)``.
    """
    if values.shape[1] == 1:
        return values.expand(-1, modes.shape[1], -1)
    return values[torch.arange(len(modes), device=modes.device).unsqueeze(-1), modes]


# Largest number of modes, smallest number of chains for each of them, and largest number of starts.
MOST_MODES, CHAINS_OF_MODE, MOST_STARTS = 10, 4, 100
# Steps of a trial, as a share of all steps.
TRIAL = 0.1
# Standard errors subtracted from the estimate of a trial: with few heavy weights, they come out too small.
CAUTION = 4


class AnnealedWeights(NamedTuple):
    """Weights of chains.

    :ivar Tensor log_weights: Logarithms of weights with the mean Z, or, going back, 1 / Z, shape ``(rows, chains)``.
    :ivar Tensor modes: Numbers of the modes at which chains started, shape ``(rows, chains)``; 0, going back.
    :ivar Tensor labels: Labels of the chains at the field, at the end or, going back, at the start, shape ``(rows,
        chains, D)``.
    """

    log_weights: Tensor
    modes: Tensor
    labels: Tensor

    @property
    def log_mean(self) -> Tensor:
        """Logarithm of the mean weight, shape ``(rows,)``."""
        return logsumexp(self.log_weights) - math.log(self.log_weights.shape[-1])

    @property
    def standard_error(self) -> Tensor:
        """Standard error of :attr:`log_mean`, shape ``(rows,)``; the number of chains at each mode is not random."""
        shares = (self.log_weights - self.log_mean.unsqueeze(-1)).exp()
        members = torch.nn.functional.one_hot(self.modes).to(shares.dtype)
        sizes = members.sum(1)
        means = (shares.unsqueeze(1) @ members).squeeze(1) / sizes.clamp(min=1.0)
        squares = ((shares - means.gather(-1, self.modes)).square().unsqueeze(1) @ members).squeeze(1)
        return (squares * sizes / (sizes - 1).clamp(min=1.0)).sum(-1).sqrt() / shares.shape[-1]


@torch.no_grad()
def anneal_field(field: Field, num_temperatures: int, labels: Tensor | int) -> AnnealedWeights:
    r"""Runs Markov chains from independent pixels to a field, or back from samples of it, and weighs them.

    Between two of the K + 1 values of :math:`\beta` of :class:`_AnnealedPath`, a mode is drawn given the labels, then
    hidden units, and then labels of one colour after the other; weights are sums over modes and hidden units.

    There are two ways. One comes from the best mean-field solutions that are apart, with shares proportional to the
    bounds of Z that they prove: where these are close to the masses of the modes, nothing has to flow along the way
    between labels that are far apart. The other comes from the pixels by themselves, and is better where solutions are
    more than can be followed. A trial with a tenth of the steps goes either way, and a row takes the one of the larger
    estimate less four standard errors; the weights of the trial are not used again.

    Chains move at the nearest positive integer to T, where there is a joint distribution with hidden units; if T is
    another number, the last step corrects the weights for it.

    :param Field field: A field with finite penalties.
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
    plain = _FieldModes(torch.zeros_like(modes.tilts), torch.zeros_like(modes.bounds).masked_fill(~first, -torch.inf))
    scores = []
    for candidate in (modes, _FieldModes(plain.tilts[:, :1], plain.bounds[:, :1])):
        trial = _run(_AnnealedPath.of(field, temperature, candidate), max(1, round(TRIAL * num_temperatures)), number)
        scores.append(trial.log_mean - CAUTION * trial.standard_error)
    better = (scores[0] >= scores[1]).unsqueeze(-1)
    if not bool(better.any()):
        modes = _FieldModes(plain.tilts[:, :1], plain.bounds[:, :1])
    else:
        tilts = torch.where(better.unsqueeze(-1), modes.tilts, plain.tilts)
        modes = _FieldModes(tilts, torch.where(better, modes.bounds, plain.bounds))
    return _run(_AnnealedPath.of(field, temperature, modes), num_temperatures, labels)


def _run(path: _AnnealedPath, num_temperatures: int, labels: Tensor | int) -> AnnealedWeights:
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
    if isinstance(labels, int):
        return AnnealedWeights(total + path.last_step(current), modes, current)
    return AnnealedWeights(total, modes, labels)
