"""Partition functions and posteriors of cardinality potentials: exact, differentiable, batched, and certified."""

__all__ = [
    "EMPTY_SUPPORT",
    "Beliefs",
    "Certificate",
    "certify",
    "infer_counts",
    "log_partition",
    "require",
    "require_support",
]

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyro_structured.ops import count_tree
from pyro_structured.ops.anywhere import anywhere
from pyro_structured.ops.count_forest import CountForest
from pyro_structured.ops.count_potential import attempts, solve_count_potential, solve_windows
from pyro_structured.ops.fourier_passes import is_fast
from pyro_structured.ops.nested_counts import solve_nested_counts
from pyro_structured.ops.rows import map_rows, merge_mapped, named_rows

EMPTY_SUPPORT = (
    "count_logits: expected at least one vector of positive probability in every batch element, but the support is "
    "empty"
)


class Beliefs(NamedTuple):
    """Posterior quantities: ``log_partition`` of shape ``batch``, ``marginal_logits`` of shape ``batch +
    (num_variables,)`` and ``count_marginals``, the probabilities of all entries of the tables, of shape ``batch +
    (table_size,)``.
    """

    log_partition: Tensor
    marginal_logits: Tensor
    count_marginals: Tensor


class Certificate(NamedTuple):
    """Bounds on the errors of rounding, and how the results were reached.

    ``log_partition_error`` (shape ``batch``) bounds the error of the log partition function; ``marginal_logits_error``
    (shape ``batch + (num_variables,)``), that of every posterior log-odds; ``num_fallback_nodes`` (shape ``batch``)
    counts the nodes of the tree that had to be convolved directly, in log space, because a fast convolution was not
    accurate enough. Every transform is taken to round as badly as it can (Higham 2002, Theorem 24.2), and different
    transforms to round independently of each other (Higham and Mary 2019).
    """

    log_partition_error: Tensor
    marginal_logits_error: Tensor
    num_fallback_nodes: Tensor


class _Solution(NamedTuple):
    beliefs: Beliefs
    certificate: Certificate


def log_partition(logits: Tensor, count_logits: Tensor, forest: CountForest) -> Tensor:
    r"""Computes :math:`\log\sum_y \exp(\sum_d x_d y_d + \sum_s f_s(\sum_{d\in s} y_d))`.

    :param Tensor logits: Log-odds, shape ``batch + (num_variables,)``; an infinite one clamps its variable without a
        weight of its own.
    :param Tensor count_logits: Log-potentials of all tables, shape ``batch + (forest.table_size,)``; -inf is allowed.
    :param CountForest forest: Which counts the tables weigh.
    :return: Shape ``batch``, -inf where the support is empty. Differentiable twice; the first derivatives are the
        posterior probabilities, and where they are wanted too, :func:`infer_counts` needs one pass for both. Cost
        :math:`O(D\log^2 D)` for one potential, :math:`O(\sum_v n_{l(v)} n_{r(v)})` for nested ones, whatever the
        potentials are.
    """
    return map_rows(_CountInference.apply, logits.double(), count_logits.double(), forest, False)[0]


def infer_counts(logits: Tensor, count_logits: Tensor, forest: CountForest) -> Beliefs:
    """Computes the log partition function and all posterior marginals; arguments as in :func:`log_partition`.

    :return: Differentiable results. In rows with an empty support, posteriors of free variables are NaN.
    """
    return Beliefs(*map_rows(_CountInference.apply, logits.double(), count_logits.double(), forest, True))


def certify(logits: Tensor, count_logits: Tensor, forest: CountForest) -> Certificate:
    """Bounds the errors of :func:`infer_counts`; arguments as in :func:`log_partition`."""
    with torch.no_grad():
        return Certificate(*map_rows(_certificate, logits.double(), count_logits.double(), forest))


def _certificate(logits: Tensor, count_logits: Tensor, forest: CountForest) -> Certificate:
    return _solve(logits, count_logits, forest, errors=True).certificate


