"""Probabilities of the number of successes in independent trials of different probabilities."""

__all__ = ["bulk_mass", "log_mass", "probs_to_logits"]

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pyro_structured.counts.ops import count_tree
from pyro_structured.counts.ops.certified_counts import infer_counts
from pyro_structured.counts.ops.convolution_tree import upward
from pyro_structured.counts.ops.count_forest import CountForest
from pyro_structured.counts.ops.count_potential import rows_at_once
from pyro_structured.counts.ops.count_windows import cumulant, tilt_windows
from pyro_structured.foundation.ops.differentiable_function import DifferentiableFunction
from pyro_structured.foundation.ops.graph_operator import GraphOperator
from pyro_structured.foundation.ops.optional_numba import compiled_function
from pyro_structured.foundation.ops.private_members import is_in_graph
from pyro_structured.foundation.ops.row_function import apply_rows, tangents_of

# Certified relative error of every probability; entries that miss it are convolved directly.
TOLERANCE = 5e-10
# Narrow windows, whose certified error is small; and the work up to which direct convolution is faster.
WINDOW_DROP = 4.0
DIRECT_TERMS = 2**21
CHUNK_VARIABLES = 2**20
# Number of variables up to which compiled loops over all counts are faster than windows.
COMPILED_VARIABLES = 2**17
# Probability of the other value that certainties have in derivatives with respect to probabilities; and log-odds that
# stand for certainties are so much larger than all others, but for numbers that would underflow.
OTHER_VALUE, MARGIN, LARGEST_LOGIT = 2.0**-100, 40.0, 700.0


def bulk_mass(logits: Tensor) -> Tensor:
    r"""Probabilities of all counts, with a small *absolute* error, below 1e-13.

    :param Tensor logits: Log-odds of the trials, shape ``(rows, num_variables)``, float64; infinite ones are
        certainties.
    :return: Shape ``(rows, num_variables + 1)``. Cost :math:`O(D \log^2 D)`.

    Example::

        >>> bulk_mass(torch.zeros(1, 2, dtype=torch.float64)).tolist()
        [[0.25, 0.5, 0.25]]
    """
    parts = logits.split(rows_at_once(logits))
    return torch.cat([upward(torch.sigmoid(chunk), torch.sigmoid(-chunk)).root for chunk in parts])


def probs_to_logits(probs: Tensor) -> Tensor:
    r"""Log-odds :math:`\log p - \log(1 - p)`, infinite for certainties.

    Together with :func:`log_mass`, derivatives with respect to probabilities of exactly 0 and 1 are right.

    Example::

        >>> probs_to_logits(torch.tensor([0.0, 0.5, 1.0]))
        tensor([-inf, 0., inf])
    """
    # Derivatives are taken where log_mass takes certainties to be.
    success, failure = (p + OTHER_VALUE * (p == 0) for p in (probs, 1 - probs))
    slope = success.log() - failure.log()
    # Forward derivatives do not stop at no_grad.
    fixed = probs.detach()
    exact = fixed.log() - torch.log1p(-fixed)
    return exact + (slope - slope.detach())


def log_mass(logits: Tensor) -> Tensor:
    r"""Log-probabilities of all counts, each with a small *relative* error of the probability, far tails included.

    :param Tensor logits: Log-odds of the trials, shape ``(rows, num_variables)``, float64; infinite ones are
        certainties.
    :return: Shape ``(rows, num_variables + 1)``; differentiable. Cost :math:`O(D^2)` in compiled loops, for up to
        2^17 variables where numba is installed; otherwise :math:`O(D^{3/2}\log^2 D)`: about :math:`\sqrt D / 2`
        exponential tilts cover all counts. Forward derivatives take :math:`O(D^2)`.

    Example::

        >>> log_mass(torch.tensor([[0.0, -math.inf]], dtype=torch.float64)).exp().tolist()
        [[0.5, 0.5, 0.0]]
    """
    if is_in_graph():
        return _log_mass_in_graph("", logits)[0]
    mass: Tensor = _LogMass.apply(logits)  # type: ignore[no-untyped-call]
    return mass


