"""Partition functions and posteriors of cardinality potentials: exact, differentiable, batched, and certified."""

__all__ = [
    "Beliefs",
    "Certificate",
    "PrecisionWarning",
    "certify",
    "certify_centred",
    "infer_counts",
    "infer_excess",
    "log_partition",
]

import math
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyro_structured.counts.ops import count_tree
from pyro_structured.counts.ops.centred_counts import CentredCounts, centre_counts, has_large
from pyro_structured.counts.ops.count_potential import (
    attempts,
    solve_count_potential,
    solve_windows,
)
from pyro_structured.counts.ops.count_tree import UNIT_ROUNDOFF
from pyro_structured.counts.ops.coupled_counts import solve_coupled
from pyro_structured.counts.ops.coupled_forest import AnyForest, CoupledForest
from pyro_structured.counts.ops.direct_counts import (
    differentiable_posteriors,
    is_compiled,
    is_direct,
    is_small,
    is_whole,
    largest_possible_count,
    pull_back_directly,
    solve_directly,
)
from pyro_structured.counts.ops.forest_text import forest_of, forest_text
from pyro_structured.counts.ops.fourier_passes import is_fast
from pyro_structured.counts.ops.nested_counts import solve_nested_counts
from pyro_structured.foundation.ops.differentiable_function import DifferentiableFunction
from pyro_structured.foundation.ops.graph_operator import GraphOperator
from pyro_structured.foundation.ops.private_members import is_in_graph, is_transformed
from pyro_structured.foundation.ops.row_function import apply_rows, known_tangents, pull_back, tangents_of
from pyro_structured.foundation.ops.user_frame import frames_below_user
from pyro_structured.foundation.ops.vmap_rows import map_rows, merge_mapped

# Least certified errors that are warned of, unless a probability is as near to 0 or 1 as numbers can be.
LOG_PARTITION_LOST = 1e-6
LOG_ODDS_LOST = 1e-3
UNDERFLOW_EXPONENT = 745.0
_MESSAGES = (
    "the partition function is certified to no better than 1e-6, and with it log_prob and count_marginals",
    "a marginal log-odds is certified to no better than 1e-3",
)


class PrecisionWarning(UserWarning):
    """Log-potentials are so large, and cancel so badly, that probabilities have lost digits.

    The attribute ``certificate`` of the distribution tells the bounds on the errors. The warning is given on the CPU
    only, and not under ``torch.vmap`` or ``torch.compile``: there, only the certificate tells.

    Example::

        >>> issubclass(PrecisionWarning, UserWarning)
        True
    """


class Beliefs(NamedTuple):
    """Posterior quantities: ``log_partition`` of shape ``batch``, ``marginal_logits`` of shape ``batch +
    (num_variables,)`` and ``count_marginals``, the probabilities of all entries of the tables, of shape ``batch +
    (table_size,)``.
    """

    log_partition: Tensor
    marginal_logits: Tensor
    count_marginals: Tensor


class Certificate(NamedTuple):
    """Bounds on the errors of rounding, and the number of nodes that were convolved directly.

    ``log_partition_error`` (shape ``batch``) bounds the error of the log partition function; ``marginal_logits_error``
    (shape ``batch + (num_variables,)``), that of every posterior log-odds; ``num_fallback_nodes`` (shape ``batch``)
    counts the nodes of the tree that had to be convolved directly, in log space, because a fast convolution was not
    accurate enough; ``count_marginals_error`` (shape ``batch``) bounds the error of every probability of a count;
    ``excess_error`` (shape ``batch``), that of log Z less the weight of the heaviest vector and constants, on
    which probabilities depend. Every transform is taken to round as badly as it can (Higham 2002, Theorem 24.2), and
    different transforms to round independently of each other (Higham and Mary 2019).
    """

    log_partition_error: Tensor
    marginal_logits_error: Tensor
    num_fallback_nodes: Tensor
    count_marginals_error: Tensor
    excess_error: Tensor


