"""Checks of shapes, types and copies, on which Pyro relies before any number is computed."""

__all__ = ["SHAPE_CHECKS"]

import contextlib
import copy
import inspect
import itertools
import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints, kl_divergence

from pyro_structured.foundation.ops.vmap_rows import broadcast_shapes
from pyro_structured.testing.distribution_case import (
    DistributionCase,
    Parameter,
    arguments,
    narrow,
    optional_query,
    parameters,
    rebuild,
    substitute,
)
from pyro_structured.testing.expectation import expect, expect_close, expect_raises, expect_shape
from pyro_structured.testing.support_table import event_rank

# Attributes read before copies are made, so that caches are seen to travel, or to be made anew.
CACHED_QUERIES = (
    "log_partition_function",
    "marginals",
    "marginal_logits",
    "count_marginals",
    "mean",
    "variance",
    "mode",
)


def constructor(case: DistributionCase) -> None:
    """The parameters are attributes that satisfy ``arg_constraints``; NaN is refused."""
    distribution = case.make()
    expect_shape("batch_shape", torch.empty(distribution.batch_shape), case.batch_shape)
    *_, last = inspect.signature(type(distribution).__init__).parameters.values()
    is_last = last.name == "validate_args" and last.default is None
    expect(is_last, f"constructor: expected validate_args=None as the last parameter, got {last}")
    for name, constraint in type(distribution).arg_constraints.items():
        if constraints.is_dependent(constraint):
            continue
        valid = constraint.check(torch.as_tensor(getattr(distribution, name)))
        expect(valid.all(), f"arg_constraints: {name} does not satisfy {constraint}")
        wide = broadcast_shapes(valid.shape, case.batch_shape) if valid.dim() <= len(case.batch_shape) else None
        expect(
            wide == torch.Size(case.batch_shape), f"arg_constraints: wrong event_dim of {name}: {constraint.event_dim}"
        )
    for parameter in parameters(distribution):
        if parameter.is_differentiable and "." not in parameter.name and parameter.tensor.numel():
            broken = torch.full_like(parameter.tensor, torch.nan)
            construct = partial(rebuild, distribution, {parameter.name: broken}, validate_args=True)
            expect_raises(f"constructor with NaN in {parameter.name}", (ValueError,), construct)


def support(case: DistributionCase) -> None:
    """``support`` has the right ``event_dim``, with and without an instance, and checks values one by one."""
    distribution = case.make()
    rank = event_rank(distribution)
    wraps = any(isinstance(argument, Distribution) for argument in arguments(distribution).values())
    for name, constraint in (("support", distribution.support), ("class's support", type(distribution).support)):
        if name == "support" or not wraps:  # The class of a wrapper cannot know the wrapped distribution.
            expect(constraint.event_dim == rank, f"{name}.event_dim: expected {rank}, got {constraint.event_dim}")
    value = distribution.sample((4,))
    valid = distribution.support.check(value)
    expect(valid.dtype == torch.bool, f"support.check: expected booleans, got {valid.dtype}")
    expect_shape("support.check(sample)", valid, (4, *case.batch_shape))
    expect(valid.all(), "support.check: a sample is not in the support")
    if distribution.has_enumerate_support:
        expect(distribution.support.is_discrete, "support.is_discrete: expected True, as the support can be enumerated")


