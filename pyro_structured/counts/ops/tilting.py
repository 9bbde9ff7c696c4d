r"""Where the posterior of a count has its mass, and exponential tilts that make it visible to floating point.

Multiplying every odds by :math:`e^\theta` multiplies the weight of a count ``k`` by :math:`e^{\theta k}`: exact,
whatever theta is. A tilt is good where the count's mass function, under it, is not far below its peak; a range of
counts that is too wide for one tilt is cut into windows. Nothing here needs to be accurate: the choice decides only
how small the certified error will be.
"""

__all__ = ["cumulant", "heaviest", "tilt_windows"]

import math

import torch
from torch import Tensor

# A window reaches down to exp(-WINDOW_DROP) of its peak: about four digits of sixteen are spent on it.
WINDOW_DROP = 8.0
# Counts whose posterior is below exp(-RELEVANT_DROP) of the largest cannot change any result.
RELEVANT_DROP = 60.0
# Windows that a device chooses between two looks at whether any count is left.
DEVICE_LOOKS = 16
_MIDDLE_ATOMS = 256
_END_ATOMS = 64


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
        parts = tilt.split(step, -1)
        return torch.cat([torch.sigmoid(atoms.unsqueeze(-2) + t.unsqueeze(-1)) @ weight for t in parts], -1)

    # A spread of tilts, moved towards the targets by interpolation of the log-odds of the mean.
    fraction = torch.linspace(0.0, 1.0, 96, dtype=logits.dtype, device=logits.device)
    tilt = low + (high - low) * fraction
    for _ in range(3):
        tilt = _invert(tilt, mean_count(tilt), target, num_variables, low, high)
    mean = mean_count(tilt)
    parts = [_log_weights(atoms.unsqueeze(-2), t) @ weight for t in tilt.split(step, -1)]
    return tilt, mean, torch.cat(parts, -1) - tilt * mean


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
    :param int max_windows: Windows that may be used for a row.
    :param float window_drop: How far below its peak, in nats, a window may reach.
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
        # Looking costs nothing on a processor; on a device it is a synchronisation.
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
