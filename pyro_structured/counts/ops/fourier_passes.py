r"""Message passing for nested count potentials with fast transforms, and with bounds on their errors.

A convolution by fast Fourier transforms has an *absolute* error: entries far below the largest are lost. Which entries
matter is known only when the messages from outside have arrived. So every message travels with a vector of bounds on
its absolute errors, upward and downward, and the final bounds decide. Multiplying the weights of the counts k by
:math:`e^{-tk}` before a convolution, and by :math:`e^{tk}` after it, changes nothing but the errors: a node's tilt t is
chosen to minimise

.. math::
    \kappa(t) = \sum_i a_i e^{-ti} \sum_j b_j e^{-tj} \sum_k o_k e^{tk} \Big/ \sum_{i,j} a_i b_j o_{i+j},

the factor by which the rounding of its transform is magnified in the result, where a and b are the messages of the
children and o is that from outside. Nodes that no tilt helps are convolved directly.
"""

__all__ = [
    "FourierPasses",
    "NodePlan",
    "best_tilts",
    "convolve_bounded",
    "initial_plan",
    "is_fast",
    "node_errors",
    "run_passes",
    "smallest_magnification",
]

import math
from typing import NamedTuple

import torch
from scipy.fft import next_fast_len
from torch import Tensor

from pyro_structured.counts.ops.convolution_tree import UNIT_ROUNDOFF, fourier_error
from pyro_structured.counts.ops.count_tree import CountTree, Merge, finite_peak, gather, leaf_weights, set_roots
from pyro_structured.counts.ops.log_convolution import log_convolve, log_correlate

# Narrower messages are convolved directly: that is as fast, and has no absolute errors. Among very many variables,
# whose bounds add up, more of them are.
FOURIER_WIDTH = 200
MANY_VARIABLES, WIDER = 2**15, 5
# A bound may exceed the value that it belongs to by this much before it stops growing.
_LARGEST_BOUND = 50.0


class NodePlan(NamedTuple):
    """Tilts of the nodes of one merge, and exceptions that are convolved directly; both of shape ``(rows, nodes)``."""

    tilt: Tensor
    direct: Tensor


class FourierPasses(NamedTuple):
    """Messages and logarithms of the bounds on their absolute errors, all of shape ``(rows, num_cells + 2)``.

    ``rounding`` holds, for every merge, the contributions of its transforms to the errors of a node, of its left and of
    its right child: logarithms at the count 0 (at others they are tilted like the node), three tensors
    of shape ``(rows, nodes)``.
    """

    messages: Tensor
    message_errors: Tensor
    outside: Tensor
    outside_errors: Tensor
    potentials: Tensor
    log_scale: Tensor
    rounding: list[tuple[Tensor, ...]]

    def select(self, rows: Tensor) -> "FourierPasses":
        """Passes of some of the rows."""
        rounding = [tuple(constant[rows] for constant in constants) for constants in self.rounding]
        return FourierPasses(
            self.messages[rows],
            self.message_errors[rows],
            self.outside[rows],
            self.outside_errors[rows],
            self.potentials[rows],
            self.log_scale[rows],
            rounding,
        )


def is_fast(tree: CountTree, merge: Merge) -> bool:
    """Whether the messages of a merge are long enough for transforms."""
    shortest = FOURIER_WIDTH * (WIDER if tree.num_variables > MANY_VARIABLES else 1)
    return min(merge.left.shape[1], merge.right.shape[1]) >= shortest


def initial_plan(tree: CountTree, logits: Tensor) -> list[NodePlan | None]:
    """Plans without tilts and exceptions; ``None`` for merges of short messages."""
    shape = logits.shape[0]
    return [
        NodePlan(logits.new_zeros(shape, m.nodes), torch.zeros(shape, m.nodes, dtype=torch.bool, device=logits.device))
        if is_fast(tree, m)
        else None
        for m in tree.merges
    ]


class _Transforms(NamedTuple):
    """Messages divided by their tilted peak, and bounds on the errors, in linear space and as spectra."""

    peak: Tensor
    norm: Tensor
    error_norm: Tensor
    spectrum: Tensor
    error_spectrum: Tensor


def _transform(message: Tensor, error: Tensor, tilt: Tensor, points: int) -> _Transforms:
    counts = torch.arange(message.shape[-1], dtype=message.dtype, device=message.device)
    slope = tilt.unsqueeze(-1) * counts
    tilted = message - slope
    peak = finite_peak(tilted)
    linear = (tilted - peak).exp()
    bound = (error - slope - peak).clamp(max=_LARGEST_BOUND).exp()
    norms = (torch.linalg.vector_norm(x, dim=-1, keepdim=True) for x in (linear, bound))
    spectra = (torch.fft.rfft(x, n=points) for x in (linear, bound))
    return _Transforms(peak, *norms, *spectra)


