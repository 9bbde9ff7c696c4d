"""Probabilities of independent variables that are integrals over the real line, and their derivatives."""

__all__ = ["LineRule", "LineVariables", "Terms", "log_line_probability"]

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyro_structured.foundation.ops.differentiable_function import DifferentiableFunction
from pyro_structured.foundation.ops.requirements import any_true
from pyro_structured.foundation.ops.row_function import apply_rows, known_tangents
from pyro_structured.optima.ops.line_quadrature import (
    IMPOSSIBLE,
    NODES,
    LineRows,
    Panels,
    divided,
    first_panels,
    log_of,
    narrowed,
    with_corners,
)

# Largest number of panels of a row.
LIMIT = 2**16
TOLERANCE = 1e-10
# Largest number of elements of a tensor, unless a single row has more.
MEMORY = 2**21

# Densities, distribution functions and survival functions of n variables: three logarithms, shape (Q, rows, n),
# IMPOSSIBLE for log 0.
Terms = tuple[Tensor, Tensor, Tensor]


class LineVariables(NamedTuple):
    """Rows of n independent variables, in double precision.

    ``parameters`` have shape ``(rows, n)``. The functions take them as their last arguments, or any selection of rows
    of them: ``log_terms`` numbers, shape ``(Q, rows, 1)``, first; ``points``, shape ``(M, rows, n)``, are ends of
    intervals between which a density is nearly a polynomial of low degree, and outside of which it hardly counts, if
    it is not improbable; ``corners``, each of shape ``(rows, n)``, are where densities or their derivatives jump.
    """

    log_terms: Callable[..., Terms]
    points: Callable[..., Tensor]
    corners: Callable[..., tuple[Tensor, ...]]
    parameters: tuple[Tensor, ...]


class LineRule(NamedTuple):
    """A probability as an integral. Its functions take terms at nodes, and last tensors ``given``, ``(rows, n)`` each.

    ``log_bounds`` returns one or several upper bounds of the integrand, or of all integrands of a nested integral,
    shape ``(Q, rows, bounds)``; ``log_integrals`` takes panels first and returns one or several estimates of the
    probability, shape ``(rows, estimates)``; ``weights`` takes panels first and returns derivatives of the logarithm
    of the probability with respect to those of distribution functions and of survival functions at each node.
    """

    log_bounds: Callable[..., Tensor]
    log_integrals: Callable[..., Tensor]
    weights: Callable[..., tuple[Tensor, Tensor]]


def log_line_probability(rule: LineRule, variables: LineVariables, *given: Tensor) -> Tensor:
    r"""Logarithm of a probability, with as many panels as it takes.

    Each pass integrates where the bounds are within :math:`e^{-42}` of the result of the pass before, with all panels
    halved; two passes that agree end it, row by row.

    Derivatives are found by parts, so that densities are not differentiated: let variable m be smaller than the next
    one with density a(x), if it were not for m, and larger than the one before with density b(x); then

    .. math::
        dP = \sum_m \int a_m(x)\, dF_m(x) + b_m(x)\, d(1 - F_m(x))\; dx,

    also where densities jump, at the same place or not. Derivatives of that are those of the rule, whose edges move
    with corners; where corners of several variables coincide, it has none.

    :param LineRule rule: The integral.
    :param LineVariables variables: The variables.
    :param given: Further tensors that the rule needs, each of shape ``(rows, n)``.
    :return: Shape ``(rows,)``; relative error of the probability about 1e-10; -inf where it is zero. Memory is that of
        some tensors of 2^21 numbers, or of a row; for derivatives of derivatives, of all rows.
    :raises RuntimeError: if the largest number of panels is not enough; if second derivatives are taken where corners
        that depend on parameters coincide.
    """
    if not len(variables.parameters[0]):
        return torch.stack([parameter.sum(-1) for parameter in variables.parameters]).sum(0)
    bare = variables._replace(parameters=())
    value: Tensor = _LineProbability.apply(rule, bare, len(given), *variables.parameters, *given)[0]  # type: ignore[no-untyped-call]
    return value.masked_fill(value < IMPOSSIBLE / 2, -torch.inf)