class _Solution(NamedTuple):
    """Results for rows: the excess of log Z over the heaviest vector, posteriors, and bounds on their errors; and the
    tilts of rows that were solved directly, NaN in others.
    """

    excess: Tensor
    marginal_logits: Tensor
    count_marginals: Tensor
    excess_error: Tensor
    marginal_logits_error: Tensor
    count_marginals_error: Tensor
    num_fallback_nodes: Tensor
    tilts: Tensor

    def with_rows(self, rows: Tensor, other: "_Solution") -> "_Solution":
        """The results, with others for some rows."""
        return _Solution(*(old.index_copy(0, rows, new) for old, new in zip(self, other, strict=True)))

    @property
    def lost(self) -> Tensor:
        """Whether log Z, and whether a log-odds, lost digits, shape ``(rows, 2)``; certain values cannot lose any."""
        odds, error = self.marginal_logits, self.marginal_logits_error
        lost = torch.stack([self.excess_error > LOG_PARTITION_LOST, error.amax(-1) > LOG_ODDS_LOST], -1)
        if lost.device.type == "cpu" and not bool(lost.any()):
            return lost
        uncertain = (error > LOG_ODDS_LOST) & (odds.abs() - error < UNDERFLOW_EXPONENT)
        lost = torch.stack([lost[:, 0], uncertain.any(-1)], -1)
        return lost & (self.excess != -math.inf).unsqueeze(-1)


def log_partition(logits: Tensor, count_logits: Tensor, forest: AnyForest) -> Tensor:
    r"""Computes :math:`\log\sum_y \exp(\sum_d x_d y_d + \sum_s f_s(\sum_{d\in s} y_d))`.

    :param Tensor logits: Log-odds, shape ``batch + (num_variables,)``; an infinite one clamps its variable without a
        weight of its own.
    :param Tensor count_logits: Log-potentials of all tables, shape ``batch + (forest.table_size,)``; -inf is allowed.
    :param CountForest forest: The counts that the tables weigh.
    :return: Shape ``batch``, -inf where the support is empty. Differentiable; the first derivatives are the
        posterior probabilities, and where they are wanted too, :func:`infer_counts` needs one pass for both. Cost
        :math:`O(D\log^2 D)` for one potential, :math:`O(\sum_v n_{l(v)} n_{r(v)})` for nested ones, whatever the
        potentials are. A :class:`~pyro_structured.distributions.PrecisionWarning` says where these are so large that
        digits are lost.
    """
    centred = centre_counts(logits, count_logits, forest)
    return infer_excess(centred, forest, marginals=False)[0].log_partition + centred.offset


def infer_counts(logits: Tensor, count_logits: Tensor, forest: AnyForest) -> Beliefs:
    """Computes the log partition function and all posterior marginals; arguments as in :func:`log_partition`.

    :return: Differentiable results. In rows with an empty support, posteriors of free variables are NaN.
    """
    centred = centre_counts(logits, count_logits, forest)
    beliefs, _ = infer_excess(centred, forest)
    return beliefs._replace(log_partition=beliefs.log_partition + centred.offset)


def infer_excess(centred: CentredCounts, forest: AnyForest, marginals: bool = True) -> tuple[Beliefs, Tensor]:
    """Posterior quantities as of :func:`infer_counts`, but log Z less ``centred.offset``: a number of the size of
    log-probabilities, whose derivative along the logits is a variable's expected difference from the heaviest vector.

    :param bool marginals: Whether the posterior is wanted; without, it has no meaning.
    :return: These, and the tilts of rows that were solved directly, NaN in others, shape ``batch``: what
        :class:`~pyro_structured.counts.ops.count_sampling.CountDraws` needs to repeat no pass.
    """
    if is_in_graph():
        text = f"{marginals:d} {forest_text(forest)}"
        *found, tilts = map_rows(partial(_beliefs_in_graph, text), centred.logits, centred.tables)
        return Beliefs(*found), tilts
    *found, lost, tilts = map_rows(_CountInference.apply, centred.logits, centred.tables, forest, marginals)
    _warn_of_lost_digits(lost)
    return Beliefs(*found), tilts


