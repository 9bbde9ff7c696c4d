r"""One potential on the count of independent binary variables, by direct sums in linear space.

Messages are probability mass functions of counts, and what comes from outside are expected weights. Both are sums of
products of numbers that are not negative, whose relative errors are small whatever the numbers are; only what is
smaller than the smallest double is lost, and bounded, too. An exponential tilt, as in
:mod:`pyro_structured.counts.ops.count_windows`, moves the mean count to where counts are possible.
"""

__all__ = [
    "LARGEST_EXPONENT",
    "DirectCounts",
    "DirectDraws",
    "differentiable_posteriors",
    "direct_passes",
    "find_tilts",
    "is_compiled",
    "is_direct",
    "is_small",
    "is_whole",
    "largest_possible_count",
    "log_odds_tolerance",
    "log_partition_tolerance",
    "pull_back_directly",
    "rounding_error",
    "solve_directly",
]

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyro_structured.counts.ops.convolution_tree import UNDERFLOW, UNIT_ROUNDOFF
from pyro_structured.counts.ops.count_windows import cumulant, extreme_counts
from pyro_structured.foundation.ops.draws import draw
from pyro_structured.foundation.ops.freed_memory import keep_freed_memory
from pyro_structured.foundation.ops.log_space import safe_log
from pyro_structured.foundation.ops.optional_numba import compiled_function

# Largest certified errors that are accepted: of log Z in units of max(1, |log Z|, sum |x|), and of a log-odds. The
# bounds, not the errors, grow with the number of variables, so the second is relaxed beyond 2**16 of them.
LOG_PARTITION_TOLERANCE = 5e-13
# Largest relative error of Z, in any unit: the logarithm of a mass that is mostly lost is unknown.
LARGEST_SHARE = 1e-6
LARGEST_EXPONENT = 800.0
LOG_ODDS_TOLERANCE = 1e-9
RELAXED_SIZE = 2**16
# Products of numbers of variables and of counts, up to which direct sums are faster than transforms if nothing is cut
# off; and of these and rows, where sums are products of matrices.
WHOLE_WORK, WORK = 2**16, 2**18
# Numbers that are held at once for samples.
CHUNK_ELEMENTS = 2**22
# Steps of Newton's method for tilts, which need not be accurate.
TILT_STEPS = 3


class DirectCounts(NamedTuple):
    """Results for every row, with bounds on their errors.

    ``excess``, log Z less the weight of the heaviest vector, ``excess_error`` and ``certified``, whether bounds are
    within the tolerances, have shape ``(rows,)``; ``marginal_logits`` and ``marginal_logits_error``, ``(rows,
    num_variables)``; ``count_marginals``, the probabilities of the counts, ``(rows, num_variables + 1)``; ``tilts``, by
    which log-odds were shifted, ``(rows,)``.
    """

    excess: Tensor
    marginal_logits: Tensor
    count_marginals: Tensor
    excess_error: Tensor
    marginal_logits_error: Tensor
    certified: Tensor
    tilts: Tensor


def log_odds_tolerance(num_variables: int) -> float:
    """Largest certified error of a posterior log-odds that is accepted."""
    return LOG_ODDS_TOLERANCE * max(1.0, num_variables / RELAXED_SIZE)


def log_partition_tolerance(scale: Tensor) -> Tensor:
    """Largest certified errors of log Z that are accepted, which are relative errors of Z.

    :param Tensor scale: The larger one of |log Z| and sum |x|.
    """
    return (LOG_PARTITION_TOLERANCE * scale.clamp(min=1.0)).clamp(max=LARGEST_SHARE)


def is_direct(logits: Tensor, largest_count: int) -> bool:
    """Whether direct sums are the fastest way for rows of logits, shape ``(rows, num_variables)``."""
    return logits.shape[-1] > 0 and (is_compiled(logits) or is_small(logits, largest_count))