class _LineProbability(DifferentiableFunction):
    """Values ``(rows,)``, and edges ``(edges, rows)`` of their panels; ``tensors`` are the parameters and ``given``."""

    @staticmethod
    def forward(rule: LineRule, variables: LineVariables, num_given: int, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        rows, split = len(tensors[0]), len(tensors) - num_given
        value, pieces = tensors[0].new_empty(rows), []
        whole, given = variables._replace(parameters=tensors[:split]), tensors[split:]
        for chosen in _chunks(rows, *variables.points(*(t[:1] for t in tensors[:split])).shape, NODES):
            value[chosen], edges = _converged(rule, *_chosen(whole, given, chosen))
            pieces.append(edges)
        longest = max(len(edges) for edges in pieces)
        return value, torch.cat([_lengthened(edges, longest) for edges in pieces], 1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.rule, ctx.variables, ctx.num_given, *tensors = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1], *tensors)
        ctx.save_for_forward(output[1], *tensors)

    @staticmethod
    def backward(ctx: Any, slope: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        edges, *tensors = ctx.saved_tensors
        wanted, split = ctx.needs_input_grad[3:], len(tensors) - ctx.num_given
        whole, given, pieces = ctx.variables._replace(parameters=tuple(tensors[:split])), tuple(tensors[split:]), []
        for chosen in _chunks(len(slope), len(edges) * NODES, tensors[0].shape[-1]):
            chunk, extra = _chosen(whole, given, chosen)
            pieces.append(_gradients(ctx.rule, chunk, extra, wanted, edges[:, chosen], slope[chosen]))
        gradients = iter([torch.cat(parts) for parts in zip(*pieces, strict=True)])
        return None, None, None, *(next(gradients) if needed else None for needed in wanted)

    @staticmethod
    def jvp(ctx: Any, _: None, __: None, ___: None, *tangents: Tensor | None) -> tuple[Tensor, None]:
        edges, *tensors = ctx.saved_tensors
        split = len(tensors) - ctx.num_given
        along = known_tangents(tuple(tensors[:split]), tangents[:split])
        function = partial(_tangent, ctx.rule, ctx.variables, split)
        (tangent,) = apply_rows(function, edges.T, *tensors, *along)
        return tangent, None

    @staticmethod
    def vmap(
        info: Any, in_dims: Any, rule: LineRule, variables: LineVariables, num_given: int, *tensors: Tensor
    ) -> Any:
        size = info.batch_size
        moved = [
            t.expand(size, *t.shape) if axis is None else t.movedim(axis, 0)
            for t, axis in zip(tensors, in_dims[3:], strict=True)
        ]
        flat = (t.flatten(0, 1) for t in moved)
        value, edges = _LineProbability.apply(rule, variables, num_given, *flat)  # type: ignore[no-untyped-call]
        return (value.unflatten(0, (size, -1)), edges.unflatten(1, (size, -1))), (0, 1)


def _chunks(rows: int, *shape: int) -> list[slice]:
    """Slices of rows, so that tensors of this shape for every row have at most ``MEMORY`` numbers."""
    size = max(1, MEMORY // math.prod(shape))
    return [slice(start, min(start + size, rows)) for start in range(0, rows, size)]


def _lengthened(edges: Tensor, length: int) -> Tensor:
    """Edges with empty panels at the end, shape ``(length, rows)``."""
    return torch.cat([edges, edges[-1:].expand(length - len(edges), -1)])


def _converged(rule: LineRule, variables: LineVariables, given: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """Values ``(rows,)``, and edges ``(panels + 1, rows)`` of the panels with which they converged."""
    value = torch.empty_like(variables.parameters[0][:, 0])
    index = torch.arange(len(value), device=value.device)
    before, pieces = torch.full_like(value, torch.nan).unsqueeze(-1), []
    rows, parts = _first_rows(rule, variables, given), 1
    while len(edges := divided(rows, parts)) <= LIMIT:
        now = _integrated(rule, variables, given, edges)
        done = _agree(before, now).all(-1)
        value[index[done]] = now[done, 0]
        pieces.append((index[done], edges[:, done]))
        if done.all():
            return value, _joined(pieces)
        most = now.amax(-1) - log_of((rows.high - rows.low).amax(-1))
        variables, given = _chosen(variables, given, ~done)
        index, before, rows = index[~done], now[~done], LineRows(*(t[~done] for t in rows))
        rows, parts = _narrowed(rule, variables, given, rows, edges[:, ~done].T, most[~done]), 2 * parts
    raise RuntimeError(
        f"log_prob: the quadrature did not converge to a relative error of {TOLERANCE} with {LIMIT} panels; the "
        "densities of the costs are too rough, or their scales too different"
    )


def _chosen(
    variables: LineVariables, given: tuple[Tensor, ...], rows: slice | Tensor
) -> tuple[LineVariables, tuple[Tensor, ...]]:
    parameters = tuple(t[rows] for t in variables.parameters)
    return variables._replace(parameters=parameters), tuple(t[rows] for t in given)


def _terms(variables: LineVariables, x: Tensor) -> Terms:
    terms: Terms = variables.log_terms(x.unsqueeze(-1), *variables.parameters)
    return terms


def _bounds(rule: LineRule, variables: LineVariables, given: tuple[Tensor, ...], x: Tensor) -> Tensor:
    return rule.log_bounds(_terms(variables, x), *given)


def _first_rows(rule: LineRule, variables: LineVariables, given: tuple[Tensor, ...]) -> LineRows:
    parameters = variables.parameters
    corners = torch.cat([parameters[0][:, :0], *variables.corners(*parameters)], -1)
    points = variables.points(*parameters).movedim(0, -1)
    return first_panels(partial(_bounds, rule, variables, given), points, corners)


def _narrowed(
    rule: LineRule,
    variables: LineVariables,
    given: tuple[Tensor, ...],
    rows: LineRows,
    places: Tensor,
    most: Tensor,
) -> LineRows:
    pieces = []
    for chosen in _chunks(*places.shape, variables.parameters[0].shape[-1]):
        chunk, extra = _chosen(variables, given, chosen)
        ranges = LineRows(*(t[chosen] for t in rows))
        bounds = partial(_bounds, rule, chunk, extra)
        pieces.append(narrowed(bounds, ranges, places[chosen], most[chosen]))
    return LineRows(*(torch.cat(parts) for parts in zip(*pieces, strict=True)))


def _integrated(rule: LineRule, variables: LineVariables, given: tuple[Tensor, ...], edges: Tensor) -> Tensor:
    pieces = []
    for chosen in _chunks(edges.shape[1], len(edges) * NODES, variables.parameters[0].shape[-1]):
        chunk, extra = _chosen(variables, given, chosen)
        panels = Panels.between(edges[:, chosen])
        pieces.append(rule.log_integrals(panels, _terms(chunk, panels.x), *extra))
    return torch.cat(pieces)


def _agree(before: Tensor, now: Tensor) -> Tensor:
    rounding = 64 * torch.finfo(now.dtype).eps * now.abs()
    return (now - before).abs() <= TOLERANCE + rounding


def _joined(pieces: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Edges of all rows, from pairs of row indices and edges."""
    longest = max(len(edges) for _, edges in pieces)
    order = torch.cat([index for index, _ in pieces]).argsort()
    return torch.cat([_lengthened(edges, longest) for _, edges in pieces], 1)[:, order]


def _gradients(
    rule: LineRule,
    variables: LineVariables,
    given: tuple[Tensor, ...],
    wanted: tuple[bool, ...],
    edges: Tensor,
    slope: Tensor,
) -> tuple[Tensor, ...]:
    """Gradients with respect to the parameters that are wanted, each of shape ``(rows, n)``."""
    active = [p for p, needed in zip(variables.parameters, wanted, strict=False) if needed]

    def tails(*tensors: Tensor) -> tuple[Any, Any]:
        rest = iter(tensors)
        pairs = zip(variables.parameters, wanted, strict=False)
        parameters = tuple(next(rest) if needed else p for p, needed in pairs)
        moving, coincide = with_corners(edges, variables.corners(*parameters))
        density, below, above = _terms(variables._replace(parameters=parameters), Panels.between(moving).x)
        return (below, above), (moving, coincide, density, below, above)

    linearised: Any = torch.func.vjp(tails, *active, has_aux=True)
    _, pull, (moving, coincide, *terms) = linearised
    weights = _Smooth.apply(coincide, *rule.weights(Panels.between(moving), terms, *given))  # type: ignore[no-untyped-call]
    gradients: tuple[Tensor, ...] = pull(tuple(slope.unsqueeze(-1) * weight for weight in weights))
    return gradients


def _tangent(rule: LineRule, variables: LineVariables, split: int, edges: Tensor, *tensors: Tensor) -> tuple[Tensor]:
    """The derivative of each row's value along tangents of the parameters, which come last."""
    parameters, given, tangents = tensors[:split], tensors[split:-split], tensors[-split:]
    wanted, whole, pieces = (True,) * split, variables._replace(parameters=parameters), []
    for chosen in _chunks(len(edges), edges.shape[1] * NODES, parameters[0].shape[-1]):
        chunk, extra = _chosen(whole, given, chosen)
        slopes = _gradients(rule, chunk, extra, wanted, edges[chosen].T, torch.ones_like(edges[chosen, 0]))
        pieces.append(torch.stack([(g * t[chosen]).sum(-1) for g, t in zip(slopes, tangents, strict=True)]).sum(0))
    return (torch.cat(pieces),)


class _Smooth(DifferentiableFunction):
    """Identity of weights, without derivatives where corners of several variables coincide."""

    generate_vmap_rule = True

    @staticmethod
    def forward(coincide: Tensor, below: Tensor, above: Tensor) -> tuple[Tensor, Tensor]:
        return below.clone(), above.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.save_for_forward(inputs[0])

    @staticmethod
    def backward(ctx: Any, below: Tensor, above: Tensor) -> tuple[None, Tensor, Tensor]:
        return None, *_where_smooth(ctx.saved_tensors[0], below, above)

    @staticmethod
    def jvp(ctx: Any, _: None, below: Tensor, above: Tensor) -> tuple[Tensor, Tensor]:
        return _where_smooth(ctx.saved_tensors[0], below, above)


def _where_smooth(coincide: Tensor, below: Tensor, above: Tensor) -> tuple[Tensor, Tensor]:
    if any_true(coincide):
        raise RuntimeError(
            "log_prob: second derivatives were taken where ends of supports, or other corners of the densities, "
            "of several costs coincide, and do not exist in general; first derivatives do"
        )
    return below, above