def certify(logits: Tensor, count_logits: Tensor, forest: AnyForest) -> Certificate:
    """Bounds the errors of :func:`infer_counts`; arguments as in :func:`log_partition`."""
    return certify_centred(centre_counts(logits, count_logits, forest), forest)


def certify_centred(centred: CentredCounts, forest: AnyForest) -> Certificate:
    """Bounds the errors of :func:`infer_excess`, and of log Z."""
    with torch.no_grad():
        if is_in_graph():
            bounds = map_rows(partial(_bounds_in_graph, forest_text(forest)), centred.logits, centred.tables)
        else:
            bounds = map_rows(_bounds, centred.logits, centred.tables, forest)
        excess, odds, counts, nodes = bounds
        size = centred.terms.abs().sum(-1) + centred.weights.sum(-1)
        return Certificate(excess + 4 * UNIT_ROUNDOFF * size, odds, nodes, counts, excess)


def _bounds(logits: Tensor, count_logits: Tensor, forest: AnyForest) -> tuple[Tensor, ...]:
    solution = _solve(logits, count_logits, forest, errors=True)
    return (
        solution.excess_error,
        solution.marginal_logits_error,
        solution.count_marginals_error,
        solution.num_fallback_nodes,
    )


def _solve(
    logits: Tensor,
    count_logits: Tensor,
    forest: AnyForest,
    marginals: bool = True,
    errors: bool = False,
) -> _Solution:
    if not forest.is_single:
        return _solve_tree(logits, count_logits, forest, marginals, errors, fallback=False)
    largest = largest_possible_count(count_logits)
    if not is_direct(logits, largest):
        return _solve_by_windows(logits, count_logits, forest, marginals, errors)
    direct = solve_directly(logits, count_logits, largest, marginals)
    nodes = torch.zeros_like(direct.certified, dtype=torch.long)
    solution = _Solution(*direct[:5], 2 * direct.excess_error, nodes, direct.tilts)
    if bool(direct.certified.all()):
        return solution
    rows = (~direct.certified).nonzero().squeeze(-1)
    return solution.with_rows(rows, _solve_by_windows(logits[rows], count_logits[rows], forest, marginals, errors))


def _solve_by_windows(
    logits: Tensor, count_logits: Tensor, forest: AnyForest, marginals: bool, errors: bool
) -> _Solution:
    fast = solve_count_potential(logits, count_logits, marginals)
    solution = _Solution(
        fast.excess,
        fast.marginal_logits,
        fast.log_posterior.exp(),
        fast.excess_error,
        fast.marginal_logits_error,
        # Relative errors of a weight, and of the sum of weights.
        2 * fast.excess_error,
        torch.zeros_like(fast.certified, dtype=torch.long),
        torch.full_like(fast.excess, math.nan),
    )
    for fallback in (False, True):
        rows = (~fast.certified & (fast.short != fallback)).nonzero().squeeze(-1)
        if len(rows):
            slow = _solve_tree(logits[rows], count_logits[rows], forest, marginals, errors, fallback)
            solution = solution.with_rows(rows, slow)
    return solution