def _solve(
    logits: Tensor, count_logits: Tensor, forest: CountForest, marginals: bool = True, errors: bool = False
) -> _Solution:
    if not forest.is_single:
        return _solve_tree(logits, count_logits, forest, marginals, errors, fallback=False)
    fast = solve_count_potential(logits, count_logits, marginals)
    beliefs = Beliefs(fast.log_partition, fast.marginal_logits, fast.log_posterior.exp())
    certificate = Certificate(
        fast.log_partition_error, fast.marginal_logits_error, torch.zeros_like(fast.certified, dtype=torch.long)
    )
    rows = (~fast.certified).nonzero().squeeze(-1)
    if not len(rows):
        return _Solution(beliefs, certificate)
    slow = _solve_tree(logits[rows], count_logits[rows], forest, marginals, errors, fallback=True)
    return _Solution(
        Beliefs(*(old.index_copy(0, rows, new) for old, new in zip(beliefs, slow.beliefs, strict=True))),
        Certificate(*(old.index_copy(0, rows, new) for old, new in zip(certificate, slow.certificate, strict=True))),
    )


def _solve_tree(
    logits: Tensor, count_logits: Tensor, forest: CountForest, marginals: bool, errors: bool, fallback: bool
) -> _Solution:
    tree = forest.tree(count_logits)
    if any(is_fast(tree, merge) for merge in tree.merges) and not fallback and not torch.is_grad_enabled():
        fast = solve_nested_counts(tree, logits, count_logits)
        return _Solution(
            Beliefs(fast.log_partition, fast.marginal_logits, fast.log_posterior.exp()),
            Certificate(fast.log_partition_error, fast.marginal_logits_error, fast.num_fallback_nodes),
        )
    messages, potentials, log_scale = count_tree.upward(tree, logits, count_logits)
    log_z = count_tree.root_log_partition(tree, messages, log_scale)
    marginal_logits, count_marginals = torch.zeros_like(logits), torch.zeros_like(count_logits)
    log_z_error, logits_error = torch.zeros_like(log_z), torch.zeros_like(logits)
    if marginals or errors:
        outside = count_tree.downward(tree, messages, potentials)
        marginal_logits, log_posterior = count_tree.posterior(tree, messages, outside)
        count_marginals = log_posterior[:, tree.table_cells].exp()
        if errors:
            log_z_error, logits_error = count_tree.rounding_errors(tree, messages, potentials, outside, log_scale)
    nodes = torch.full_like(log_z, forest.num_variables - 1 if fallback else 0, dtype=torch.long)
    return _Solution(Beliefs(log_z, marginal_logits, count_marginals), Certificate(log_z_error, logits_error, nodes))


def require(bad: Tensor, message: str) -> None:
    """Raises a ValueError where a condition holds anywhere; works under ``torch.vmap``, too."""
    if anywhere(bad):
        raise ValueError(message)


def require_support(log_partition: Tensor, message: str = EMPTY_SUPPORT) -> Tensor:
    """Passes a log partition function on, or raises a ValueError that names the rows where it is -inf."""
    impossible = log_partition == -torch.inf
    if anywhere(impossible):
        raise ValueError(message + named_rows(impossible))
    return log_partition


