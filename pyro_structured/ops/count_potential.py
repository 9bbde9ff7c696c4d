"""One potential on the count of independent binary variables: partition function and posterior, certified and fast."""

__all__ = ["CountSolution", "attempts", "force", "log_odds_tolerance", "solve_count_potential", "solve_windows"]

import math
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_structured.ops.convolution import logsumexp, safe_log
from pyro_structured.ops.convolution_tree import UNIT_ROUNDOFF, downward, upward
from pyro_structured.ops.tilting import cumulant, tilt_windows

# Largest certified errors that are accepted: of log Z in units of max(1, |log Z|, sum |x|), and of a log-odds. The
# bounds, not the errors, grow with the number of variables, so the second is relaxed beyond 2**16 of them.
LOG_PARTITION_TOLERANCE = 5e-13
LOG_ODDS_TOLERANCE = 1e-9
RELAXED_SIZE = 2**16
MAX_WINDOWS = 64
LARGEST_EXCESS = 300.0
# Variables that are processed at once: bounds the memory that batches and windows take.
CHUNK_VARIABLES = 2**20


def log_odds_tolerance(num_variables: int) -> float:
    """Largest certified error of a posterior log-odds that is accepted."""
    return LOG_ODDS_TOLERANCE * max(1.0, num_variables / RELAXED_SIZE)


class CountSolution(NamedTuple):
    """Results for every row of a batch, with bounds on their errors.

    ``log_partition`` and ``log_partition_error`` have shape ``(rows,)``; ``marginal_logits`` and
    ``marginal_logits_error``, ``(rows, num_variables)``; ``log_posterior``, the log-probabilities of the total count,
    ``(rows, num_variables + 1)``. ``certified`` is False where an error bound exceeds the tolerance: those rows must be
    solved in another way.
    """

    log_partition: Tensor
    marginal_logits: Tensor
    log_posterior: Tensor
    log_partition_error: Tensor
    marginal_logits_error: Tensor
    certified: Tensor


class _Passes(NamedTuple):
    """Tree passes for every row and window, in units of the window's own partition function ``log_window``."""

    log_window: Tensor
    log_root: Tensor
    mass_error: Tensor
    log_given_off: Tensor
    log_given_on: Tensor
    log_split_error: Tensor


class _LeftOut(NamedTuple):
    """Bounds on the probability of the counts outside all windows, and of these with a variable on, or off."""

    mass: Tensor
    on: Tensor
    off: Tensor


def solve_count_potential(logits: Tensor, count_logits: Tensor, marginals: bool = True) -> CountSolution:
    r"""Sums :math:`\exp(\sum_d x_d y_d + f(\sum_d y_d))` over all binary vectors.

    First without a tilt; the rows that fail the certificate again, with tilts and windows around the posterior.

    :param Tensor logits: Log-odds, shape ``(rows, num_variables)``, float64; infinite ones are clamps.
    :param Tensor count_logits: Log-potential of every count, shape ``(rows, num_variables + 1)``.
    :param bool marginals: Whether ``marginal_logits`` and their errors are wanted; they are zeros otherwise.
    :return: Results and error bounds. Cost :math:`O(D\log^2 D)` for every window; at most one synchronisation with the
        device for each of the two attempts.
    """
    forced, possible, weight = force(logits, count_logits)
    (_, _, solution), *retries = attempts(forced, possible, marginals)
    for rows, _, retried in retries:
        solution = CountSolution(*(old.index_copy(0, rows, new) for old, new in zip(solution, retried, strict=True)))
    return solution._replace(log_partition=solution.log_partition + weight)