def _solve_tree(
    logits: Tensor, count_logits: Tensor, forest: AnyForest, marginals: bool, errors: bool, fallback: bool
) -> _Solution:
    # Ordinary numbers lose no digits in log space.
    large = not torch.is_grad_enabled() and (fallback or has_large(logits) or has_large(count_logits))
    if isinstance(forest, CoupledForest):
        coupled = solve_coupled(forest, logits, count_logits, marginals, errors or large)
        return _Solution(*coupled, torch.full_like(coupled[0], math.nan))
    tree = forest.tree(count_logits)
    if any(is_fast(tree, merge) for merge in tree.merges) and not fallback and not torch.is_grad_enabled():
        fast = solve_nested_counts(tree, logits, count_logits)
        return _Solution(
            fast.excess,
            fast.marginal_logits,
            fast.log_posterior.exp(),
            fast.excess_error,
            fast.marginal_logits_error,
            fast.count_marginals_error,
            fast.num_fallback_nodes,
            torch.full_like(fast.excess, math.nan),
        )
    errors = errors or large
    messages, potentials, log_scale = count_tree.upward(tree, logits, count_logits)
    excess = count_tree.root_log_partition(tree, messages, log_scale)
    marginal_logits, count_marginals = torch.zeros_like(logits), torch.zeros_like(count_logits)
    excess_error, logits_error = torch.zeros_like(excess), torch.zeros_like(logits)
    if marginals or errors:
        outside = count_tree.downward(tree, messages, potentials)
        marginal_logits, log_posterior = count_tree.posterior(tree, messages, outside)
        count_marginals = log_posterior[:, tree.table_cells].exp()
        if errors:
            excess_error, logits_error = count_tree.rounding_errors(tree, messages, count_logits, outside, log_scale)
    nodes = torch.full_like(excess, forest.num_variables - 1 if fallback else 0, dtype=torch.long)
    # As a log-odds, the logarithm of a probability of a count has the errors of the passes up and down.
    counts_error = logits_error.amin(-1)
    tilts = torch.full_like(excess, math.nan)
    return _Solution(excess, marginal_logits, count_marginals, excess_error, logits_error, counts_error, nodes, tilts)