class _CountInference(torch.autograd.Function):
    """Beliefs with explicit passes; only derivatives of the posteriors go through automatic differentiation."""

    @staticmethod
    def forward(
        logits: Tensor, count_logits: Tensor, forest: CountForest, marginals: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        return _solve(logits, count_logits, forest, marginals).beliefs

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        logits, count_logits, ctx.forest, ctx.marginals = inputs
        ctx.save_for_backward(logits, count_logits, *output)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(
        ctx: Any, grad_log_z: Tensor | None, grad_odds: Tensor | None, grad_counts: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, None, None]:
        logits, count_logits, log_z, marginal_logits, count_marginals = ctx.saved_tensors
        if not ctx.marginals:
            _, marginal_logits, count_marginals = infer_counts(logits, count_logits, ctx.forest)
        grad_logits, grad_tables = torch.zeros_like(logits), torch.zeros_like(count_logits)
        if grad_log_z is not None:
            weight = grad_log_z.unsqueeze(-1)
            empty = (log_z == -math.inf).unsqueeze(-1)
            # An infinite logit is a clamp, not a number that could change; nor does an empty support.
            grad_logits = (weight * torch.sigmoid(marginal_logits)).masked_fill(logits.isinf() | empty, 0.0)
            grad_tables = (weight * count_marginals).masked_fill(empty, 0.0)
        if grad_odds is not None or grad_counts is not None:
            second = _PosteriorPullback.apply(  # type: ignore[no-untyped-call]
                logits,
                count_logits,
                torch.zeros_like(logits) if grad_odds is None else grad_odds,
                torch.zeros_like(count_logits) if grad_counts is None else grad_counts,
                log_z,
                ctx.forest,
            )
            grad_logits, grad_tables = grad_logits + second[0], grad_tables + second[1]
        return grad_logits, grad_tables, None, None

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        logits: Tensor,
        count_logits: Tensor,
        forest: CountForest,
        marginals: bool,
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        flat = merge_mapped(info.batch_size, in_dims, logits, count_logits)
        results = _CountInference.apply(*flat, forest, marginals)  # type: ignore[no-untyped-call]
        return tuple(r.unflatten(0, (info.batch_size, -1)) for r in results), (0, 0, 0)


class _PosteriorPullback(torch.autograd.Function):
    """Derivatives of the posteriors, as a function of its own so that function transforms nest."""

    @staticmethod
    def forward(
        logits: Tensor,
        count_logits: Tensor,
        grad_odds: Tensor,
        grad_counts: Tensor,
        log_z: Tensor,
        forest: CountForest,
    ) -> tuple[Tensor, ...]:
        return _pull_back((logits, count_logits), (grad_odds, grad_counts), log_z, forest)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        *tensors, ctx.forest = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, log_z = ctx.saved_tensors
        with torch.enable_grad():
            x, f, a, b = inputs = [tensor.detach().requires_grad_() for tensor in tensors]
            outputs = _pull_back((x, f), (a, b), log_z, ctx.forest, create_graph=True)
            found = _gradients(outputs, inputs, grads)
        return *found, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        *tensors, forest = inputs
        results = _PosteriorPullback.apply(*merge_mapped(info.batch_size, in_dims, *tensors), forest)  # type: ignore[no-untyped-call]
        return tuple(r.unflatten(0, (info.batch_size, -1)) for r in results), (0, 0)


def _pull_back(
    parameters: tuple[Tensor, Tensor],
    cotangents: tuple[Tensor, Tensor],
    log_z: Tensor,
    forest: CountForest,
    create_graph: bool = False,
) -> tuple[Tensor, ...]:
    """Pulls cotangents of the posteriors back to the parameters, by automatic differentiation of the passes; rows with
    an empty support get zeros.
    """
    possible = (log_z != -math.inf).nonzero().squeeze(-1)
    outputs: list[Tensor] = []
    weights: list[Tensor] = []
    with torch.enable_grad():
        if not create_graph:
            parameters = (parameters[0].detach().requires_grad_(), parameters[1].detach().requires_grad_())
        for rows, posteriors in _differentiable_posteriors(parameters[0][possible], parameters[1][possible], forest):
            outputs += posteriors
            weights += [cotangent[possible[rows]] for cotangent in cotangents]
        if not outputs:
            return tuple(torch.zeros_like(parameter) for parameter in parameters)
        return _gradients(outputs, parameters, weights, create_graph)


def _gradients(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], weights: Sequence[Tensor], create_graph: bool = False
) -> tuple[Tensor, ...]:
    found = torch.autograd.grad(outputs, inputs, weights, create_graph=create_graph, allow_unused=True)
    return tuple(torch.zeros_like(x) if g is None else g for g, x in zip(found, inputs, strict=True))


def _differentiable_posteriors(
    logits: Tensor, count_logits: Tensor, forest: CountForest
) -> list[tuple[Tensor, tuple[Tensor, Tensor]]]:
    """Marginal log-odds and count probabilities of groups of rows, with all windows held constant."""
    rest = torch.arange(logits.shape[0], device=logits.device)
    result = []
    if forest.is_single:
        with torch.no_grad():
            tried = attempts(logits, count_logits, marginals=True)
        for rows, windows, solution in tried:
            done = solution.certified.nonzero().squeeze(-1)
            rest = rows[~solution.certified]
            if len(done):
                part = rows[done]
                result.append((part, solve_windows(logits[part], count_logits[part], windows.rows(done))))
    if len(rest):
        slow = _solve_tree(logits[rest], count_logits[rest], forest, marginals=True, errors=False, fallback=False)
        result.append((rest, (slow.beliefs.marginal_logits, slow.beliefs.count_marginals)))
    return result
