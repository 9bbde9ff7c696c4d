"""Queries beside ``log_prob``: counts, evidence, and derivatives along all parameters together and one by one."""

__all__ = ["QUERY_CHECKS"]

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_structured.testing.distribution_case import DistributionCase, optional_query, parameters, rebuild
from pyro_structured.testing.expectation import expect, expect_close, expect_shape
from pyro_structured.testing.support_table import SupportTable, event_rank

DIFFERENTIABLE_QUERIES = ("entropy", "mean", "variance", "marginals", "marginal_logits", "count_marginals")
# Steps of finite differences: their errors are near 1e-10 for the first derivative.
_STEP = 1e-5
# More rows than messages name.
NUM_ROWS = 13

_Tensors = Mapping[str, Tensor]


def count_marginals(case: DistributionCase) -> None:
    """``count_marginals`` are the enumerated probabilities of the counts that ``subsets.counts`` tells, where there are
    subsets.
    """
    distribution = case.make()
    result = optional_query(distribution, "count_marginals")
    if result is None or not (hasattr(distribution, "subsets") and distribution.has_enumerate_support):
        return
    table = SupportTable.of(distribution)
    counts = distribution.subsets.counts(table.values).unsqueeze(-1)
    parts = [table.probs.new_zeros((*case.batch_shape, 0))]
    for index, size in enumerate(distribution.subsets.sizes):
        parts.append(table.expectation(counts[..., index, :] == torch.arange(size + 1, device=counts.device)))
    expect(result.dtype == case.dtype, f"count_marginals: expected {case.dtype}, got {result.dtype}")
    expect_close("count_marginals", result, torch.cat(parts, -1), 10 * case.tolerance)


def marginal_logits(case: DistributionCase) -> None:
    """``marginal_logits`` are the enumerated log-odds, infinite where an entry is certain; of categories, the
    log-probabilities.
    """
    distribution = case.make()
    result = optional_query(distribution, "marginal_logits")
    if result is None or not distribution.has_enumerate_support:
        return
    table = SupportTable.of(distribution)
    joint = table.log_probs.double()[(...,) + (None,) * event_rank(distribution)]
    is_binary = distribution.sample().is_floating_point()
    number = 2 if is_binary else result.shape[-1]
    logs = [torch.logsumexp(joint.masked_fill(table.values != y, -torch.inf), 0) for y in range(number)]
    expected = logs[1] - logs[0] if is_binary else torch.stack(logs, -1)
    expect(result.dtype == case.dtype, f"marginal_logits: expected {case.dtype}, got {result.dtype}")
    expect_close("marginal_logits", result, expected, 10 * case.tolerance)


def conjugate_update(case: DistributionCase) -> None:
    """``conjugate_update`` multiplies binary vectors by independent evidence, and tells the product's weight."""
    distribution = case.make()
    if not (distribution.has_enumerate_support and distribution.event_shape):
        return
    shape = (2, *case.batch_shape, *distribution.event_shape)
    other = dist.Bernoulli(logits=torch.randn(shape, dtype=case.dtype, device=case.device)).to_event(1)
    try:
        updated, log_normalizer = distribution.conjugate_update(other)
    except NotImplementedError:
        return
    values = distribution.enumerate_support(expand=False).unsqueeze(1)
    expect_shape("conjugate_update: batch_shape", torch.empty(updated.batch_shape), other.batch_shape)
    expect_shape("conjugate_update: log_normalizer", log_normalizer, other.batch_shape)
    expected = distribution.log_prob(values) + other.log_prob(values)
    product = updated.log_prob(values) + log_normalizer
    expect_close("conjugate_update: log_prob + log_normalizer", product, expected, 10 * case.tolerance)