class _CountInference(DifferentiableFunction):
    """Beliefs with explicit passes; only derivatives of the posteriors go through automatic differentiation."""

    @staticmethod
    def forward(logits: Tensor, count_logits: Tensor, forest: AnyForest, marginals: bool) -> tuple[Tensor, ...]:
        solution = _solve(logits, count_logits, forest, marginals)
        return solution.excess, solution.marginal_logits, solution.count_marginals, solution.lost, solution.tilts

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        logits, count_logits, ctx.forest, ctx.marginals = inputs
        ctx.save_for_backward(logits, count_logits, *output[:3], output[4])
        ctx.save_for_forward(logits, count_logits, *output[:3])
        ctx.mark_non_differentiable(*output[3:])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(
        ctx: Any, grad_excess: Tensor | None, grad_odds: Tensor | None, grad_counts: Tensor | None, *_: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, None, None]:
        *saved, tilts = ctx.saved_tensors
        grads = _gradients(
            tuple(saved),
            (grad_excess, grad_odds, grad_counts),
            None if ctx.marginals else lambda *inputs: _CountInference.apply(*inputs, ctx.forest, True),  # type: ignore[no-untyped-call]
            partial(apply_rows, partial(_pull_back_posteriors, ctx.forest), tilts, saved[3].detach()),
        )
        return *grads, None, None

    @staticmethod
    def jvp(ctx: Any, logits: Tensor | None, count_logits: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        inputs = ctx.saved_tensors[:3]
        tangents = known_tangents(inputs, (logits, count_logits, None))
        return *apply_rows(partial(_tangents, ctx.forest, ctx.marginals), *inputs, *tangents), None, None

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        logits: Tensor,
        count_logits: Tensor,
        forest: AnyForest,
        marginals: bool,
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        flat = merge_mapped(info.batch_size, in_dims, logits, count_logits)
        results = _CountInference.apply(*flat, forest, marginals)  # type: ignore[no-untyped-call]
        return tuple(r.unflatten(0, (info.batch_size, -1)) for r in results), (0,) * len(results)


def _gradients(
    saved: tuple[Tensor, ...],
    cotangents: tuple[Tensor | None, ...],
    infer: Callable[..., tuple[Tensor, ...]] | None,
    pull: Callable[..., tuple[Tensor, ...]],
) -> tuple[Tensor, Tensor]:
    """Cotangents of the parameters from those of the beliefs, ``None`` where these are zero.

    :param saved: The parameters and the beliefs.
    :param infer: Computes the beliefs where the saved posteriors have no meaning; else ``None``.
    :param pull: :func:`_pull_back_posteriors` of the parameters' forest and solution.
    """
    logits, count_logits, excess, odds, counts = saved
    grad_excess, grad_odds, grad_counts = cotangents
    grad_logits, grad_tables = torch.zeros_like(logits), torch.zeros_like(count_logits)
    if grad_excess is not None:
        weight = grad_excess.unsqueeze(-1)
        if infer is not None:
            _, odds, counts, *_ = infer(logits, count_logits)
        slope_logits, slope_tables = _slopes_of_excess(logits, excess, odds, counts)
        grad_logits, grad_tables = weight * slope_logits, weight * slope_tables
    if grad_odds is not None or grad_counts is not None:
        second = pull(
            logits,
            count_logits,
            excess,
            torch.zeros_like(logits) if grad_odds is None else grad_odds,
            torch.zeros_like(count_logits) if grad_counts is None else grad_counts,
        )
        grad_logits, grad_tables = grad_logits + second[0], grad_tables + second[1]
    return grad_logits, grad_tables


def _tangents(forest: AnyForest, marginals: bool, *tensors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Forward derivatives of the beliefs, from parameters, the excess, and tangents of all three."""
    logits, count_logits, excess, *tangents = tensors
    posteriors = _posteriors(forest, logits, count_logits, excess)
    slopes = _slopes_of_excess(logits, excess, *posteriors)
    along = (slopes[0] * tangents[0]).sum(-1) + (slopes[1] * tangents[1]).sum(-1)
    if not marginals:
        return along, torch.zeros_like(logits), torch.zeros_like(count_logits)
    odds, counts = tangents_of(partial(_posteriors, forest), 3, *tensors)
    return along, odds, counts


def _slopes_of_excess(logits: Tensor, excess: Tensor, odds: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Derivatives of log Z, less those of the weight of the heaviest vector."""
    side = torch.where(logits > 0, -1.0, 1.0).to(logits.dtype)
    empty = (excess == -math.inf).unsqueeze(-1)
    # An infinite logit is a clamp, not a number that could change; nor does an empty support.
    return (side * torch.sigmoid(side * odds)).masked_fill(logits.isinf() | empty, 0.0), counts.masked_fill(empty, 0.0)


def _pull_back_posteriors(forest: AnyForest, tilts: Tensor, odds: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Products of cotangents of the posteriors with their derivatives, a function of rows.

    :param Tensor tilts: Tilts of rows that were solved directly, NaN in others, and their marginal log-odds ``odds``.
    :param tensors: Parameters, the excess, and cotangents of marginal log-odds and of the probabilities of the counts.
    """
    logits, count_logits, _, grad_odds, grad_counts = tensors
    largest = largest_possible_count(count_logits)
    can_loop = forest.is_single and is_compiled(logits) and 0 < logits.shape[-1] and is_whole(logits.shape[-1], largest)
    # Only recorded operations have derivatives in their turn.
    if torch.is_grad_enabled() or not can_loop:
        return pull_back(partial(_posteriors, forest), tensors[:3], tensors[3:])[:2]
    found = pull_back_directly(logits, count_logits, tilts, odds, grad_odds, grad_counts, largest)
    rest = tilts.isnan().nonzero().squeeze(-1)
    if not len(rest):
        return found
    inputs, cotangents = (tuple(tensor[rest] for tensor in part) for part in (tensors[:3], tensors[3:]))
    others = pull_back(partial(_posteriors, forest), inputs, cotangents)
    return tuple(old.index_copy(0, rest, new) for old, new in zip(found, others[:2], strict=True))


def _posteriors(forest: AnyForest, logits: Tensor, count_logits: Tensor, excess: Tensor) -> tuple[Tensor, Tensor]:
    """Marginal log-odds and count probabilities, with all windows held constant; zeros in rows without support."""
    odds, counts = torch.zeros_like(logits), torch.zeros_like(count_logits)
    possible = excess != -math.inf
    rest = possible.nonzero().squeeze(-1)
    if forest.is_single and len(rest):
        largest = largest_possible_count(count_logits)
        if is_small(logits, largest):
            with torch.no_grad():
                direct = solve_directly(logits, count_logits, largest)
            done, rest = ((possible & (direct.certified == kind)).nonzero().squeeze(-1) for kind in (True, False))
            posteriors = differentiable_posteriors(logits[done], count_logits[done], direct.tilts[done], largest)
            odds, counts = odds.index_copy(0, done, posteriors[0]), counts.index_copy(0, done, posteriors[1])
    if forest.is_single and len(rest):
        unsolved = rest
        with torch.no_grad():
            tried = attempts(logits[rest], count_logits[rest], marginals=True)
        for places, windows, solution in tried:
            done = solution.certified.nonzero().squeeze(-1)
            rest = unsolved[places[~solution.certified]]
            if len(done):
                solved = unsolved[places[done]]
                posteriors = solve_windows(logits[solved], count_logits[solved], windows.rows(done))
                odds, counts = odds.index_copy(0, solved, posteriors[0]), counts.index_copy(0, solved, posteriors[1])
    if len(rest):
        slow = (
            _solve(logits[rest], count_logits[rest], forest)
            if isinstance(forest, CoupledForest)
            else _solve_tree(logits[rest], count_logits[rest], forest, marginals=True, errors=False, fallback=False)
        )
        odds = odds.index_copy(0, rest, slow.marginal_logits)
        counts = counts.index_copy(0, rest, slow.count_marginals)
    return odds, counts


def _run_in_graph(text: str, logits: Tensor, count_logits: Tensor) -> tuple[Tensor, ...]:
    marginals, plan = text.split()
    solution = _solve(logits, count_logits, forest_of(plan), marginals == "1")
    return *solution[:3], solution.tilts


def _empty_in_graph(text: str, logits: Tensor, count_logits: Tensor) -> tuple[Tensor, ...]:
    excess, posteriors = logits.new_empty(logits.shape[:1]), _empty_like(logits, count_logits)
    return excess, *posteriors, torch.empty_like(excess)


def _empty_like(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(tensor.new_empty(tensor.shape) for tensor in tensors)


def _pull_in_graph(
    text: str, inputs: tuple[Tensor, ...], results: tuple[Tensor, ...], cotangents: tuple[Tensor | None, ...]
) -> tuple[Tensor, ...]:
    marginals, plan = text.split()
    infer = None if marginals == "1" else partial(_beliefs_in_graph, f"1 {plan}")
    pull = partial(_slopes_in_graph, plan, results[3], results[1].detach())
    return _gradients((*inputs, *results[:3]), cotangents[:3], infer, pull)


_beliefs_in_graph = GraphOperator("count_beliefs", _run_in_graph, _empty_in_graph, _pull_in_graph)
_slopes_in_graph = GraphOperator(
    "count_slopes",
    lambda plan, *tensors: _pull_back_posteriors(forest_of(plan), *tensors),
    lambda plan, tilts, odds, logits, count_logits, *_: _empty_like(logits, count_logits),
)

_bounds_in_graph = GraphOperator(
    "count_bounds",
    lambda plan, logits, count_logits: _bounds(logits, count_logits, forest_of(plan)),
    lambda plan, logits, count_logits: (
        logits.new_empty(logits.shape[:1]),
        logits.new_empty(logits.shape),
        logits.new_empty(logits.shape[:1]),
        logits.new_empty(logits.shape[:1], dtype=torch.long),
    ),
)


def _warn_of_lost_digits(lost: Tensor) -> None:
    """Warns, once for each place of a user's program, if digits were lost anywhere.

    :param Tensor lost: Booleans of shape ``(..., 2)``: whether the bounds on the errors of log Z, and of some log-odds,
        are too large.
    """
    if lost.device.type != "cpu" or torch.compiler.is_compiling() or is_transformed():
        return
    if not bool(lost.any()):
        return
    # The text never changes, so that the standard filter shows it once for each place.
    texts = " and ".join(text for text, bad in zip(_MESSAGES, lost.reshape(-1, 2).any(0).tolist(), strict=True) if bad)
    warnings.warn(
        f"logits, count_logits: log-potentials are so large that digits were lost; {texts}; `certificate` tells the "
        "bounds. Subtract large terms that cancel, such as a * c in a table against -a in logits, before small ones "
        "are added to them; then give float64, or scale the parameters down",
        PrecisionWarning,
        stacklevel=frames_below_user(),
    )