class _LogMass(DifferentiableFunction):
    """Differentiates through posteriors: the derivative of log P(count = k) is P(y_d = 1 | count = k) - P(y_d = 1)."""

    @staticmethod
    def forward(logits: Tensor) -> Tensor:
        step = max(1, CHUNK_VARIABLES // logits.shape[-1])
        return torch.cat([_log_mass(chunk) for chunk in logits.split(step)])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs, output)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        finite, scale = _without_certainties(ctx.saved_tensors[0])
        (derivative,) = apply_rows(partial(tangents_of, _direct_rows, 1), finite, scale * tangent)
        return derivative

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        logits, mass = ctx.saved_tensors
        logits, scale = _without_certainties(logits)
        # A probability near 1 is represented by its complement: differences do not cancel.
        side = torch.where(logits > 0, -1.0, 1.0).to(logits.dtype)
        result = -grad.sum(-1, keepdim=True) * torch.sigmoid(side * logits)
        forest = CountForest(logits.shape[-1])
        # A weighted sum of posteriors is the posterior under the weights as a potential; weights of either sign by
        # themselves.
        for sign in (1.0, -1.0):
            weight = (sign * grad).clamp(min=0.0).masked_fill(mass == -math.inf, 0.0)
            unused = weight == 0
            potential = weight.masked_fill(unused, 1.0).log() - mass.masked_fill(unused, 0.0)
            nothing = unused.all(-1, keepdim=True)
            potential = potential.masked_fill(unused & ~nothing, -math.inf)
            odds = infer_counts(logits, potential, forest).marginal_logits
            result = result + sign * weight.sum(-1, keepdim=True) * torch.sigmoid(side * odds)
        derivative: Tensor = scale * side * result
        return derivative

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int], logits: Tensor) -> tuple[Tensor, int]:
        rows = logits.movedim(in_dims[0], 0)
        return log_mass(rows.flatten(0, 1)).unflatten(0, rows.shape[:2]), 0


_log_mass_in_graph = GraphOperator(
    "log_mass",
    lambda _, logits: (log_mass(logits),),
    lambda _, logits: (logits.new_empty(logits.shape[0], logits.shape[1] + 1),),
)


def _log_mass(logits: Tensor) -> Tensor:
    rows, num_variables = logits.shape
    run = compiled_function("counts.ops.compiled_mass", "log_mass") if logits.device.type == "cpu" else None
    if run is not None and num_variables <= COMPILED_VARIABLES:
        result, solved = logits.new_full((rows, num_variables + 1), -math.inf), logits.new_zeros(rows)
        run(logits.contiguous().numpy(), result.numpy(), solved.numpy())
        left = (solved == 0).nonzero().squeeze(-1)
        if len(left):
            result[left] = _log_mass_by_windows(logits[left])
        return result
    return _log_mass_by_windows(logits)


def _log_mass_by_windows(logits: Tensor) -> Tensor:
    """Log-mass of rows without compiled loops."""
    rows, num_variables = logits.shape
    counts = torch.arange(num_variables + 1, dtype=logits.dtype, device=logits.device)
    certain = (logits == math.inf).sum(-1, keepdim=True)
    possible = (counts >= certain) & (counts <= num_variables - (logits == -math.inf).sum(-1, keepdim=True))
    free = cumulant(logits, logits.new_zeros(rows))
    if rows * num_variables**2 <= DIRECT_TERMS:
        return _direct_log_mass(logits, free).masked_fill(~possible, -math.inf)
    flat = torch.zeros_like(possible, dtype=logits.dtype).masked_fill(~possible, -math.inf)
    tilts, window, _ = tilt_windows(logits, flat, num_variables + 1, math.inf, WINDOW_DROP)
    result, error = torch.full_like(flat, -math.inf), torch.full_like(flat, math.inf)
    for index, tilt in enumerate(tilts.unbind(-1)):
        tilted = logits + tilt.unsqueeze(-1)
        tree = upward(torch.sigmoid(tilted), torch.sigmoid(-tilted))
        member = window == index
        untilted = (cumulant(logits, tilt) - free).unsqueeze(-1) - tilt.unsqueeze(-1) * counts
        result = torch.where(member, tree.root.log() + untilted, result)
        error = torch.where(member, tree.root_error / tree.root, error)
    failed = (possible & ~(error <= TOLERANCE)).any(-1).nonzero().squeeze(-1)
    if len(failed):
        result = result.index_copy(0, failed, _direct_log_mass(logits[failed], free[failed]))
    return result.masked_fill(~possible, -math.inf)


def _without_certainties(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Log-odds with large numbers in the place of infinite ones, which are small beside the odds of all others, and
    factors of derivatives with respect to these, as if the other value had the probability ``OTHER_VALUE``.
    """
    certain = logits.isinf()
    with torch.no_grad():
        largest = logits.masked_fill(certain, 0.0).abs().amax(-1, keepdim=True)
        level = (largest + MARGIN).clamp(min=-math.log(OTHER_VALUE)).clamp(max=LARGEST_LOGIT)
        scale = torch.where(certain, OTHER_VALUE * level.exp(), 1.0)
    return torch.where(certain, torch.where(logits > 0, level, -level), logits), scale


def _direct_rows(logits: Tensor) -> tuple[Tensor]:
    return (_direct_log_mass(logits, cumulant(logits, logits.new_zeros(len(logits)))),)


def _direct_log_mass(logits: Tensor, free: Tensor) -> Tensor:
    forest = CountForest(logits.shape[-1])
    potential = logits.new_zeros(logits.shape[0], forest.table_size)
    tree = forest.tree(potential)
    messages, _, log_scale = count_tree.upward(tree, logits, potential)
    return messages[:, tree.table_cells] + (log_scale - free).unsqueeze(-1)