def _combine(
    a: _Transforms, b: _Transforms, width: int, points: int, tilt: Tensor, correlate: bool
) -> tuple[Tensor, Tensor, Tensor]:
    b_spectrum, b_error = (b.spectrum.conj(), b.error_spectrum.conj()) if correlate else (b.spectrum, b.error_spectrum)
    value = torch.fft.irfft(a.spectrum * b_spectrum, n=points)[..., :width]
    error = torch.fft.irfft(a.error_spectrum * (b_spectrum + b_error) + a.spectrum * b_error, n=points)[..., :width]
    # Three transforms round, and the exponentials before them; of the bounds' own rounding likewise.
    rounding = 3 * fourier_error(points) + 4 * UNIT_ROUNDOFF
    new = rounding * (a.norm * b.norm + a.error_norm * (b.norm + b.error_norm) + a.norm * b.error_norm)
    counts = torch.arange(width, dtype=value.dtype, device=value.device)
    slope = tilt.unsqueeze(-1) * counts + (a.peak + b.peak)
    constant = (new.log() + a.peak + b.peak).squeeze(-1)
    return value.clamp(min=0.0).log() + slope, (error.clamp(min=0.0) + new).log() + slope, constant


def convolve_bounded(
    left: Tensor, right: Tensor, left_error: Tensor, right_error: Tensor, plan: NodePlan | None, correlate: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Convolves messages, or correlates totals with messages.

    :param Tensor left: Messages, or totals, shape ``(rows, nodes, width)``.
    :param Tensor right: The other messages.
    :param Tensor left_error: Logarithms of bounds on the absolute errors.
    :param Tensor right_error: The same for the others.
    :param plan: Tilts and exceptions; ``None``: no transforms.
    :return: The result, the bound on its error, and the transforms' contribution to the bound at the count 0.
    """
    if plan is None:
        none = torch.full_like(left[..., 0], -math.inf)
        return *_direct(left, right, left_error, right_error, correlate), none
    width = left.shape[-1] - right.shape[-1] + 1 if correlate else left.shape[-1] + right.shape[-1] - 1
    points = next_fast_len(left.shape[-1] if correlate else width, real=True)
    tilts = (-plan.tilt, plan.tilt, -plan.tilt) if correlate else (plan.tilt, plan.tilt, plan.tilt)
    value, error, constant = _combine(
        _transform(left, left_error, tilts[0], points),
        _transform(right, right_error, tilts[1], points),
        width,
        points,
        tilts[2],
        correlate,
    )
    rows, nodes = plan.direct.nonzero(as_tuple=True)
    if len(rows):
        a, b, c, d = (x[rows, nodes] for x in (left, right, left_error, right_error))
        exact_value, exact_error = _direct(a, b, c, d, correlate)
        value, error = value.index_put((rows, nodes), exact_value), error.index_put((rows, nodes), exact_error)
    return value, error, constant.masked_fill(plan.direct, -math.inf)


def _direct(
    left: Tensor, right: Tensor, left_error: Tensor, right_error: Tensor, correlate: bool
) -> tuple[Tensor, Tensor]:
    combine = log_correlate if correlate else log_convolve
    value = combine(left, right)
    error = torch.full_like(value, -math.inf)
    if bool((left_error > -math.inf).any()):
        error = combine(left_error, torch.logaddexp(right, right_error))
    if bool((right_error > -math.inf).any()):
        error = torch.logaddexp(error, combine(left, right_error))
    return value, error


def run_passes(tree: CountTree, logits: Tensor, count_logits: Tensor, plans: list[NodePlan | None]) -> FourierPasses:
    r"""Passes messages to the roots and back.

    :param CountTree tree: The schedule.
    :param Tensor logits: Log-odds, shape ``(rows, num_variables)``, float64.
    :param Tensor count_logits: Log-potentials, shape ``(rows, table_size)``.
    :param plans: For every merge its tilts and exceptions, ``None`` for short messages.
    :return: Messages and bounds. Cost :math:`O(D \log^2 D)` for a balanced tree without exceptions.
    """
    rows = logits.shape[0]
    potentials = logits.new_zeros(rows, tree.num_cells + 2).index_add(1, tree.table_cells, count_logits)
    messages, errors = torch.full_like(potentials, -math.inf), torch.full_like(potentials, -math.inf)
    leaves = slice(0, 2 * tree.num_variables)
    messages[:, leaves] = leaf_weights(logits) + potentials[:, leaves]
    log_scale = potentials[:, -1]
    rounding: list[tuple[Tensor, ...]] = []
    for merge, plan in zip(tree.merges, plans, strict=True):
        left, right = gather(messages, merge.left), gather(messages, merge.right)
        left_error, right_error = gather(errors, merge.left), gather(errors, merge.right)
        merged, error, constant = convolve_bounded(left, right, left_error, right_error, plan)
        here = slice(merge.start, merge.stop)
        potential = potentials[:, here].view(rows, merge.nodes, merge.width)
        merged = merged[..., : merge.width] + potential
        peak = finite_peak(merged)
        messages[:, here] = (merged - peak).flatten(1)
        errors[:, here] = (error[..., : merge.width] + potential - peak).flatten(1)
        rounding.append((constant - peak.squeeze(-1),))
        log_scale = log_scale + peak.sum((1, 2))
    outside, outside_errors = set_roots(tree, messages), torch.full_like(messages, -math.inf)
    for index in reversed(range(len(plans))):
        down = _pass_down(tree.merges[index], plans[index], messages, errors, outside, outside_errors, potentials)
        rounding[index] += down
    return FourierPasses(messages, errors, outside, outside_errors, potentials, log_scale, rounding)


def _pass_down(
    merge: Merge,
    plan: NodePlan | None,
    messages: Tensor,
    errors: Tensor,
    outside: Tensor,
    outside_errors: Tensor,
    potentials: Tensor,
) -> tuple[Tensor, ...]:
    here = slice(merge.start, merge.stop)
    shape = (messages.shape[0], merge.nodes, merge.width)
    missing = merge.left.shape[1] + merge.right.shape[1] - 1 - merge.width
    total, total_error = (
        torch.nn.functional.pad((x[:, here] + potentials[:, here]).view(shape), (0, missing), value=-math.inf)
        for x in (outside, outside_errors)
    )
    constants = []
    for target, sibling in ((merge.left, merge.right), (merge.right, merge.left)):
        value, error, constant = convolve_bounded(
            total, gather(messages, sibling), total_error, gather(errors, sibling), plan, correlate=True
        )
        peak = finite_peak(value)
        outside[:, target.view(-1)] = (value - peak).flatten(1)
        outside_errors[:, target.view(-1)] = (error - peak).flatten(1)
        constants.append(constant - peak.squeeze(-1))
    return tuple(constants)


def node_errors(tree: CountTree, passes: FourierPasses, plans: list[NodePlan | None]) -> list[Tensor | None]:
    """Largest relative errors of Z that the transforms of each node may have caused; shape ``(rows,
    nodes)``.
    """
    result: list[Tensor | None] = []
    for merge, plan, rounding in zip(tree.merges, plans, passes.rounding, strict=True):
        if plan is None:
            result.append(None)
            continue
        here = slice(merge.start, merge.stop)
        shape = (*plan.tilt.shape, merge.width)
        inside = (passes.potentials[:, here] + passes.outside[:, here]).view(shape)
        parts = [_share(rounding[0], plan.tilt, inside, (passes.messages + passes.outside)[:, here].view(shape))]
        for constant, cells in zip(rounding[1:], (merge.left, merge.right), strict=True):
            message, beyond = gather(passes.messages, cells), gather(passes.outside, cells)
            parts.append(_share(constant, -plan.tilt, message, message + beyond))
        result.append(torch.stack(parts).amax(0))
    return result


def _share(constant: Tensor, tilt: Tensor, other: Tensor, joint: Tensor) -> Tensor:
    counts = torch.arange(other.shape[-1], dtype=other.dtype, device=other.device)
    own = constant.unsqueeze(-1) + tilt.unsqueeze(-1) * counts + other
    return (torch.logsumexp(own, -1) - torch.logsumexp(joint, -1)).nan_to_num(nan=math.inf).exp()


def best_tilts(tree: CountTree, passes: FourierPasses, plans: list[NodePlan | None]) -> list[NodePlan | None]:
    """Plans with the tilts that minimise kappa, with the upper bounds of the messages in place of these."""
    inside = torch.logaddexp(passes.messages, passes.message_errors)
    beyond = torch.logaddexp(passes.outside, passes.outside_errors) + passes.potentials
    result: list[NodePlan | None] = []
    for merge, plan in zip(tree.merges, plans, strict=True):
        if plan is None:
            result.append(None)
            continue
        total = beyond[:, merge.start : merge.stop].view(*plan.tilt.shape, merge.width)
        result.append(
            plan._replace(tilt=smallest_magnification(gather(inside, merge.left), gather(inside, merge.right), total))
        )
    return result


def smallest_magnification(left: Tensor, right: Tensor, total: Tensor) -> Tensor:
    """Tilts that minimise kappa, whose logarithm is convex, shape ``(rows, nodes)``.

    :param Tensor left: Messages of the left children, shape ``(rows, nodes, width)``.
    :param Tensor right: Those of the right ones.
    :param Tensor total: Those from outside.
    """
    counts = torch.arange(total.shape[-1], dtype=total.dtype, device=total.device)

    def mean(message: Tensor, tilt: Tensor) -> Tensor:
        k = counts[: message.shape[-1]]
        weights = torch.softmax(message - tilt.unsqueeze(-1) * k, -1)
        return (weights.nan_to_num(nan=0.0) * k).sum(-1)

    low, high = torch.full_like(total[..., 0], -200.0), torch.full_like(total[..., 0], 200.0)
    for _ in range(40):
        tilt = 0.5 * (low + high)
        too_small = mean(left, tilt) + mean(right, tilt) > mean(total, -tilt)
        low, high = torch.where(too_small, tilt, low), torch.where(too_small, high, tilt)
    return 0.5 * (low + high)
