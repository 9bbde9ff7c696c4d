"""Derivatives, single precision and vectorisation over parameters."""

__all__ = ["GRADIENT_CHECKS"]

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pyro_structured.testing.distribution_case import DistributionCase, optional_query, parameters, rebuild
from pyro_structured.testing.expectation import expect, expect_close

# Steps of finite differences: their errors are near 1e-10 for the first derivative.
_STEP = 1e-5


def _as_function(distribution: Any, value: Tensor) -> tuple[dict[str, Tensor], Callable[..., Tensor]]:
    """The differentiable parameters by name, and ``log_prob`` as a function of them."""
    tensors = {p.name: p.tensor.detach().clone() for p in parameters(distribution) if p.is_differentiable}

    def log_prob(*changed: Tensor) -> Tensor:
        rebuilt = rebuild(distribution, dict(zip(tensors, changed, strict=True)), validate_args=False)
        result: Tensor = rebuilt.log_prob(value)
        return result

    return tensors, log_prob


def _is_double(case: DistributionCase) -> bool:
    return torch.finfo(case.dtype).bits >= 64


def gradient(case: DistributionCase) -> None:
    """The gradient of ``log_prob`` is its derivative, by central differences (float64)."""
    if not _is_double(case):
        return
    distribution = case.make()
    value = distribution.sample((2,))
    tensors, log_prob = _as_function(distribution, value)
    # Different weights for different elements, so that no two can be confused.
    weights = torch.linspace(0.5, 1.5, log_prob(*tensors.values()).numel(), dtype=case.dtype, device=value.device)
    weights = weights.reshape((2, *case.batch_shape))
    leaves = [tensor.clone().requires_grad_() for tensor in tensors.values()]
    gradients = torch.autograd.grad((log_prob(*leaves) * weights).sum(), leaves)
    for (name, tensor), found in zip(tensors.items(), gradients, strict=True):
        expect(found.isfinite().all(), f"derivative of log_prob along {name}: expected finite numbers, got {found}")
        for direction in _directions(tensor):
            moved = [{**tensors, name: tensor + sign * _STEP * direction}.values() for sign in (1, -1)]
            difference = (log_prob(*moved[0]) - log_prob(*moved[1])) / (2 * _STEP)
            along = (found * direction).sum()
            expect_close(f"derivative of log_prob along {name}", along, (difference * weights).sum(), 1e-6)
    if not distribution.support.is_discrete:
        _value_gradient(distribution, value)


def _directions(tensor: Tensor) -> list[Tensor]:
    """Unit vectors, or random ones where there are many; infinite entries stay."""
    finite = tensor.isfinite()
    if tensor.numel() <= 12:
        units = torch.eye(tensor.numel(), dtype=tensor.dtype, device=tensor.device)
        return [unit.reshape(tensor.shape) * finite for unit in units]
    return [torch.randn_like(tensor) * finite for _ in range(8)]


def _value_gradient(distribution: Any, value: Tensor) -> None:
    leaf = value.clone().requires_grad_()
    (slope,) = torch.autograd.grad(distribution.log_prob(leaf).sum(), [leaf])
    for direction in _directions(value)[:8]:
        up, down = (distribution.log_prob(value + sign * _STEP * direction).sum() for sign in (1, -1))
        along = (slope * direction).sum()
        expect_close("derivative of log_prob along the value", along, (up - down) / (2 * _STEP), 1e-6)


def second_gradient(case: DistributionCase) -> None:
    """The gradient can be differentiated again (float64)."""
    if not _is_double(case) or case.batch_shape:
        return
    distribution = case.make()
    named, log_prob = _as_function(distribution, distribution.sample())
    tensors = list(named.values())
    direction = [torch.randn_like(t) * t.isfinite() for t in tensors]
    leaves = [t.clone().requires_grad_() for t in tensors]
    first = torch.autograd.grad(log_prob(*leaves), leaves, create_graph=True)
    along = torch.stack([(g * d).sum() for g, d in zip(first, direction, strict=True)]).sum()
    if not along.requires_grad:
        along = along + 0 * leaves[0].sum()  # a constant gradient
    seconds = torch.autograd.grad(along, leaves, allow_unused=True, materialize_grads=True)

    def slope(sign: int) -> tuple[Tensor, ...]:
        moved = [(t + sign * _STEP * d).requires_grad_() for t, d in zip(tensors, direction, strict=True)]
        return torch.autograd.grad(log_prob(*moved), moved)

    for name, second, up, down in zip(named, seconds, slope(1), slope(-1), strict=True):
        expect_close(f"second derivative of log_prob, {name}", second, (up - down) / (2 * _STEP), 1e-5)


def single_precision(case: DistributionCase) -> None:
    """In float32, log-probabilities and gradients are within 1e-4 of those in float64."""
    if _is_double(case):
        return
    distribution = case.make()
    tensors, log_prob = _as_function(distribution, distribution.sample((4,)))
    results = []
    for dtype in (case.dtype, torch.float64):
        leaves = [tensor.to(dtype).requires_grad_() for tensor in tensors.values()]
        result = log_prob(*leaves)
        results.append([result, *torch.autograd.grad(result.sum(), leaves)])
    for name, single, double in zip(["value", *tensors], *results, strict=True):
        expect(single.dtype == case.dtype, f"log_prob, {name}: expected {case.dtype}, got {single.dtype}")
        expect_close(f"log_prob in single and double precision, {name}", single, double, 1e-4)


