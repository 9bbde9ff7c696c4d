"""Sums over the counts of independent binary variables, cut into windows that each have their own exponential tilt."""

__all__ = ["EXTREME", "WindowSums", "Windows", "extreme_counts", "sum_windows"]

import math
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_structured.counts.ops.convolution_tree import UNDERFLOW, downward, upward
from pyro_structured.counts.ops.tilting import cumulant, heaviest
from pyro_structured.foundation.ops.log_space import logsumexp, safe_log

LARGEST_EXCESS = 300.0
LEFT_OUT, EXTREME = -1, -2


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

    def rows(self, part: Tensor) -> "Windows":
        """Those of some rows."""
        return Windows(self.tilts[part], self.assignment[part], None if self.guards is None else self.guards[part])


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
    """What is in no window: log-probabilities of the two extreme counts, shape ``(rows, 2)``; bounds on the
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
    parts = [
        _passes(logits, count_logits, windows, part, marginals)
        for part in torch.arange(num_windows, device=logits.device).split(step)
    ]
    passes = parts[0] if len(parts) == 1 else _Passes(*(torch.cat(p, 1) for p in zip(*parts, strict=True)))
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


def _passes(logits: Tensor, count_logits: Tensor, windows: Windows, part: Tensor, marginals: bool) -> _Passes:
    tilts = windows.tilts[:, part]
    weights = count_logits.unsqueeze(1)
    if windows.guards is not None:
        counts = torch.arange(count_logits.shape[-1], dtype=logits.dtype, device=logits.device)
        member = windows.assignment.unsqueeze(1) == part.unsqueeze(-1)
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
    """One window: the prior cancels, and with it the difference of two logarithms near the logit."""
    on, off, split_error = (t.squeeze(1) for t in (passes.given_on, passes.given_off, passes.split_error))
    return logits + tilts + (safe_log(on) - safe_log(off)), split_error / on + split_error / off


def _odds_of_all(
    logits: Tensor, tilts: Tensor, passes: _Passes, share: Tensor, remainder: _Remainder
) -> tuple[Tensor, Tensor]:
    """Adds the windows' probabilities of a variable being 0 and 1, and their errors."""
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
        # What is impossible by itself has no error.
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