def is_small(logits: Tensor, largest_count: int) -> bool:
    """Whether direct sums as products of matrices are the fastest way for rows of logits, without compiled loops."""
    rows, num_variables = logits.shape
    return 0 < num_variables and max(rows, 1) * num_variables * min(largest_count, num_variables) <= WORK


def is_whole(num_variables: int, largest_count: int) -> bool:
    """Whether there are so few products that compiled loops leave out no count."""
    return num_variables * largest_count <= WHOLE_WORK


def largest_possible_count(count_logits: Tensor) -> int:
    """Largest count that is possible in any row, at least 1."""
    # Nearly always the last one is possible, somewhere.
    if count_logits.device.type == "cpu" and bool((count_logits[:, -1:] != -math.inf).any()):
        return max(count_logits.shape[-1] - 1, 1)
    possible = (count_logits != -math.inf).any(0).nonzero()
    return max(int(possible[-1]), 1) if len(possible) else 1


def is_compiled(tensor: Tensor) -> bool:
    """Whether compiled loops can be used for a tensor."""
    return tensor.device.type == "cpu" and compiled_function("counts.ops.compiled_counts", "direct_passes") is not None


def solve_directly(logits: Tensor, count_logits: Tensor, largest_count: int, marginals: bool = True) -> DirectCounts:
    r"""Sums :math:`\exp(\sum_d x_d y_d + f(\sum_d y_d))` over all binary vectors.

    :param Tensor logits: Log-odds, shape ``(rows, num_variables)``, float64; infinite ones are clamps.
    :param Tensor count_logits: Log-potential of every count, at most 0, shape ``(rows, num_variables + 1)``.
    :param int largest_count: Largest count that is possible in any row, at least 1.
    :param bool marginals: Whether ``marginal_logits`` and their errors are wanted; they are zeros otherwise.
    :return: Results. Cost O(DK) for largest count K.
    """
    keep_freed_memory()
    num_variables = logits.shape[-1]
    # Of convolutions, whose terms and whose parts' errors add up; of sigmoids; and of the sum over the counts.
    sum_error = UNIT_ROUNDOFF * (num_variables * (math.log2(num_variables) / 2 + 6) + 16)
    tilts = logits.new_zeros(len(logits))
    if not is_compiled(logits):
        if bool((count_logits == -math.inf).any()):
            tilts = find_tilts(logits, count_logits[:, : largest_count + 1])
        return _solve_by_products(logits, count_logits, tilts, largest_count, sum_error, marginals)
    make = torch.empty_like if marginals else torch.zeros_like
    found = DirectCounts(
        torch.empty_like(tilts),
        make(logits),
        torch.empty_like(count_logits),
        torch.empty_like(tilts),
        make(logits),
        torch.empty_like(tilts, dtype=torch.bool),
        tilts,
    )
    found.count_marginals[:, largest_count + 1 :] = 0.0
    solve = compiled_function("counts.ops.compiled_counts", "solve_directly")
    assert solve is not None
    solve(
        *(each.contiguous().numpy() for each in (logits, count_logits)),
        largest_count,
        sum_error,
        log_odds_tolerance(num_variables),
        not is_whole(num_variables, largest_count),
        marginals,
        *(each.numpy() for each in found),
    )
    return found