def sample(case: DistributionCase) -> None:
    """Samples have the right shape, dtype and device, depend on torch's generator only, and are detached."""
    pattern = case.make()
    leaves = {p.name: p.tensor.clone().requires_grad_() for p in parameters(pattern) if p.is_differentiable}
    distribution = rebuild(pattern, leaves)
    for shape in ((), (4,), (3, 2), [2], torch.Size([2]), (0,), (2, 0)):
        value = distribution.sample(shape)
        expect_shape(f"sample({shape})", value, (*shape, *case.batch_shape, *distribution.event_shape))
        expect(not value.requires_grad, f"sample({shape}).requires_grad: expected False, got True")
        allowed = value.dtype in (case.dtype, torch.long)
        expect(allowed, f"sample({shape}): expected dtype {case.dtype} or torch.int64, got {value.dtype}")
        expect(value.device.type == case.device, f"sample({shape}): expected device {case.device}, got {value.device}")
    expect_shape("sample()", distribution.sample(), (*case.batch_shape, *distribution.event_shape))
    torch.manual_seed(1)
    first = distribution.sample((20,))
    torch.manual_seed(1)
    expect(torch.equal(first, distribution.sample((20,))), "sample: expected the same draws for the same torch seed")
    if not distribution.has_rsample:
        expect_raises("rsample, has_rsample being False,", (NotImplementedError,), distribution.rsample)
        return
    value = distribution.rsample((5,))
    expect_shape("rsample((5,))", value, (5, *case.batch_shape, *distribution.event_shape))
    expect(value.requires_grad, "rsample: expected a differentiable value, as has_rsample is True")
    weights = torch.arange(1.0, 1.0 + value.numel()).to(value).reshape(value.shape)
    gradients = torch.autograd.grad((value * weights).sum(), list(leaves.values()), allow_unused=True)
    present = [g for g in gradients if g is not None]
    is_fine = bool(present) and all(bool(g.isfinite().all()) for g in present)
    expect(is_fine, "rsample: expected finite gradients with respect to parameters")


def log_prob(case: DistributionCase) -> None:
    """``log_prob`` broadcasts values and parameters both ways, and takes booleans and integers."""
    distribution = case.make()
    value = distribution.sample((4,))
    generator = torch.get_rng_state()
    whole = distribution.log_prob(value)
    expect(torch.equal(generator, torch.get_rng_state()), "log_prob: drew random numbers")
    expect_shape("log_prob(sample((4,)))", whole, (4, *case.batch_shape))
    expect(whole.dtype == case.dtype, f"log_prob: expected {case.dtype}, got {whole.dtype}")
    expect(whole.device.type == case.device, f"log_prob: expected device {case.device}, got {whole.device}")
    expect((whole > -torch.inf).all(), "log_prob: a sample has probability zero")
    tolerance = case.tolerance
    expect_close("log_prob of one of the values", distribution.log_prob(value[1]), whole[1], tolerance)
    for axis in range(len(case.batch_shape)):
        # A value that lacks the leading batch axes is one for all of them.
        single = value[(0,) * (axis + 2)]
        expected = distribution.log_prob(single.expand(distribution.batch_shape + distribution.event_shape))
        expect_close("log_prob of a value with fewer batch axes", distribution.log_prob(single), expected, tolerance)
        shape = tuple(1 if i == axis + 1 else n for i, n in enumerate(value.shape))
        narrow = value.narrow(axis + 1, 0, 1).reshape(shape)
        expected = distribution.log_prob(narrow.expand_as(value))
        expect_close("log_prob of a value with a batch axis of 1", distribution.log_prob(narrow), expected, tolerance)
    many = value.reshape((2, 2) + (1,) * 2 + value.shape[1:])
    expected = whole.reshape((2, 2, 1, 1, *case.batch_shape))
    expect_close("log_prob of values with more axes", distribution.log_prob(many), expected, tolerance)
    if distribution.support.is_discrete:
        for dtype in (torch.bool, torch.uint8, torch.long, torch.float32, torch.float64):
            if torch.equal(value.to(dtype).to(value.dtype), value):
                expect_close(f"log_prob of {dtype} values", distribution.log_prob(value.to(dtype)), whole, tolerance)


def batch_elements(case: DistributionCase) -> None:
    """Every element of a batch is the distribution with that element's parameters."""
    distribution = case.make()
    value = distribution.sample((4,))
    whole = distribution.log_prob(value)
    for place in itertools.product(*(range(size) for size in case.batch_shape)):
        tensors = {p.name: _element(p, place) for p in parameters(distribution)}
        alone = rebuild(distribution, tensors)
        expect_shape("batch_shape of an element", torch.empty(alone.batch_shape), ())
        here = (slice(None), *place)
        expect_close(f"log_prob of batch element {place}", whole[here], alone.log_prob(value[here]), case.tolerance)