def independent_evidence(case: DistributionCase) -> None:
    """``reweight`` and ``log_evidence`` multiply enumerated probabilities by independent evidence, where they exist."""
    distribution = case.make()
    if not (hasattr(distribution, "reweight") and distribution.has_enumerate_support):
        return
    values = distribution.enumerate_support(expand=False).unsqueeze(1)
    log_probs, number = distribution.log_prob(values), int(values.max()) + 1
    shape = (3, *case.batch_shape, *distribution.event_shape, number)
    evidence = torch.randn(shape, dtype=case.dtype, device=case.device)
    # The second row excludes states; the last contradicts itself in the last entry.
    evidence[1] = evidence[1].masked_fill(torch.rand_like(evidence[1]) < 0.2, -torch.inf)
    evidence[2].flatten(0, -2)[-1] = -torch.inf
    states = values.long().expand(len(values), *shape[:-1]).unsqueeze(-1)
    terms = evidence.expand(len(values), *shape).gather(-1, states).squeeze(-1)
    joint = log_probs + terms.flatten(len(shape) - event_rank(distribution)).sum(-1)
    expected = torch.logsumexp(joint, 0)
    given = evidence.unbind(-1) if values.is_floating_point() else (evidence,)
    expect_close("log_evidence", distribution.log_evidence(*given), expected, 10 * case.tolerance)
    first = [tensor[:2] for tensor in given]
    if not bool((expected[:2] > -torch.inf).all()):
        first, joint, expected = [tensor[:1] for tensor in given], joint[:, :1], expected[:1]
    posterior = distribution.reweight(*first)
    found = posterior.log_prob(values)
    expect_close("reweight: log_prob", found, (joint - expected)[:, : len(first[0])], 10 * case.tolerance)
    gained = posterior.log_partition_function - distribution.log_partition_function
    expect_close("reweight: log_partition_function", gained, expected[: len(first[0])], 10 * case.tolerance)
    try:
        distribution.reweight(*(tensor[2] for tensor in given)).sample()
    except ValueError as error:
        expect(str(error).startswith("value: "), f"reweight: expected an error about the evidence, got: {error}")
    else:
        expect(False, "reweight: expected an error where the evidence is impossible, got a sample")


class _Query(NamedTuple):
    """A query as a function of the differentiable parameters; infinite entries count as zeros."""

    name: str
    tensors: dict[str, Tensor]
    compute: Callable[[_Tensors], Tensor]

    def energy(self, changed: _Tensors) -> Tensor:
        """Scalar to which all entries contribute with different weights, and not linearly."""
        result = self.compute(changed)
        return (result * (_weights(result) + result / 2)).sum()

    def replacing(self, name: str, tensor: Tensor) -> dict[str, Tensor]:
        """All differentiable parameters by name, with one exchanged."""
        return {**self.tensors, name: tensor}


def _weights(result: Tensor) -> Tensor:
    shape = result.shape
    return torch.linspace(0.5, 1.5, shape.numel(), dtype=result.dtype, device=result.device).reshape(shape)


def _queries(case: DistributionCase) -> list[_Query]:
    """All differentiable queries of a distribution in double precision and without a batch; none of others."""
    distribution = case.make()
    tensors = _differentiable(distribution)
    if torch.finfo(case.dtype).bits < 64 or case.batch_shape or not tensors:
        return []
    found = [name for name in DIFFERENTIABLE_QUERIES if optional_query(distribution, name) is not None]
    return [_Query(name, tensors, partial(_compute, distribution, [name])) for name in found]


def _joined(case: DistributionCase) -> list[_Query]:
    """All queries of one instance as a single one, because every derivative takes its time."""
    queries = _queries(case)
    names = [query.name for query in queries]
    return [_Query(", ".join(names), q.tensors, partial(_compute, case.make(), names)) for q in queries[:1]]


def _differentiable(distribution: Any) -> dict[str, Tensor]:
    return {p.name: p.tensor.detach().clone() for p in parameters(distribution) if p.is_differentiable}


def _compute(distribution: Any, names: list[str], changed: _Tensors) -> Tensor:
    other = rebuild(distribution, changed, validate_args=False)
    result = torch.cat([optional_query(other, name).reshape(-1) for name in names])
    return result.masked_fill(result.isinf(), 0.0)


def _leaves(tensors: _Tensors) -> dict[str, Tensor]:
    return {name: tensor.clone().requires_grad_() for name, tensor in tensors.items()}