def _solve_by_products(
    logits: Tensor, count_logits: Tensor, tilts: Tensor, largest_count: int, sum_error: float, marginals: bool
) -> DirectCounts:
    num_variables = logits.shape[-1]
    sums = _sum_products(logits, count_logits, tilts, largest_count, marginals)
    mass, given_off, given_on = sums.mass, sums.given_off, sums.given_on
    excess = cumulant(logits, tilts) + (mass.log() + sums.peak).squeeze(-1)
    sizes = logits.abs().clamp(max=LARGEST_EXPONENT)
    clamped = logits.isinf()
    if bool(clamped.any()):
        sizes = sizes.masked_fill(clamped, 0.0)
    size = sizes.sum(-1)
    excess_error = sum_error + UNDERFLOW * (largest_count + 1) / mass.squeeze(-1)
    certified = (excess_error <= log_partition_tolerance(torch.maximum(excess.abs(), size))) & excess.isfinite()
    rounding = rounding_error(size, num_variables, tilts.abs(), largest_count, excess)
    certified = certified & (rounding <= LARGEST_SHARE)
    odds, odds_error = torch.zeros_like(logits), torch.zeros_like(logits)
    if marginals:
        odds = logits + tilts.unsqueeze(-1) + (given_on.log() - given_off.log())
        odds_error = 2 * sum_error + UNDERFLOW * (1 / given_on + 1 / given_off)
        odds, odds_error = torch.where(clamped, logits, odds), odds_error.masked_fill(clamped, 0.0)
        certified = certified & (odds_error.amax(-1) <= log_odds_tolerance(num_variables))
        own = UNIT_ROUNDOFF * (4 * sizes + 8 * odds.masked_fill(clamped, 0.0).abs())
        odds_error = odds_error + 2 * rounding.unsqueeze(-1) + own
    return DirectCounts(excess, odds, sums.counts, excess_error + rounding, odds_error, certified, tilts)


def differentiable_posteriors(
    logits: Tensor, count_logits: Tensor, tilts: Tensor, largest_count: int
) -> tuple[Tensor, Tensor]:
    """Marginal log-odds and probabilities of the counts, by products of matrices with derivatives of any order.

    :param Tensor tilts: Those that :func:`solve_directly` found for these rows, which it certified.
    """
    sums = _sum_products(logits, count_logits, tilts, largest_count, marginals=True)
    clamped = logits.isinf()
    # A variable that is clamped may have no weight at the other value.
    given_on, given_off = (each.masked_fill(clamped, 1.0) for each in (sums.given_on, sums.given_off))
    odds = logits + tilts.unsqueeze(-1) + (safe_log(given_on) - safe_log(given_off))
    return torch.where(clamped, logits, odds), sums.counts


def pull_back_directly(
    logits: Tensor,
    count_logits: Tensor,
    tilts: Tensor,
    odds: Tensor,
    grad_odds: Tensor,
    grad_counts: Tensor,
    largest_count: int,
) -> tuple[Tensor, Tensor]:
    """Products of cotangents with the derivatives of :func:`differentiable_posteriors`, in compiled loops, which have
    to be there.

    :param Tensor tilts: Those that :func:`solve_directly` found for these rows, and the marginal log-odds ``odds``;
        where they are not certified, or NaN, results have no meaning.
    :param Tensor grad_odds: Cotangents of the marginal log-odds; ``grad_counts``: of the probabilities of the counts.
    """
    found = torch.zeros_like(logits), torch.zeros_like(count_logits)
    pull_back = compiled_function("counts.ops.compiled_slopes", "pull_back_posteriors")
    assert pull_back is not None
    given = (logits, count_logits, tilts, odds, grad_odds, grad_counts)
    pull_back(*(each.contiguous().numpy() for each in given), largest_count, *(each.numpy() for each in found))
    return found


class _Sums(NamedTuple):
    """Sums over all vectors: of the weights of the counts, shape ``(rows, 1)``, relative to a peak; given a value of a
    variable, ``(rows, num_variables)``; and their shares, ``(rows, num_variables + 1)``.
    """

    mass: Tensor
    peak: Tensor
    given_off: Tensor
    given_on: Tensor
    counts: Tensor


def _sum_products(logits: Tensor, count_logits: Tensor, tilts: Tensor, largest_count: int, marginals: bool) -> _Sums:
    numbers = torch.arange(largest_count + 1, dtype=logits.dtype, device=logits.device)
    tilted = logits + tilts.unsqueeze(-1)
    tables = count_logits[:, : largest_count + 1] - tilts.unsqueeze(-1) * numbers
    peak = tables.detach().amax(-1, keepdim=True)
    peak = peak.masked_fill(peak == -math.inf, 0.0)
    weights = (tables - peak).exp()
    root, given_off, given_on = direct_passes(torch.sigmoid(tilted), torch.sigmoid(-tilted), weights, marginals)
    joint = root * weights
    mass = joint.sum(-1, keepdim=True)
    # Second derivatives of a quotient are divided by powers of the divisor.
    unit = mass.detach()
    shares = (joint / unit) / (mass / unit)
    counts = torch.nn.functional.pad(shares, (0, count_logits.shape[-1] - largest_count - 1))
    return _Sums(mass, peak, given_off, given_on, counts)