def _element(parameter: Parameter, place: tuple[int, ...]) -> Tensor:
    """A parameter of one element of the batch, over which it may broadcast."""
    missing = len(place) + parameter.trailing - parameter.tensor.dim()
    tensor = parameter.tensor.reshape((1,) * missing + parameter.tensor.shape)
    return tensor[tuple(index % size for index, size in zip(place, tensor.shape, strict=False))]


def expand(case: DistributionCase) -> None:
    """``expand`` keeps the class, its queries and its values, may be repeated, and refuses shapes that do not fit."""
    distribution = case.make()
    value = distribution.sample()
    expected = distribution.log_prob(value)
    for query in CACHED_QUERIES:
        optional_query(distribution, query)
    shapes = [case.batch_shape, (5, *case.batch_shape), (2, 5, *case.batch_shape)]
    expanded = distribution
    for shape in shapes:
        expanded = expanded.expand(shape)
        expect(type(expanded) is type(distribution), f"expand: expected {type(distribution).__name__}, got {expanded}")
        expect_shape("expand(...).batch_shape", torch.empty(expanded.batch_shape), shape)
        expect_shape("expand(...).event_shape", torch.empty(expanded.event_shape), distribution.event_shape)
        expect_shape("expand(...).sample((3,))", expanded.sample((3,)), (3, *shape, *distribution.event_shape))
        expect_close("expand(...).log_prob", expanded.log_prob(value), expected.expand(shape), case.tolerance)
        for query in CACHED_QUERIES:
            before = optional_query(distribution, query)
            if isinstance(before, Tensor):
                after = getattr(expanded, query)
                wide = before.expand(torch.Size(shape) + before.shape[len(case.batch_shape) :])
                expect_close(f"expand(...).{query}", after, wide, case.tolerance)
    expect(distribution.batch_shape == torch.Size(case.batch_shape), "expand: changed the distribution itself")
    if case.batch_shape:
        wrong = (case.batch_shape[0] + 1, *case.batch_shape[1:])
        expect_raises(f"expand({wrong})", (RuntimeError, ValueError), lambda: distribution.expand(wrong).sample())
    _expand_ones(case, distribution)


def _expand_ones(case: DistributionCase, distribution: Any) -> None:
    """An axis of size 1 can be expanded in place."""
    if not case.batch_shape:
        return
    single = narrow(distribution)
    shape = (*case.batch_shape[:-1], 7)
    value = single.sample()
    expected = single.log_prob(value).expand(shape)
    expect_close("expand of an axis of 1", single.expand(shape).log_prob(value), expected, case.tolerance)


def enumerate_support(case: DistributionCase) -> None:
    """All values once, in lexicographic order, with the shapes that Pyro asks for."""
    distribution = case.make()
    if not distribution.has_enumerate_support:
        expect_raises("enumerate_support", (NotImplementedError,), distribution.enumerate_support)
        return
    rank = len(case.batch_shape)
    narrow = distribution.enumerate_support(expand=False)
    count = narrow.shape[0]
    expect_shape("enumerate_support(expand=False)", narrow, (count, *(1,) * rank, *distribution.event_shape))
    wide = distribution.enumerate_support()
    expect_shape("enumerate_support()", wide, (count, *case.batch_shape, *distribution.event_shape))
    expect(torch.equal(wide, narrow.expand_as(wide)), "enumerate_support: expand=True and False have different values")
    expect(distribution.support.check(wide).all(), "enumerate_support: a value is not in the support")
    kind = distribution.sample().dtype
    expect(narrow.dtype == kind, f"enumerate_support: expected the dtype of samples, {kind}, got {narrow.dtype}")
    expect(narrow.device.type == case.device, f"enumerate_support: expected device {case.device}, got {narrow.device}")
    rows = narrow.reshape(count, -1).tolist()
    expect(all(a < b for a, b in zip(rows, rows[1:], strict=False)), "enumerate_support: expected lexicographic order")


