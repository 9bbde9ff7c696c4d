"""One potential on the count of independent binary variables: partition function and posterior, certified and fast."""

__all__ = [
    "CountSolution",
    "attempts",
    "rows_at_once",
    "solve_count_potential",
    "solve_windows",
]

import math
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_structured.counts.ops.convolution_tree import UNIT_ROUNDOFF
from pyro_structured.counts.ops.count_windows import (
    EXTREME,
    Windows,
    extreme_counts,
    heaviest,
    sum_windows,
    tilt_windows,
)
from pyro_structured.counts.ops.direct_counts import (
    LARGEST_EXPONENT,
    log_odds_tolerance,
    log_partition_tolerance,
    rounding_error,
)
from pyro_structured.foundation.ops.freed_memory import keep_freed_memory

# More windows would take longer than a direct convolution.
MAX_WINDOWS = 256
# Products of numbers of variables and of largest counts up to which rows that fail the certificate without a tilt are
# left to a direct convolution, as this costs no more than windows.
DIRECT_WORK = 2**16
# Number of variables that are processed at once: as many as a CPU's cache holds, or as keep a device busy.
CHUNK_VARIABLES = 2**17
DEVICE_CHUNK_VARIABLES = 2**22


class CountSolution(NamedTuple):
    """Results for every row of a batch, with bounds on their errors.

    ``excess``, log Z less the weight of the heaviest vector, and ``excess_error`` have shape ``(rows,)``;
    ``marginal_logits`` and ``marginal_logits_error``, ``(rows, num_variables)``; ``log_posterior``, the
    log-probabilities of the total count, ``(rows, num_variables + 1)``. ``certified`` is False where an error bound
    exceeds the tolerance: those rows must be solved in another way. ``short`` says of which rows this costs no more
    than windows, so that these were not tried; both have shape ``(rows,)``.
    """

    excess: Tensor
    marginal_logits: Tensor
    log_posterior: Tensor
    excess_error: Tensor
    marginal_logits_error: Tensor
    certified: Tensor
    short: Tensor


def solve_count_potential(logits: Tensor, count_logits: Tensor, marginals: bool = True) -> CountSolution:
    r"""Sums :math:`\exp(\sum_d x_d y_d + f(\sum_d y_d))` over all binary vectors.

    First without a tilt; the rows that fail the certificate again, with tilts and windows around the posterior, unless
    they are so short that a direct convolution, which is left to the caller, costs no more.

    :param Tensor logits: Log-odds, shape ``(rows, num_variables)``, float64; infinite ones are clamps.
    :param Tensor count_logits: Log-potential of every count, shape ``(rows, num_variables + 1)``.
    :param bool marginals: Whether ``marginal_logits`` and their errors are wanted; they are zeros otherwise.
    :return: Results and error bounds. Cost :math:`O(D\log^2 D)` for every window.
    """
    keep_freed_memory()
    step = rows_at_once(logits)
    return _concatenate(
        [_solve_rows(*chunk, marginals) for chunk in zip(logits.split(step), count_logits.split(step), strict=True)]
    )