class DirectDraws:
    """Samples of rows with a single potential, in compiled loops, which have to be there.

    :param Tensor logits: Log-odds, shape ``(rows, num_variables)``.
    :param Tensor tilts: Those that :func:`solve_directly` found for these rows, all of them certified.
    :param Tensor counts: Its probabilities of the counts, shape ``(rows, num_variables + 1)``.
    :param int largest_count: Largest count that is possible in any row, at least 1.
    """

    possible = True

    def __init__(self, logits: Tensor, tilts: Tensor, counts: Tensor, largest_count: int) -> None:
        tilted = logits + tilts.unsqueeze(-1)
        self._probabilities = torch.sigmoid(tilted), torch.sigmoid(-tilted)
        self._counts, self._largest_count = counts, largest_count
        few = logits.numel() * (min(largest_count, logits.shape[1]).bit_length() + 1) <= CHUNK_ELEMENTS
        self._trees = self._upward(slice(None)) if few else None

    def __call__(self, num_samples: int) -> Tensor:
        """Zeros and ones of shape ``(num_samples, rows, num_variables)``."""
        rows, size = self._probabilities[0].shape
        samples = self._counts.new_empty(num_samples, rows, size)
        step = rows if self._trees is not None else max(1, CHUNK_ELEMENTS // (32 * size))
        split = compiled_function("counts.ops.compiled_counts", "split_counts")
        assert split is not None
        for first in range(0, rows, max(step, 1)):
            chunk = slice(first, first + step)
            trees = self._upward(chunk) if self._trees is None else self._trees
            for part in samples[:, chunk].split(max(1, CHUNK_ELEMENTS // max(1, step * size))):
                totals = draw(self._counts[chunk].expand(len(part), -1, -1))
                uniforms = torch.rand(*part.shape[:2], size - 1, dtype=part.dtype, device=part.device)
                split(*trees, self._largest_count, *(each.numpy() for each in (totals, uniforms, part)))
        return samples

    def _upward(self, chunk: slice) -> tuple[Any, ...]:
        """Messages of the trees of some rows, with the lowest counts and the numbers of counts of their nodes."""
        trees = compiled_function("counts.ops.compiled_counts", "count_trees")
        assert trees is not None
        on, off = (each[chunk].contiguous().numpy() for each in self._probabilities)
        found: tuple[Any, ...] = trees(on, off, self._largest_count, not is_whole(on.shape[1], self._largest_count))
        return found


def rounding_error(
    size: Tensor, num_variables: int, steepest: Tensor, largest_count: int, log_partition: Tensor
) -> Tensor:
    """Bound on the error of log Z by rounding of the tilted odds, of the tilted potential and of the logarithms.

    A relative error of the odds of one variable changes log Z, and a log-odds of another, by no more than itself. No
    convolution can reduce these errors: they are reported, but do not decide about the certificate.

    :param Tensor size: Sum of the sizes of the logits, shape ``(rows,)``.
    :param Tensor steepest: Size of the steepest tilt, shape ``(rows,)``.
    :param Tensor log_partition: Log Z, shape ``(rows,)``.
    """
    odds = size + num_variables * (1 + steepest)
    return UNIT_ROUNDOFF * (8 * odds + 8 * steepest * largest_count + 32 * abs(log_partition) + 512)


def find_tilts(logits: Tensor, count_logits: Tensor) -> Tensor:
    """Tilts under which the mean count is a possible one, shape ``(rows,)``; zeros where it is one without."""
    counts = torch.arange(count_logits.shape[-1], dtype=logits.dtype, device=logits.device)
    possible = count_logits != -math.inf
    least = counts.masked_fill(~possible, math.inf).amin(-1)
    most = counts.masked_fill(~possible, -math.inf).amax(-1)
    fewest, all_on = extreme_counts(logits).to(logits.dtype).unbind(-1)
    free = all_on - fewest
    # Of the variables that are not clamped.
    target = torch.minimum(torch.sigmoid(logits).sum(-1).clamp(min=least), most) - fewest
    tilt, clamped = logits.new_zeros(len(logits)), logits.isinf()
    # Means further from the ends than half a variable have tilts between these.
    reach = math.log(2 * logits.shape[-1])
    lowest = -logits.masked_fill(clamped, -math.inf).amax(-1) - reach
    highest = -logits.masked_fill(clamped, math.inf).amin(-1) + reach
    for _ in range(TILT_STEPS):
        probs = torch.sigmoid(logits + tilt.unsqueeze(-1))
        mean, variance = probs.sum(-1) - fewest, (probs * (1 - probs)).sum(-1)
        # Newton's method for the log-odds of the mean, which is a straight line if all variables are alike.
        gap = torch.logit(target / free) - torch.logit(mean / free)
        step = (gap * mean * (free - mean) / (free * variance)).nan_to_num(nan=0.0)
        # Where the variance is tiny, a step of Newton's method leads anywhere.
        tilt = torch.maximum(torch.minimum(tilt + step, highest), lowest)
    return tilt.masked_fill(clamped.all(-1) | (possible.sum(-1) > logits.shape[-1]), 0.0)


def direct_passes(on: Tensor, off: Tensor, weights: Tensor, marginals: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """Mass function of the total count, and its expected weight given that a variable is 0, or 1.

    Passes in a perfect binary tree, whose convolutions are products with matrices of shifted messages.

    :param Tensor on: Probabilities of 1, shape ``(rows, num_variables)``, float64.
    :param Tensor off: Probabilities of 0, of the same shape.
    :param Tensor weights: Weights of the counts, from 0 to 1, shape ``(rows, largest_count + 1)``, at least two; larger
        counts have weight 0.
    :param bool marginals: Whether expected weights are wanted; they are zeros otherwise.
    :return: Shapes ``(rows, largest_count + 1)``, ``(rows, num_variables)`` and ``(rows, num_variables)``.

    Example::

        >>> half = torch.full((1, 2), 0.5, dtype=torch.double)
        >>> direct_passes(half, half, torch.tensor([[0.0, 1.0, 0.0]]).double())[0].tolist()
        [[0.25, 0.5, 0.25]]
    """
    (rows, num_variables), num_counts = on.shape, weights.shape[-1]
    message = torch.stack([off, on], -1)
    missing = (1 << (num_variables - 1).bit_length()) - num_variables
    if missing:
        # Variables that are never on change no count.
        message = torch.cat([message, message.new_tensor([1.0, 0.0]).expand(rows, missing, 2)], 1)
    levels = [message]
    while message.shape[1] > 1:
        left, right = message[:, ::2], message[:, 1::2]
        width = message.shape[-1]
        padded = torch.nn.functional.pad(right, (width - 1, min(2 * width - 1, num_counts) - width))
        message = (padded.unfold(-1, width, 1) @ left.flip(-1).unsqueeze(-1)).squeeze(-1)
        levels.append(message)
    if not marginals:
        return message[:, 0], torch.zeros_like(on), torch.zeros_like(on)
    total = weights.unsqueeze(1)
    for children in reversed(levels[:-1]):
        width = children.shape[-1]
        total = torch.nn.functional.pad(total, (0, max(0, 2 * width - 1 - total.shape[-1])))
        siblings = children.unflatten(1, (-1, 2)).flip(2).mT
        total = (total.unfold(-1, width, 1) @ siblings).mT.flatten(1, 2)
    return levels[-1][:, 0], total[:, :num_variables, 0], total[:, :num_variables, 1]