def force(logits: Tensor, count_logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Clamps all variables where only the smallest, or only the largest, count of the free ones is possible.

    No tilt brings such a count to the middle of the mass function, and no sum is needed.

    :return: The logits; the potentials, -inf at counts that clamped variables exclude; and the log weight of the
        variables that were clamped to 1, shape ``(rows,)``.
    """
    counts = torch.arange(count_logits.shape[-1], device=logits.device)
    lowest = (logits == math.inf).sum(-1, keepdim=True)
    highest = logits.shape[-1] - (logits == -math.inf).sum(-1, keepdim=True)
    possible = (count_logits != -math.inf) & (counts >= lowest) & (counts <= highest)
    all_off = ~(possible & (counts > lowest)).any(-1, keepdim=True)
    all_on = ~(possible & (counts < highest)).any(-1, keepdim=True) & ~all_off
    free = logits.masked_fill(logits.isinf(), 0.0)
    forced = torch.where(logits.isinf(), logits, logits.masked_fill(all_off, -math.inf).masked_fill(all_on, math.inf))
    weight = free.sum(-1).masked_fill(~all_on.squeeze(-1), 0.0)
    return forced, count_logits.masked_fill(~possible, -math.inf), weight


def attempts(
    logits: Tensor, count_logits: Tensor, marginals: bool
) -> list[tuple[Tensor, tuple[Tensor, Tensor], CountSolution]]:
    """Solves all rows without a tilt, and those that fail the certificate with windows.

    :return: For each attempt the indices of its rows, the ``(tilts, window)`` that it used, and its solution.
    """
    # Counts above the largest possible one are not computed: this is the O(Dk) case of the paper.
    num_counts = count_logits.shape[-1]
    possible = (count_logits != -math.inf).any(0).nonzero()
    limit = max(1, int(possible.max())) if len(possible) else 1
    count_logits = count_logits[:, : limit + 1]
    rows = torch.arange(logits.shape[0], device=logits.device)
    no_tilt = logits.new_zeros(logits.shape[0], 1)
    whole = torch.zeros_like(count_logits, dtype=torch.long)
    first = _solve_windows(logits, count_logits, no_tilt, whole, no_tilt, marginals)
    failed = (~first.certified).nonzero().squeeze(-1)
    results = [(rows, (no_tilt, whole), _pad(first, num_counts))]
    if len(failed):
        tilts, window, guards = tilt_windows(logits[failed], count_logits[failed], MAX_WINDOWS)
        second = _solve_windows(logits[failed], count_logits[failed], tilts, window, guards, marginals)
        results.append((failed, (tilts, window), _pad(second, num_counts)))
    return results


def _pad(solution: CountSolution, num_counts: int) -> CountSolution:
    missing = num_counts - solution.log_posterior.shape[-1]
    padded = torch.nn.functional.pad(solution.log_posterior, (0, missing), value=-math.inf)
    return solution._replace(log_posterior=padded)


def solve_windows(logits: Tensor, count_logits: Tensor, tilts: Tensor, window: Tensor) -> tuple[Tensor, Tensor]:
    """Marginal log-odds and log-posterior of the count, differentiable, under given tilts and windows."""
    solution = _solve_chunk(logits, count_logits, tilts, window, tilts, True)
    return solution.marginal_logits, solution.log_posterior


def _solve_windows(
    logits: Tensor, count_logits: Tensor, tilts: Tensor, window: Tensor, guards: Tensor, marginals: bool
) -> CountSolution:
    num_windows = tilts.shape[1]
    step = max(1, CHUNK_VARIABLES // max(1, logits.shape[1] * num_windows))
    parts = [
        _solve_chunk(*part, marginals)
        for part in zip(
            logits.split(step),
            count_logits.split(step),
            tilts.split(step),
            window.split(step),
            guards.split(step),
            strict=True,
        )
    ]
    return parts[0] if len(parts) == 1 else CountSolution(*(torch.cat(p) for p in zip(*parts, strict=True)))


def _solve_chunk(
    logits: Tensor, count_logits: Tensor, tilts: Tensor, window: Tensor, guards: Tensor, marginals: bool
) -> CountSolution:
    rows, num_windows = tilts.shape
    step = max(1, CHUNK_VARIABLES // max(1, rows * logits.shape[1]))
    index = torch.arange(num_windows, device=logits.device)
    parts = [
        _passes(logits, count_logits, tilts[:, part], window.unsqueeze(1) == part.unsqueeze(-1), marginals)
        for part in index.split(step)
    ]
    passes = _Passes(*(torch.cat(p, 1) for p in zip(*parts, strict=True)))
    log_partition = logsumexp(passes.log_window, 1)
    share = passes.log_window - log_partition.unsqueeze(-1)
    left_out = _left_out(logits, count_logits, window, guards, log_partition)
    mass_error = (share.exp() * passes.mass_error).sum(1)
    if left_out is not None:
        mass_error = mass_error + left_out.mass
    marginal_logits, logits_error = torch.zeros_like(logits), torch.zeros_like(logits)
    if marginals:
        marginal_logits, logits_error = _combine(logits, tilts, passes, share, left_out)
    log_posterior = logsumexp(passes.log_root + share.unsqueeze(-1), 1)
    scale = torch.maximum(log_partition.abs(), logits.abs().masked_fill(logits.isinf(), 0.0).sum(-1)).clamp(min=1.0)
    determined = logits.isinf().all(-1)
    if bool(determined.any()):
        # The one vector's potential is the answer, also where it is -inf.
        table = torch.nn.functional.pad(count_logits, (0, 1), value=-math.inf)
        ones = (logits == math.inf).sum(-1, keepdim=True).clamp(max=count_logits.shape[-1])
        log_partition = torch.where(determined, table.gather(-1, ones).squeeze(-1), log_partition)
        mass_error = mass_error.masked_fill(determined, 0.0)
    certified = determined | (
        (mass_error <= LOG_PARTITION_TOLERANCE * scale)
        & (logits_error.amax(-1) <= log_odds_tolerance(logits.shape[1]))
        & log_partition.isfinite()
    )
    rounding = _rounding(logits, tilts, window, log_partition)
    return CountSolution(
        log_partition,
        marginal_logits,
        log_posterior,
        mass_error + rounding,
        logits_error + 2 * rounding.unsqueeze(-1) + 4 * UNIT_ROUNDOFF * logits.masked_fill(logits.isinf(), 0.0).abs(),
        certified,
    )


def _passes(logits: Tensor, count_logits: Tensor, tilts: Tensor, member: Tensor, marginals: bool) -> _Passes:
    rows, num_windows = tilts.shape
    shape = (rows, num_windows, -1)
    counts = torch.arange(count_logits.shape[-1], dtype=logits.dtype, device=logits.device)
    weights = (count_logits.unsqueeze(1) - tilts.unsqueeze(-1) * counts).masked_fill(~member, -math.inf)
    tilted = (logits.unsqueeze(1) + tilts.unsqueeze(-1)).flatten(0, 1)
    tree = upward(torch.sigmoid(tilted), torch.sigmoid(-tilted), count_logits.shape[-1] - 1)
    joint = safe_log(tree.root.view(shape)) + weights
    scale = logsumexp(joint, -1)
    finite_scale = scale.masked_fill(scale == -math.inf, 0.0).unsqueeze(-1)
    # A weight this far above the mean belongs to a count whose mass is rounding error: the certificate refuses it.
    excess = weights - finite_scale
    hopeless = (excess > LARGEST_EXCESS).any(-1)
    relative = excess.clamp(max=LARGEST_EXCESS).exp()
    split = downward(tree, relative.flatten(0, 1)) if marginals else 3 * (tilted.new_zeros(tilted.shape),)
    return _Passes(
        cumulant(logits.unsqueeze(1), tilts) + scale,
        joint - finite_scale,
        (tree.root_error.view(shape) * relative).sum(-1).masked_fill(hopeless, math.inf),
        *(safe_log(tensor).view(shape) for tensor in split),
    )


def _rounding(logits: Tensor, tilts: Tensor, window: Tensor, log_partition: Tensor) -> Tensor:
    """Bounds what the rounding of the tilted odds, of the tilted potential and of the logarithms does to log Z.

    A relative error of the odds of one variable changes log Z, and a log-odds of another, by no more than itself. No
    convolution can reduce these errors: they are reported, but do not decide about the certificate.
    """
    steepest = tilts.abs().amax(-1)
    odds = logits.masked_fill(logits.isinf(), 0.0).abs().sum(-1) + logits.shape[-1] * (1 + steepest)
    largest_count = window.shape[-1]
    return UNIT_ROUNDOFF * (8 * odds + 8 * steepest * largest_count + 32 * log_partition.abs() + 512)


@torch.no_grad()
def _left_out(
    logits: Tensor, count_logits: Tensor, window: Tensor, guards: Tensor, log_partition: Tensor
) -> _LeftOut | None:
    r"""Bounds the probability of the counts outside all windows, in total and jointly with each variable's values.

    By Chernoff, the weight of a count k is at most :math:`\exp(K(\theta) - \theta k + f_k)` for every tilt, and that
    of a count k together with :math:`y_d = 1` at most :math:`\sigma(x_d + \theta)` times this.
    """
    lost = (window < 0) & (count_logits != -math.inf)
    if not bool(lost.any()):
        return None
    counts = torch.arange(count_logits.shape[-1], dtype=logits.dtype, device=logits.device)
    best = torch.full_like(count_logits, math.inf)
    choice = torch.zeros_like(window)
    for index, tilt in enumerate(guards.unbind(1)):
        constant = (cumulant(logits, tilt) - log_partition).unsqueeze(-1)
        bound = constant - tilt.unsqueeze(-1) * counts + count_logits
        choice = torch.where(bound < best, index, choice)
        best = torch.minimum(bound, best)
    lost_mass = best.masked_fill(~lost, -math.inf).clamp(max=300.0).exp()
    by_tilt = torch.zeros_like(guards).scatter_add_(1, choice, lost_mass)
    on, off = torch.zeros_like(logits), torch.zeros_like(logits)
    for tilt, mass in zip(guards.unbind(1), by_tilt.unbind(1), strict=True):
        tilted = logits + tilt.unsqueeze(-1)
        on.addcmul_(mass.unsqueeze(-1), torch.sigmoid(tilted))
        off.addcmul_(mass.unsqueeze(-1), torch.sigmoid(-tilted))
    return _LeftOut(by_tilt.sum(-1), on, off)


def _combine(
    logits: Tensor, tilts: Tensor, passes: _Passes, share: Tensor, left_out: _LeftOut | None
) -> tuple[Tensor, Tensor]:
    """Adds the windows' probabilities of a variable being 0 and 1, and their errors; returns log-odds and their
    error.
    """
    if tilts.shape[1] == 1 and left_out is None:
        # The prior cancels: faster, and free of a cancellation between two logarithms near the logit.
        on, off = passes.log_given_on[:, 0], passes.log_given_off[:, 0]
        odds = logits + tilts + (on - off)
        error = (passes.log_split_error[:, 0] - on).exp() + (passes.log_split_error[:, 0] - off).exp()
    else:
        odds, error = _add_windows(logits, tilts, passes, share, left_out)
    clamped = logits.isinf()
    odds = torch.where(clamped, logits, odds)
    return odds, error.masked_fill(clamped, 0.0).nan_to_num(nan=math.inf)


def _add_windows(
    logits: Tensor, tilts: Tensor, passes: _Passes, share: Tensor, left_out: _LeftOut | None
) -> tuple[Tensor, Tensor]:
    tilted = logits.unsqueeze(1) + tilts.unsqueeze(-1)
    error = torch.zeros_like(logits)
    sides = []
    for prior, given, lost in (
        (torch.nn.functional.logsigmoid(tilted), passes.log_given_on, left_out.on if left_out else 0.0),
        (torch.nn.functional.logsigmoid(-tilted), passes.log_given_off, left_out.off if left_out else 0.0),
    ):
        base = share.unsqueeze(-1) + prior
        side = logsumexp(base + given, 1)
        error = error + (logsumexp(base + passes.log_split_error, 1) - side).exp() + lost / side.exp()
        sides.append(side)
    return sides[0] - sides[1], error