def infer_shapes(case: DistributionCase) -> None:
    """``infer_shapes`` tells batch and event shape from the shapes of the parameters, without an instance; other
    arguments that it names are passed as they are.
    """
    distribution = case.make()
    known, named = distribution.arg_constraints, inspect.signature(type(distribution).infer_shapes).parameters
    given = arguments(distribution)
    if any(name in known for name in given):
        shapes = {name: torch.as_tensor(value).shape for name, value in given.items() if name in known}
        others = {name: value for name, value in given.items() if name not in known and name in named}
        for owner in (type(distribution), distribution):
            batch_shape, event_shape = owner.infer_shapes(**shapes, **others)
            expect_shape("infer_shapes: batch", torch.empty(batch_shape), distribution.batch_shape)
            expect_shape("infer_shapes: event", torch.empty(event_shape), distribution.event_shape)


def empty_batch(case: DistributionCase) -> None:
    """All queries of a batch without elements have its shape; gradients with respect to its parameters exist."""
    if case.batch_shape:
        return
    for shape in ((0,), (2, 0)):
        distribution = replace(case, batch_shape=shape).make()
        value = distribution.sample((3,))
        expect_shape(f"sample((3,)) in the batch {shape}", value, (3, *shape, *distribution.event_shape))
        for name, found in _empty_results(distribution, value):
            start = tuple(found.shape[: len(shape)])
            expect(
                start == shape, f"{name} in the batch {shape}: expected its shape in front, got {tuple(found.shape)}"
            )
        leaves = {p.name: p.tensor.clone().requires_grad_() for p in parameters(distribution) if p.is_differentiable}
        total = rebuild(distribution, leaves).log_prob(value).sum()
        torch.autograd.grad(total, list(leaves.values()), allow_unused=True)


def _empty_results(distribution: Any, value: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yields names and results of all queries, whose shapes start with the batch shape."""
    yield "log_prob", distribution.log_prob(value)[0]
    yield "expand", distribution.expand(distribution.batch_shape).log_prob(value[0])
    queries: dict[str, Callable[[], Any]] = {
        query: partial(optional_query, distribution, query) for query in (*CACHED_QUERIES, "entropy")
    }
    queries |= {name: partial(getattr(distribution, name), value[0]) for name in ("cdf", "icdf")}
    queries["kl_divergence"] = partial(kl_divergence, distribution, distribution)
    if distribution.has_enumerate_support:
        queries["enumerate_support"] = lambda: distribution.enumerate_support()[0]
    if distribution.has_rsample:
        queries["rsample"] = distribution.rsample
    if hasattr(distribution, "condition"):
        nothing = torch.zeros(distribution.event_shape, dtype=torch.bool, device=value.device)
        queries["condition"] = lambda: distribution.condition(value[0], nothing).log_prob(value)[0]
        queries["marginal_log_prob"] = partial(distribution.marginal_log_prob, value[0], nothing)
    for name, query in queries.items():
        with contextlib.suppress(NotImplementedError):
            result = query()
            if isinstance(result, Tensor):
                yield name, result


def copies(case: DistributionCase) -> None:
    """Instances can be pickled and copied, before and after they were used, also if parameters require gradients."""
    value = case.make().sample((3,))
    subjects = [case.make()]
    if not case.batch_shape:
        subjects.append(substitute(case.make(), lambda p: p.tensor.clone().requires_grad_()))
    for distribution in subjects:
        for used in (False, True):
            for name, copied in (
                ("pickle", pickle.loads(pickle.dumps(distribution))),
                ("deepcopy", copy.deepcopy(distribution)),
                ("copy", copy.copy(distribution)),
            ):
                after = "a used" if used else "a new"
                expect(type(copied) is type(distribution), f"{name} of {after} instance: expected the same class")
                expected = distribution.log_prob(value)
                expect_close(f"log_prob after {name} of {after} instance", copied.log_prob(value), expected, 1e-12)
                expect_shape(f"sample after {name}", copied.sample(), (*case.batch_shape, *distribution.event_shape))
            for query in CACHED_QUERIES:
                optional_query(distribution, query)


def representation(case: DistributionCase) -> None:
    """``repr`` names the class."""
    distribution = case.make()
    expect(type(distribution).__name__ in repr(distribution), f"repr: expected the class name, got {distribution!r}")


SHAPE_CHECKS = (
    constructor,
    support,
    sample,
    log_prob,
    batch_elements,
    expand,
    enumerate_support,
    infer_shapes,
    copies,
    representation,
)