def rows_at_once(logits: Tensor, num_windows: int = 1) -> int:
    """Number of rows that are processed together."""
    return max(1, _chunk(logits) // max(1, logits.shape[1] * num_windows))


def _chunk(tensor: Tensor) -> int:
    return CHUNK_VARIABLES if tensor.device.type == "cpu" else DEVICE_CHUNK_VARIABLES


def _concatenate(parts: list[CountSolution]) -> CountSolution:
    return parts[0] if len(parts) == 1 else CountSolution(*(torch.cat(p) for p in zip(*parts, strict=True)))


def _solve_rows(logits: Tensor, count_logits: Tensor, marginals: bool) -> CountSolution:
    (_, _, solution), *retries = attempts(logits, count_logits, marginals)
    for rows, _, retried in retries:
        solution = CountSolution(*(old.index_copy(0, rows, new) for old, new in zip(solution, retried, strict=True)))
    return solution


def attempts(logits: Tensor, count_logits: Tensor, marginals: bool) -> list[tuple[Tensor, Windows, CountSolution]]:
    """Solves all rows without a tilt, and those that fail the certificate with windows, where these cost less than a
    direct convolution.

    :return: For each attempt the indices of its rows, the windows that it used, and its solution.
    """
    num_counts = count_logits.shape[-1]
    count_logits = _without_impossible(logits, count_logits)
    # Counts above the largest possible one are not computed: this is the O(Dk) case of the paper.
    possible = (count_logits != -math.inf).any(0)
    limit = int((possible * torch.arange(num_counts, device=logits.device)).amax().clamp(min=1))
    count_logits = count_logits[:, : limit + 1]
    whole = Windows(logits.new_zeros(len(logits), 1), torch.zeros_like(count_logits, dtype=torch.long), None)
    first = _solve_windows(logits, count_logits, whole, marginals)
    is_short = logits.shape[1] * limit <= DIRECT_WORK
    first = first._replace(short=torch.full_like(first.certified, is_short))
    failed = (~first.certified).nonzero().squeeze(-1)
    results = [(torch.arange(len(logits), device=logits.device), whole, _pad(first, num_counts))]
    if len(failed) and not is_short:
        logits, count_logits = logits[failed], count_logits[failed]
        chosen = _choose_windows(logits, count_logits)
        second = _solve_windows(logits, count_logits, chosen, marginals)
        results.append((failed, chosen, _pad(second, num_counts)))
    return results


def solve_windows(logits: Tensor, count_logits: Tensor, windows: Windows) -> tuple[Tensor, Tensor]:
    """Marginal log-odds and probabilities of the counts, differentiable, under windows that were chosen before."""
    table = _without_impossible(logits, count_logits)[:, : windows.assignment.shape[-1]]
    solution = _pad(_solve_chunk(logits, table, windows, True), count_logits.shape[-1])
    return solution.marginal_logits, solution.log_posterior.exp()


def _without_impossible(logits: Tensor, count_logits: Tensor) -> Tensor:
    """The potentials, -inf at counts that the clamped variables exclude."""
    counts = torch.arange(count_logits.shape[-1], device=logits.device)
    lowest, highest = extreme_counts(logits).split(1, -1)
    return count_logits.masked_fill((counts < lowest) | (counts > highest), -math.inf)


def _choose_windows(logits: Tensor, count_logits: Tensor) -> Windows:
    counts = torch.arange(count_logits.shape[-1], device=logits.device)
    # No tilt brings an extreme count to the middle of the mass function; but only one vector has it.
    extreme = (counts == extreme_counts(logits).unsqueeze(-1)).any(1)
    tilts, index, guards = tilt_windows(logits, count_logits.masked_fill(extreme, -math.inf), MAX_WINDOWS)
    return Windows(tilts, index.masked_fill(extreme, EXTREME), guards)


def _pad(solution: CountSolution, num_counts: int) -> CountSolution:
    missing = num_counts - solution.log_posterior.shape[-1]
    if not missing:
        return solution
    padded = torch.nn.functional.pad(solution.log_posterior, (0, missing), value=-math.inf)
    return solution._replace(log_posterior=padded)


def _solve_windows(logits: Tensor, count_logits: Tensor, windows: Windows, marginals: bool) -> CountSolution:
    step = rows_at_once(logits, windows.tilts.shape[1])
    if step >= len(logits):
        return _solve_chunk(logits, count_logits, windows, marginals)
    parts = torch.arange(len(logits), device=logits.device).split(step)
    return _concatenate([_solve_chunk(logits[p], count_logits[p], windows.rows(p), marginals) for p in parts])


def _solve_chunk(logits: Tensor, count_logits: Tensor, windows: Windows, marginals: bool) -> CountSolution:
    sums = sum_windows(logits, count_logits, windows, marginals, _chunk(logits))
    clamped = logits.isinf()
    odds = sums.odds.masked_fill(clamped, 0.0)
    free = logits.detach().masked_fill(clamped, 0.0).abs()
    # Rarer values have no weight in double precision, and no error.
    size = free.clamp(max=LARGEST_EXPONENT).sum(-1)
    odds_error = sums.odds_error.masked_fill(clamped, 0.0).nan_to_num(nan=math.inf)
    certified = (
        (sums.mass_error <= log_partition_tolerance(torch.maximum(sums.log_partition.abs(), size)))
        & (odds_error.amax(-1) <= log_odds_tolerance(logits.shape[1]))
        & sums.log_partition.isfinite()
    )
    steepest, largest_count = (windows.tilts.abs() * _used(windows)).amax(-1), windows.assignment.shape[-1]
    rounding = rounding_error(size, logits.shape[1], steepest, largest_count, sums.log_partition)
    if windows.guards is not None:
        rounding = rounding + _extreme_rounding(logits, count_logits, sums.log_posterior)
    return CountSolution(
        sums.log_partition,
        torch.where(clamped, logits, odds),
        sums.log_posterior,
        sums.mass_error + rounding,
        odds_error + (2 * rounding.unsqueeze(-1) + UNIT_ROUNDOFF * (4 * free + 8 * odds.detach().abs())) * marginals,
        certified | (count_logits == -math.inf).all(-1),
        torch.zeros_like(certified),
    )


def _used(windows: Windows) -> Tensor:
    """Whether windows are responsible for any count, booleans of shape ``(rows, num_windows)``."""
    # Numbers, because CUDA devices do not reduce booleans.
    member = (windows.assignment >= 0).to(windows.tilts)
    used = torch.zeros_like(windows.tilts).scatter_reduce(1, windows.assignment.clamp(min=0), member, "amax")
    return used > 0


@torch.no_grad()
def _extreme_rounding(logits: Tensor, count_logits: Tensor, log_posterior: Tensor) -> Tensor:
    """Bound on the error of log Z by rounding of the two extreme vectors' weights, which are sums of logits."""
    cells = extreme_counts(logits).clamp(max=count_logits.shape[-1] - 1)
    sizes = torch.stack([heaviest(logits), heaviest(-logits)], -1) + count_logits.gather(-1, cells).abs()
    error = (32 * UNIT_ROUNDOFF * sizes).nan_to_num(posinf=0.0)
    return ((log_posterior.gather(-1, cells) + error).clamp(max=0.0).exp() * error).sum(-1)