def vmap_values(case: DistributionCase) -> None:
    """``torch.vmap`` over values, also when validating, and of gradients at them, equals a loop."""
    distribution = case.make()
    values = distribution.sample((3,))
    expected = torch.stack([distribution.log_prob(value) for value in values])
    for validate in (False, True):
        again = rebuild(distribution, {}, validate_args=validate)
        mapped = torch.vmap(again.log_prob)(values)
        expect_close(f"vmap of log_prob over values, validate_args={validate}", mapped, expected, case.tolerance)
    loops = [_slope(distribution, value) for value in values]
    for slope, *rows in zip(torch.vmap(partial(_slope, distribution))(values), *loops, strict=True):
        expect_close("vmap of the gradient of log_prob over values", slope, torch.stack(rows), case.tolerance)


def _slope(distribution: Any, value: Tensor) -> tuple[Tensor, ...]:
    """The gradient with respect to the parameters, by function transforms."""
    tensors, log_prob = _as_function(distribution, value)
    argnums = tuple(range(len(tensors)))
    slopes: tuple[Tensor, ...] = torch.func.grad(lambda *t: log_prob(*t).sum(), argnums=argnums)(*tensors.values())
    return slopes


def vmap_parameters(case: DistributionCase) -> None:
    """``torch.vmap`` over parameters, and of gradients with respect to them, equals a loop."""
    distribution = case.make()
    tensors, log_prob = _as_function(distribution, distribution.sample())
    stacked = [torch.stack([t, t + 0.01]) for t in tensors.values()]
    loop = torch.stack([log_prob(*(t[i] for t in stacked)) for i in range(2)])
    expect_close("vmap of log_prob over parameters", torch.vmap(log_prob)(*stacked), loop, case.tolerance)
    slope = torch.func.grad(lambda *t: log_prob(*t).sum(), argnums=tuple(range(len(tensors))))
    loops = [slope(*(t[i] for t in stacked)) for i in range(2)]
    for found, *rows in zip(torch.vmap(slope)(*stacked), *loops, strict=True):
        expect_close("vmap of the gradient of log_prob", found, torch.stack(rows), case.tolerance)


def forward_mode(case: DistributionCase) -> None:
    """Forward derivatives of ``log_prob`` and marginals are the reverse ones; so are those of gradients (float64)."""
    if not _is_double(case):
        return
    distribution = case.make()
    tensors, log_prob = _as_function(distribution, distribution.sample())
    points = tuple(tensors.values())
    along = tuple(torch.randn_like(point) * point.isfinite() for point in points)
    functions = {"log_prob": log_prob}
    for name in ("marginals", "mean", "log_partition_function"):
        if isinstance(optional_query(distribution, name), Tensor):
            functions[name] = partial(_query, distribution, tuple(tensors), name)
    with warnings.catch_warnings():
        # Torch warns of its own code at the first forward derivative of a process.
        warnings.filterwarnings("ignore", "`torch.jit.script")
        for name, function in functions.items():
            _compare_modes(name, function, points, along)
        if not case.batch_shape:
            _compare_second(log_prob, points, along)


def _compare_modes(
    name: str, function: Callable[..., Tensor], points: tuple[Tensor, ...], along: tuple[Tensor, ...]
) -> None:
    pair: tuple[Tensor, ...] = torch.func.jvp(function, points, along)
    value, tangent = pair
    pull: Callable[[Tensor], tuple[Tensor, ...]] = torch.func.vjp(function, *points)[1]
    weights = torch.linspace(0.5, 1.5, value.numel(), dtype=value.dtype, device=value.device).reshape(value.shape)
    pulled = torch.stack([(g * t).sum() for g, t in zip(pull(weights), along, strict=True)]).sum()
    expect_close(f"forward derivative of {name}", (tangent * weights).sum(), pulled, 1e-8)


def _compare_second(log_prob: Callable[..., Tensor], points: tuple[Tensor, ...], along: tuple[Tensor, ...]) -> None:
    def line(step: Tensor) -> Tensor:
        return log_prob(*(point + step * t for point, t in zip(points, along, strict=True))).sum()

    zero = torch.zeros_like(points[0].flatten()[:1]).sum()
    expected = torch.func.jacrev(torch.func.jacrev(line))(zero)
    second = torch.func.jacfwd(torch.func.jacrev(line))(zero)
    expect_close("second derivative of log_prob, forward over reverse", second, expected, 1e-7)


def _query(distribution: Any, names: tuple[str, ...], query: str, *tensors: Tensor) -> Tensor:
    changed = rebuild(distribution, dict(zip(names, tensors, strict=True)), validate_args=False)
    result: Tensor = getattr(changed, query)
    return result


GRADIENT_CHECKS = (gradient, second_gradient, forward_mode, single_precision, vmap_values, vmap_parameters)
