r"""Sums over the counts of independent binary variables, cut into windows that each have their own exponential tilt.

Multiplying every odds by :math:`e^\theta` multiplies the weight of a count ``k`` by :math:`e^{\theta k}`: exact,
whatever theta is. A tilt is good where the count's mass function, under it, is not far below its peak; a range of
counts that is too wide for one tilt is cut into windows. The choice need not be accurate: it decides only how small the
certified error will be.
"""

__all__ = [
    "EXTREME",
    "WindowSums",
    "Windows",
    "cumulant",
    "extreme_counts",
    "heaviest",
    "sum_windows",
    "tilt_windows",
]

import math
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_structured.counts.ops.convolution_tree import UNDERFLOW, downward, upward
from pyro_structured.foundation.ops.log_space import logsumexp, safe_log

LARGEST_EXCESS = 300.0
LEFT_OUT, EXTREME = -1, -2
# A window reaches down to exp(-WINDOW_DROP) of its peak: about four digits of sixteen are spent on it.
WINDOW_DROP = 8.0
# Counts whose posterior is below exp(-RELEVANT_DROP) of the largest cannot change any result.
RELEVANT_DROP = 60.0
# Number of windows that a device chooses between two checks whether any count is left.
DEVICE_LOOKS = 16
_MIDDLE_ATOMS = 256
_END_ATOMS = 64


class Windows(NamedTuple):
    """Exponential tilts, and the counts that each is responsible for.

    ``tilts`` has shape ``(rows, num_windows)``; ``assignment``, ``(rows, max_count + 1)``: for every count the index
    of its window, -1 if it is left out, ``EXTREME`` if it is the smallest or the largest possible one and needs no sum.
    ``guards``, more tilts of shape ``(rows, num_guards)``, bound the mass that is left out; None if all counts are in
    one window.
    """

    tilts: Tensor
    assignment: Tensor
    guards: Tensor | None

    def rows(self, chosen: Tensor) -> "Windows":
        """The windows of some rows.

        :param Tensor chosen: Indices of rows, or booleans, shape ``(n,)``.
        """
        guards = None if self.guards is None else self.guards[chosen]
        return Windows(self.tilts[chosen], self.assignment[chosen], guards)


class WindowSums(NamedTuple):
    """Results of all windows together, in double precision, with bounds on the errors of their convolutions.

    ``log_partition``, relative to the heaviest vector, and ``mass_error``, its error, have shape ``(rows,)``;
    ``odds`` and ``odds_error``, about the log-odds of the variables, ``(rows, num_variables)``; ``log_posterior``,
    about the counts, ``(rows, max_count + 1)``.
    """

    log_partition: Tensor
    odds: Tensor
    log_posterior: Tensor
    mass_error: Tensor
    odds_error: Tensor


class _Passes(NamedTuple):
    """Tree passes for every row and window, in units of the window's own partition function ``log_window``."""

    log_window: Tensor
    log_root: Tensor
    mass_error: Tensor
    given_off: Tensor
    given_on: Tensor
    split_error: Tensor


class _Remainder(NamedTuple):
    """Counts in no window: log-probabilities of the two extreme counts, shape ``(rows, 2)``; bounds on the
    log-probability of the counts left out, in total and jointly with each variable's values.
    """

    log_extremes: Tensor
    mass: Tensor
    on: Tensor
    off: Tensor


def extreme_counts(logits: Tensor) -> Tensor:
    """The smallest and the largest count that the clamped variables allow, shape ``(rows, 2)``."""
    lowest = (logits == math.inf).sum(-1)
    return torch.stack([lowest, logits.shape[-1] - (logits == -math.inf).sum(-1)], -1)