def _derivatives(output: Tensor, leaves: _Tensors, create_graph: bool = False) -> dict[str, Tensor]:
    """Derivatives of a scalar, zeros where it does not depend on a parameter; the graph is kept."""
    if not output.requires_grad:
        return {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
    found = torch.autograd.grad(
        output,
        list(leaves.values()),
        create_graph=create_graph,
        retain_graph=True,
        allow_unused=True,
        materialize_grads=True,
    )
    return dict(zip(leaves, found, strict=True))


def _direction(tensors: _Tensors) -> dict[str, Tensor]:
    """A random direction, in which infinite entries stay."""
    return {name: torch.randn_like(tensor) * tensor.isfinite() for name, tensor in tensors.items()}


def _along(gradients: _Tensors, direction: _Tensors) -> Tensor:
    return torch.stack([(gradients[name] * d).sum() for name, d in direction.items()]).sum()


def _moved(tensors: _Tensors, direction: _Tensors) -> list[dict[str, Tensor]]:
    """Parameters after a step forwards, and after a step backwards."""
    return [{name: t + sign * _STEP * direction[name] for name, t in tensors.items()} for sign in (1, -1)]


def query_gradient(case: DistributionCase) -> None:
    """Entropy, moments and marginals can be differentiated twice, by central differences (float64)."""
    for query in _queries(case):
        leaves, direction = _leaves(query.tensors), _direction(query.tensors)
        along = _along(_derivatives(query.energy(leaves), leaves, create_graph=True), direction)
        up, down = _moved(query.tensors, direction)
        slope = (query.energy(up) - query.energy(down)) / (2 * _STEP)
        expect_close(f"derivative of {query.name}", along, slope, 1e-6)
        slopes = [_derivatives(query.energy(moved), moved) for moved in (_leaves(up), _leaves(down))]
        for name, second in _derivatives(along, leaves).items():
            expected = (slopes[0][name] - slopes[1][name]) / (2 * _STEP)
            expect_close(f"second derivative of {query.name}, {name}", second, expected, 1e-5)


def single_parameter(case: DistributionCase) -> None:
    """If only one parameter requires a gradient, or ``torch.func`` takes it, derivatives are the same (float64)."""
    for query in _joined(case):
        together = _leaves(query.tensors)
        gradients = _derivatives(query.energy(together), together, create_graph=True)
        for name, tensor in query.tensors.items():
            what = f"{query.name}, {name} alone"
            direction, alone = _direction({name: tensor}), _leaves({name: tensor})
            found = _derivatives(query.energy(query.replacing(name, alone[name])), alone, create_graph=True)
            expect_close(f"derivative of {what}", found[name], gradients[name], 1e-8)
            second = _derivatives(_along(found, direction), alone)[name]
            expected = _derivatives(_along(gradients, direction), together)[name]
            expect_close(f"second derivative of {what}", second, expected, 1e-8)
            _check_transforms(query, name, gradients[name])


def _check_transforms(query: _Query, name: str, expected: Tensor) -> None:
    def energy(tensor: Tensor) -> Tensor:
        return query.energy(query.replacing(name, tensor))

    def compute(tensor: Tensor) -> Tensor:
        return query.compute(query.replacing(name, tensor))

    tensor = query.tensors[name]
    expect_close(f"torch.func.grad of {query.name}, {name} alone", torch.func.grad(energy)(tensor), expected, 1e-8)
    result, jacobian = compute(tensor), torch.func.jacrev(compute)(tensor)
    found = torch.tensordot(_weights(result) + result, jacobian, 1)
    expect_close(f"torch.func.jacrev of {query.name}, {name} alone", found, expected, 1e-8)


def impossible_evidence(case: DistributionCase) -> None:
    """Where evidence of probability zero is masked out, derivatives are finite and right (float64)."""
    distribution = case.make()
    tensors = _differentiable(distribution)
    if torch.finfo(case.dtype).bits < 64:
        return
    for label, score in _scores(distribution):
        total = partial(_masked_total, distribution, score)
        leaves, direction = _leaves(tensors), _direction(tensors)
        gradients = _derivatives(total(leaves), leaves)
        for name, found in gradients.items():
            expect(found.isfinite().all(), f"derivative of {label} along {name}: expected finite numbers, got {found}")
        up, down = (total(moved) for moved in _moved(tensors, direction))
        expect_close(f"derivative of {label}", _along(gradients, direction), (up - down) / (2 * _STEP), 1e-6)


def _masked_total(distribution: Any, score: Callable[[Any], Tensor], changed: _Tensors) -> Tensor:
    result = score(rebuild(distribution, changed, validate_args=False))
    return (_weights(result) * result.masked_fill(result == -torch.inf, 0.0)).sum() / result.numel()


def _scores(distribution: Any) -> Iterator[tuple[str, Callable[[Any], Tensor]]]:
    """Log-probabilities of values and of partial evidence, possible and impossible."""
    value = distribution.sample()
    beyond = torch.stack([value, value + 1000, -1 - value])
    evidence = distribution.enumerate_support() if distribution.has_enumerate_support else beyond
    values = torch.cat([evidence, beyond])
    yield "log_prob of possible and impossible values", lambda d: d.log_prob(values)
    if not distribution.event_shape:
        return
    size = distribution.event_shape.numel()
    patterns = [[True] * size, [d < size - 1 for d in range(size)], [d == 0 for d in range(size)]]
    ones = (1,) * (value.dim() - event_rank(distribution) + 1)
    observed = torch.tensor(patterns, device=value.device).reshape(-1, *ones, *distribution.event_shape)
    if hasattr(distribution, "marginal_log_prob"):
        yield "marginal_log_prob", lambda d: d.marginal_log_prob(evidence, observed)
    if bool(distribution.support.check(torch.full_like(value, torch.nan, dtype=torch.float64)).all()):
        holes = values.masked_fill(~observed, torch.nan)
        yield "log_prob of values with NaN", lambda d: d.log_prob(holes)


def impossible_rows(case: DistributionCase) -> None:
    """Where evidence contradicts itself, ``marginal_log_prob`` is -inf in its rows only, and queries name these."""
    distribution = case.make()
    if not (distribution.event_shape and hasattr(distribution, "condition")):
        return
    value = distribution.sample().expand(NUM_ROWS, *case.batch_shape, *distribution.event_shape)
    others = distribution.sample((200,))
    different = (others != value[0]).flatten(1 + len(case.batch_shape)).any(-1)
    if not different.any():
        return
    observed = torch.ones(distribution.event_shape, dtype=torch.bool, device=value.device)
    try:
        given = distribution.condition(value, observed)
    except NotImplementedError:
        return
    chosen = different.float().argmax(0)
    impossible_value = others.gather(
        0, chosen.reshape(1, *chosen.shape, *(1,) * event_rank(distribution)).expand_as(value[:1])
    )
    odd = (torch.arange(NUM_ROWS, device=value.device) != 1).reshape(-1, *(1,) * len(case.batch_shape))
    odd = odd & different.any(0)
    again = torch.where(odd.reshape(odd.shape + (1,) * event_rank(distribution)), impossible_value, value)
    log_probs = given.marginal_log_prob(again, observed)
    impossible = (log_probs == -torch.inf).expand(odd.shape)
    expect((impossible == odd).all(), f"marginal_log_prob: expected -inf in rows {odd.nonzero()}, got {log_probs}")
    expected = ", ".join(str(tuple(row) if len(row) > 1 else row[0]) for row in odd.nonzero()[:10].tolist())
    conditioned = given.condition(again, observed)
    for name in ("log_partition_function", "marginals", "marginal_logits", "mode", "entropy", "sample"):
        try:
            optional_query(conditioned, name)
        except ValueError as error:
            expect(f"rows {expected} and " in str(error), f"{name}: expected rows {expected} and so on, got: {error}")
        else:
            expect(
                optional_query(given, name) is None, f"{name}: expected an error that names rows {expected}, got none"
            )


QUERY_CHECKS = (
    count_marginals,
    marginal_logits,
    conjugate_update,
    independent_evidence,
    query_gradient,
    single_parameter,
    impossible_evidence,
    impossible_rows,
)