def sum_windows(
    logits: Tensor, count_logits: Tensor, windows: Windows, marginals: bool, variables_at_once: int
) -> WindowSums:
    """Runs the passes of all windows and adds their results up.

    :param Tensor logits: Log-odds, shape ``(rows, num_variables)``, float64; infinite ones are clamps.
    :param Tensor count_logits: Log-potentials, shape ``(rows, max_count + 1)``, -inf at counts that are impossible.
    :param Windows windows: Constants for differentiation.
    :param bool marginals: Whether the log-odds and their errors are wanted; they are zeros otherwise.
    :param int variables_at_once: Bounds the memory that windows take.
    """
    rows, num_windows = windows.tilts.shape
    step = max(1, variables_at_once // max(1, rows * logits.shape[1]))
    chunks = [
        _passes(logits, count_logits, windows, chosen, marginals)
        for chosen in torch.arange(num_windows, device=logits.device).split(step)
    ]
    passes = chunks[0] if len(chunks) == 1 else _Passes(*(torch.cat(p, 1) for p in zip(*chunks, strict=True)))
    if windows.guards is None:
        log_partition = passes.log_window.squeeze(1)
        odds, error = _odds_of_one(logits, windows.tilts, passes) if marginals else 2 * (torch.zeros_like(logits),)
        return WindowSums(log_partition, odds, passes.log_root.squeeze(1), passes.mass_error.squeeze(1), error)
    log_extremes = _log_extremes(logits, count_logits, windows)
    log_partition = logsumexp(torch.cat([passes.log_window, log_extremes], 1), 1)
    share = passes.log_window - log_partition.unsqueeze(-1)
    mass, on, off = _bound_left_out(logits, count_logits, windows, log_partition)
    remainder = _Remainder(log_extremes - log_partition.unsqueeze(-1), mass, on, off)
    odds, error = (
        _odds_of_all(logits, windows.tilts, passes, share, remainder) if marginals else 2 * (torch.zeros_like(logits),)
    )
    log_posterior = logsumexp(passes.log_root + share.unsqueeze(-1), 1)
    for count, value in zip(extreme_counts(logits).split(1, -1), remainder.log_extremes.split(1, -1), strict=True):
        here = (torch.arange(log_posterior.shape[-1], device=logits.device) == count) & (value != -math.inf)
        log_posterior = torch.where(here, value, log_posterior)
    return WindowSums(log_partition, odds, log_posterior, (share.exp() * passes.mass_error).sum(1) + mass.exp(), error)


def _passes(logits: Tensor, count_logits: Tensor, windows: Windows, chosen: Tensor, marginals: bool) -> _Passes:
    tilts = windows.tilts[:, chosen]
    weights = count_logits.unsqueeze(1)
    if windows.guards is not None:
        counts = torch.arange(count_logits.shape[-1], dtype=logits.dtype, device=logits.device)
        member = windows.assignment.unsqueeze(1) == chosen.unsqueeze(-1)
        weights = (weights - tilts.unsqueeze(-1) * counts).masked_fill(~member, -math.inf)
    tilted = (logits.unsqueeze(1) + tilts.unsqueeze(-1)).flatten(0, 1)
    tree = upward(torch.sigmoid(tilted), torch.sigmoid(-tilted), count_logits.shape[-1] - 1)
    log_mass = tree.root.unflatten(0, tilts.shape).clamp(min=UNDERFLOW).log()
    joint = log_mass + weights
    scale = logsumexp(joint, -1)
    finite_scale = scale.masked_fill(scale == -math.inf, 0.0).unsqueeze(-1)
    # A weight this far above the mean belongs to a count whose mass is rounding error: the certificate refuses it.
    # Among huge numbers, a difference of weights would not show it.
    excess = (joint - finite_scale) - log_mass
    hopeless = excess.amax(-1) > LARGEST_EXCESS
    relative = excess.clamp(max=LARGEST_EXCESS).exp()
    split = downward(tree, relative.flatten(0, 1)) if marginals else 3 * (tilted.new_zeros(tilted.shape),)
    return _Passes(
        cumulant(logits.unsqueeze(1), tilts) + scale,
        joint - finite_scale,
        (tree.root_error.unflatten(0, tilts.shape) * relative).sum(-1).masked_fill(hopeless, math.inf),
        *(tensor.unflatten(0, tilts.shape) for tensor in split),
    )


def _odds_of_one(logits: Tensor, tilts: Tensor, passes: _Passes) -> tuple[Tensor, Tensor]:
    """Log-odds and errors from one window: the prior cancels, and with it a difference of logarithms near the logit."""
    on, off, split_error = (t.squeeze(1) for t in (passes.given_on, passes.given_off, passes.split_error))
    return logits + tilts + (safe_log(on) - safe_log(off)), split_error / on + split_error / off


def _odds_of_all(
    logits: Tensor, tilts: Tensor, passes: _Passes, share: Tensor, remainder: _Remainder
) -> tuple[Tensor, Tensor]:
    """Log-odds and errors from all windows, whose probabilities of a variable being 0 and 1 add up."""
    tilted = logits.unsqueeze(1) + tilts.unsqueeze(-1)
    log_error = safe_log(passes.split_error)
    error = torch.zeros_like(logits)
    sides = []
    for sign, given, extreme, lost in (
        (-1.0, passes.given_off, 0, remainder.off),
        (1.0, passes.given_on, 1, remainder.on),
    ):
        base = share.unsqueeze(-1) + torch.nn.functional.logsigmoid(sign * tilted)
        alone = remainder.log_extremes[:, extreme, None, None].expand(-1, 1, logits.shape[-1])
        side = logsumexp(torch.cat([base + safe_log(given), alone], 1), 1)
        # Impossible values without an error keep none.
        missed = torch.logaddexp(logsumexp(base + log_error, 1), lost)
        error = error + (missed - side).exp().masked_fill(missed == -math.inf, 0.0)
        sides.append(side)
    return sides[1] - sides[0], error


def _log_extremes(logits: Tensor, count_logits: Tensor, windows: Windows) -> Tensor:
    """Log weights of the two vectors whose free variables are all off, or all on, relative to the heaviest
    vector; -inf where a window has them.
    """
    counts = extreme_counts(logits)
    inside = counts < count_logits.shape[-1]
    cells = counts.clamp(max=count_logits.shape[-1] - 1)
    inside = inside & (windows.assignment.gather(-1, cells) == EXTREME)
    # If nothing is free, there is only one such vector.
    inside = inside & torch.stack([torch.ones_like(inside[:, 0]), counts[:, 0] != counts[:, 1]], -1)
    weights = -torch.stack([heaviest(logits), heaviest(-logits)], -1)
    return (count_logits.gather(-1, cells) + weights).masked_fill(~inside, -math.inf)


@torch.no_grad()
def _bound_left_out(
    logits: Tensor, count_logits: Tensor, windows: Windows, log_partition: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    r"""Bounds the log-probability of the counts in no window, in total and jointly with each variable's values.

    By Chernoff, the weight of a count k is at most :math:`\exp(K(\theta) - \theta k + f_k)` for every tilt, and that
    of a count k together with :math:`y_d = 1` at most :math:`\sigma(x_d + \theta)` times this.
    """
    assert windows.guards is not None
    on, off = torch.full_like(logits, -math.inf), torch.full_like(logits, -math.inf)
    total = torch.full_like(log_partition, -math.inf)
    lost = (windows.assignment == LEFT_OUT) & (count_logits != -math.inf)
    if not bool(lost.any()):
        return total, on, off
    counts = torch.arange(count_logits.shape[-1], dtype=logits.dtype, device=logits.device)
    best = torch.full_like(count_logits, math.inf)
    choice = torch.zeros_like(windows.assignment)
    for index, tilt in enumerate(windows.guards.unbind(1)):
        constant = (cumulant(logits, tilt) - log_partition).unsqueeze(-1)
        bound = constant - tilt.unsqueeze(-1) * counts + count_logits
        choice = torch.where(bound < best, index, choice)
        best = torch.minimum(bound, best)
    best = best.masked_fill(~lost, -math.inf)
    for index, tilt in enumerate(windows.guards.unbind(1)):
        mass = logsumexp(best.masked_fill(choice != index, -math.inf)).unsqueeze(-1)
        tilted = logits + tilt.unsqueeze(-1)
        on = torch.logaddexp(on, mass + torch.nn.functional.logsigmoid(tilted))
        off = torch.logaddexp(off, mass + torch.nn.functional.logsigmoid(-tilted))
        total = torch.logaddexp(total, mass.squeeze(-1))
    return total, on, off


def cumulant(logits: Tensor, tilt: Tensor) -> Tensor:
    r"""Computes :math:`K(\theta) = \sum_d \log(1 + e^{x_d + \theta}) - \sum_d \max(x_d, 0)`, the log weight of all
    vectors relative to the heaviest one without a tilt: huge log-odds cancel exactly. Clamped variables weigh
    :math:`1` or :math:`e^\theta`.

    ``softplus`` of torch is linear above 20, which loses 2e-9 a variable; ``logsigmoid`` has no threshold.

    :param Tensor logits: Shape ``(..., num_variables)``.
    :param Tensor tilt: Shape ``(...)``.
    :return: Shape ``(...)``.

    Example::

        >>> cumulant(torch.zeros(3), torch.tensor(0.0))
        tensor(2.0794)
    """
    return _log_weights(logits, tilt).sum(-1)


def heaviest(logits: Tensor) -> Tensor:
    r"""The log weight :math:`\sum_d \max(x_d, 0)` of the heaviest vector; clamps have no weight.

    Example::

        >>> heaviest(torch.tensor([1.0, 2.0, -3.0, math.inf]))
        tensor(3.)
    """
    return torch.relu(logits.masked_fill(logits.isinf(), 0.0)).sum(-1)


def _log_weights(logits: Tensor, tilt: Tensor) -> Tensor:
    theta = tilt.unsqueeze(-1)
    tilted = logits + theta
    on = logits > 0
    # log(1 + exp(x + t)) - x is t + log(1 + exp(-x - t)).
    return torch.where(on, theta, 0.0) - torch.nn.functional.logsigmoid(torch.where(on, tilted, -tilted))


def _compress(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Replaces many logits by few weighted ones: the extreme ones, and means of consecutive order statistics."""
    num_variables = logits.shape[-1]
    group = (num_variables - 2 * _END_ATOMS) // _MIDDLE_ATOMS
    if group < 2:
        return logits, torch.ones_like(logits[0])
    ordered = logits.clamp(-1e8, 1e8).sort(-1).values
    ends = num_variables - group * _MIDDLE_ATOMS
    low, middle, high = ordered.split([ends // 2, group * _MIDDLE_ATOMS, ends - ends // 2], -1)
    atoms = torch.cat([low, middle.unflatten(-1, (_MIDDLE_ATOMS, group)).mean(-1), high], -1)
    weight = torch.ones_like(atoms[0])
    weight[ends // 2 : ends // 2 + _MIDDLE_ATOMS] = group
    return atoms, weight


def _knots(logits: Tensor, max_count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Tilts whose mean counts are spread over ``0 ... max_count``, with the means and K(theta) - theta * mean."""
    atoms, weight = _compress(logits)
    rows, num_variables = logits.shape
    free = atoms.isfinite()
    low = -atoms.masked_fill(~free, -math.inf).amax(-1, keepdim=True).clamp(-1e8, 1e8) - 42.0
    high = -atoms.masked_fill(~free, math.inf).amin(-1, keepdim=True).clamp(-1e8, 1e8) + 42.0
    # Chebyshev spacing, and knots around the first and last counts: the tilt changes fastest there.
    span = min(max_count + 1, num_variables)
    num_knots = min(512, max(64, math.isqrt(span)))
    angle = torch.linspace(0.0, math.pi, num_knots, dtype=logits.dtype, device=logits.device)
    end = torch.tensor([0.03, 0.1, 0.3, 0.6, 1.0, 1.5, 2.0, 3.0], dtype=logits.dtype, device=logits.device)
    target = torch.cat([(0.5 - 0.5 * torch.cos(angle)) * span, end, span - end]).clamp(0, span).sort().values
    step = max(1, 2**20 // max(1, rows * atoms.shape[-1]))

    def mean_count(tilt: Tensor) -> Tensor:
        chunks = tilt.split(step, -1)
        return torch.cat([torch.sigmoid(atoms.unsqueeze(-2) + t.unsqueeze(-1)) @ weight for t in chunks], -1)

    # A spread of tilts, moved towards the targets by interpolation of the log-odds of the mean.
    fraction = torch.linspace(0.0, 1.0, 96, dtype=logits.dtype, device=logits.device)
    tilt = low + (high - low) * fraction
    for _ in range(3):
        tilt = _invert(tilt, mean_count(tilt), target, num_variables, low, high)
    mean = mean_count(tilt)
    chunks = [_log_weights(atoms.unsqueeze(-2), t) @ weight for t in tilt.split(step, -1)]
    return tilt, mean, torch.cat(chunks, -1) - tilt * mean


def _invert(tilt: Tensor, mean: Tensor, target: Tensor, size: int, low: Tensor, high: Tensor) -> Tensor:
    """Tilts at which the mean count is about the targets."""
    tiny = 1e-17 * size
    odds = (mean + tiny).log() - (size - mean).clamp(min=tiny).log()
    wanted = ((target + tiny).log() - (size - target).clamp(min=tiny).log()).expand(tilt.shape[0], -1).contiguous()
    right = torch.searchsorted(odds.contiguous(), wanted).clamp(1, tilt.shape[-1] - 1)
    x0, x1 = odds.gather(-1, right - 1), odds.gather(-1, right)
    share = ((wanted - x0) / (x1 - x0).clamp(min=1e-12)).clamp(0.0, 1.0)
    t0, t1 = tilt.gather(-1, right - 1), tilt.gather(-1, right)
    return torch.minimum(torch.maximum(t0 + share * (t1 - t0), low), high).sort(-1).values


def _interpolate(tilt: Tensor, mean: Tensor, value: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Cubic Hermite interpolation of ``value``, whose slope is ``-tilt``, and linear interpolation of ``tilt``."""
    right = torch.searchsorted(mean.contiguous(), counts.expand(mean.shape[0], -1).contiguous()).clamp(
        1, mean.shape[-1] - 1
    )
    left = right - 1
    x0, x1 = mean.gather(-1, left), mean.gather(-1, right)
    y0, y1 = value.gather(-1, left), value.gather(-1, right)
    t0, t1 = tilt.gather(-1, left), tilt.gather(-1, right)
    gap = (x1 - x0).clamp(min=1e-9)
    u = ((counts - x0) / gap).clamp(0.0, 1.0)
    a, b = -t0 * gap - (y1 - y0), t1 * gap + (y1 - y0)
    return (1 - u) * y0 + u * y1 + u * (1 - u) * ((1 - u) * a + u * b), (1 - u) * t0 + u * t1


def tilt_windows(
    logits: Tensor,
    count_logits: Tensor,
    max_windows: int,
    relevant_drop: float = RELEVANT_DROP,
    window_drop: float = WINDOW_DROP,
) -> tuple[Tensor, Tensor, Tensor]:
    r"""Chooses exponential tilts, and the counts that each is responsible for.

    :param Tensor logits: Shape ``(rows, num_variables)``, float64.
    :param Tensor count_logits: Log-potentials of the counts, shape ``(rows, max_count + 1)``.
    :param int max_windows: Largest number of windows of a row.
    :param float window_drop: Largest drop within a window below its peak, in nats.
    :param float relevant_drop: Counts whose posterior is this many nats below the largest need no window.
    :return: ``(tilts, window, guards)``: tilts of shape ``(rows, num_windows)``; for every count the index of its
        window, shape ``(rows, max_count + 1)``, -1 for counts that are irrelevant or did not find one; and further
        tilts, shape ``(rows, num_guards)``, for bounds on the counts that are left out. Cost :math:`O(D\log D)`.
    """
    max_count = count_logits.shape[-1] - 1
    tilt, mean, value = _knots(logits, max_count)
    counts = torch.arange(max_count + 1, dtype=logits.dtype, device=logits.device)
    log_mass, count_tilt = _interpolate(tilt, mean, value, counts)
    score = count_logits + log_mass
    pending = score >= score.amax(-1, keepdim=True) - relevant_drop
    pending &= count_logits != -math.inf
    window = torch.full(count_logits.shape, -1, dtype=torch.long, device=logits.device)
    tilts = []
    for index in range(max_windows):
        first = pending.to(torch.int8).argmax(-1, keepdim=True)
        # The most probable count deserves the middle of a window; the others are reached from the lowest on.
        best = score.argmax(-1, keepdim=True)
        centre = best if index == 0 else _farthest(first, pending, log_mass, count_tilt, counts, window_drop)
        theta = count_tilt.gather(-1, centre)
        drop = log_mass.gather(-1, centre) + theta * (centre - counts) - log_mass
        member = pending & ((drop <= window_drop + 0.5) | (counts == centre))
        window = torch.where(member, index, window)
        tilts.append(theta)
        pending = pending & ~member
        # The check costs nothing on a CPU; on a device it is a synchronisation.
        if (pending.device.type == "cpu" or index % DEVICE_LOOKS == 0) and not bool(pending.any()):
            break
    return torch.cat(tilts, -1), window, tilt


def _farthest(
    first: Tensor, pending: Tensor, log_mass: Tensor, count_tilt: Tensor, counts: Tensor, window_drop: float
) -> Tensor:
    """The largest count whose tilt leaves the first pending count within the window."""
    drop = log_mass + count_tilt * (counts - first) - log_mass.gather(-1, first)
    reach = pending & (drop <= window_drop)
    return torch.where(reach.any(-1, keepdim=True), counts.masked_fill(~reach, -1.0).argmax(-1, keepdim=True), first)
