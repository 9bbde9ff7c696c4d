"""Numbers: normalisation, samplers, moments and conditional distributions, against enumeration where it is possible."""

__all__ = ["PROBABILITY_CHECKS"]

import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.distributions import constraints, kl_divergence

from pyro_structured.foundation.distributions.independent_parts import entry_constraint
from pyro_structured.testing.distribution_case import (
    DistributionCase,
    log_prob_refusal,
    narrow,
    nudge,
    optional_query,
    substitute,
)
from pyro_structured.testing.expectation import expect, expect_close, expect_raises, expect_shape
from pyro_structured.testing.goodness_of_fit import density_goodness_of_fit, discrete_goodness_of_fit
from pyro_structured.testing.standard_errors import FAILURE_RATE
from pyro_structured.testing.support_table import SupportTable, event_rank, flat_events

NUM_SAMPLES = 2000
# The test by nearest neighbours is approximate: too small p-values are too frequent in three dimensions.
VECTOR_FAILURE_RATE = 1e-10


def normalisation(case: DistributionCase) -> None:
    """The probabilities of all values add up to 1."""
    distribution = case.make()
    if distribution.has_enumerate_support:
        table = SupportTable.of(distribution).log_probs
        expect(not table.isnan().any(), "log_prob: NaN for a value in the support")
        log_total = torch.logsumexp(table.double(), 0)
        expect_close("log of the sum of all probabilities", log_total, torch.zeros_like(log_total), case.tolerance)


def _impossible(distribution: Any) -> Iterator[tuple[str, Tensor]]:
    """Values outside the support; each only if there are such values."""
    value = distribution.sample()
    candidates = {"samples + 0.5": value + 0.5, "-1 - samples": -1 - value, "samples + 1000": value + 1000}
    if distribution.support.is_discrete:
        candidates["NaN"] = torch.full_like(value, torch.nan, dtype=torch.float64)
        candidates["+inf"] = torch.full_like(value, torch.inf, dtype=torch.float64)
    for name, candidate in candidates.items():
        if not bool(distribution.support.check(candidate).any()):
            yield name, candidate


def refused_log_prob(case: DistributionCase) -> None:
    """Where ``log_prob`` is not implemented, the error names an alternative."""
    refusal = log_prob_refusal(case.make())
    if refusal is not None:
        says = re.search(r"\b(use|instead)\b", refusal)
        expect(says, f"log_prob: expected an error that says what to use instead, got {refusal!r}")


def out_of_support(case: DistributionCase) -> None:
    """Values outside the support raise when validating, and have log-probability -inf otherwise."""
    strict = substitute(case.make(), lambda p: p.tensor, validate_args=True)
    lenient = substitute(case.make(), lambda p: p.tensor, validate_args=False)
    for name, value in _impossible(strict):
        expect_raises(f"log_prob of {name}, validating,", (ValueError,), partial(strict.log_prob, value))
        expected = torch.full(case.batch_shape, -torch.inf)
        expect_close(f"log_prob of {name}, not validating", lenient.log_prob(value), expected, 0.0)
    too_long = torch.zeros((*case.batch_shape, *(size + 1 for size in strict.event_shape)))
    if strict.event_shape:
        expect_raises("log_prob of too long a value, validating,", (ValueError,), partial(strict.log_prob, too_long))


def sampler(case: DistributionCase) -> None:
    """Samples follow ``log_prob``, also along sample axes and expanded batch axes, which must not be copies."""
    distribution = case.make()
    # Tests by nearest neighbours of continuous vectors need more samples.
    size = NUM_SAMPLES if distribution.support.is_discrete else 1000 * (1 + distribution.event_shape.numel())
    _fits(distribution, distribution.sample((size,)), "sample")
    _fits(distribution, distribution.expand((size, *case.batch_shape)).sample(), "expand(...).sample")
    if case.batch_shape:
        inside = narrow(distribution).expand((*case.batch_shape[:-1], 3))
        _fits(inside, inside.sample((size,)), "sample after expanding an axis of 1")
    _independent(distribution)


def _fits(distribution: Any, samples: Tensor, name: str) -> None:
    if not distribution.has_enumerate_support:
        if distribution.support.is_discrete:
            return _fits_mean(distribution, samples, name)
        return _fits_density(distribution, samples, name)
    table = SupportTable.of(distribution)
    rows = table.find(samples)
    expect((rows >= 0).all(), f"{name}: a value is not one of enumerate_support()")
    rows, probs = rows.reshape(len(rows), -1), table.probs.reshape(len(table.probs), -1)
    for element in range(rows.shape[1]):
        counts = torch.bincount(rows[:, element], minlength=len(probs))
        _expect_fit(f"{name}, batch element {element}", discrete_goodness_of_fit(probs[:, element], counts))


def _fits_density(distribution: Any, samples: Tensor, name: str) -> None:
    densities = distribution.log_prob(samples).exp().reshape(len(samples), -1)
    values = samples.reshape((len(samples), -1, *distribution.event_shape))
    rate = VECTOR_FAILURE_RATE if distribution.event_shape.numel() > 1 else FAILURE_RATE
    for element in range(values.shape[1]):
        p_value = density_goodness_of_fit(values[:, element], densities[:, element])
        _expect_fit(f"{name}, batch element {element}", p_value, rate)
    if entry_constraint(distribution.support) is constraints.real:
        _satisfies_stein(distribution, samples, name)


def _satisfies_stein(distribution: Any, samples: Tensor, name: str) -> None:
    r"""Stein's identities: the score s has :math:`E[s_j] = 0` and :math:`E[v_j s_j] = -1` if the samples follow it."""
    values = samples.detach().requires_grad_()
    (score,) = torch.autograd.grad(distribution.log_prob(values).sum(), values)
    for what, residual in (("score", score), ("product of value and score, and 1,", samples * score + 1)):
        residual = residual.double()
        allowed = 6 * residual.std(0) / len(samples) ** 0.5 + 1e-6
        expect((residual.mean(0).abs() <= allowed).all(), f"{name}: expected the mean {what} to vanish")


def _expect_fit(name: str, p_value: float, rate: float = FAILURE_RATE) -> None:
    expect(p_value > rate, f"{name}: expected draws that follow log_prob, but the p-value of that is {p_value:.3g}")


def _fits_mean(distribution: Any, samples: Tensor, name: str) -> None:
    """For values too many to enumerate: the mean lies within six standard errors; that of other draws if need be."""
    mean, variance = optional_query(distribution, "mean"), optional_query(distribution, "variance")
    if mean is None or variance is None:
        others = distribution.sample((len(samples),)).double()
        mean, variance = others.mean(0), others.var(0) + samples.double().var(0)
    error = (samples.double().mean(0) - mean).abs()
    expect((error <= 6 * (variance / len(samples)).sqrt() + 1e-6).all(), f"{name}: expected a mean of {mean}")


def _independent(distribution: Any) -> None:
    """Neighbours along all axes of the batch are drawn independently: their covariance vanishes."""
    values = flat_events(distribution, distribution.sample((NUM_SAMPLES,)))
    centred = values - values.mean(0)
    spread = centred.square().mean(0).sqrt()
    for axis in range(len(distribution.batch_shape)):
        along, scale = centred.movedim(axis + 1, 1), spread.movedim(axis, 0)
        covariance = (along[:, 1:] * along[:, :-1]).mean(0)
        allowed = 6 * scale[1:] * scale[:-1] / NUM_SAMPLES**0.5 + 1e-6
        expect((covariance.abs() <= allowed).all(), "sample: neighbouring batch elements are correlated")


def moments(case: DistributionCase) -> None:
    """Mean, variance, marginals, mode and entropy, where there are any, equal the enumerated ones."""
    distribution = case.make()
    shape = (*case.batch_shape, *distribution.event_shape)
    results = {
        name: optional_query(distribution, name)
        for name in ("mean", "variance", "stddev", "mode", "entropy", "marginals")
    }
    for name, result in results.items():
        if result is not None:
            expected_shape = case.batch_shape if name == "entropy" else shape
            if name == "marginals" and not distribution.sample().is_floating_point():
                expected_shape = (*shape, _num_categories(distribution))
            expect_shape(name, result, expected_shape)
            dtype = distribution.sample().dtype if name == "mode" else case.dtype
            expect(result.dtype == dtype, f"{name}: expected {dtype}, got {result.dtype}")
    if not distribution.has_enumerate_support:
        _sampled_moments(distribution, results)
        return
    table = SupportTable.of(distribution)
    mean = table.expectation(table.values)
    variance = table.expectation((table.values - mean).square())
    entropy = -table.expectation(table.log_probs.masked_fill(table.log_probs == -torch.inf, 0.0))
    is_binary = bool(((table.values == 0) | (table.values == 1)).all())
    references = {"mean": mean, "variance": variance, "stddev": variance.sqrt(), "entropy": entropy}
    if results["marginals"] is not None and not distribution.sample().is_floating_point():
        categories = torch.arange(_num_categories(distribution), device=table.values.device)
        references["marginals"] = table.expectation((table.values.unsqueeze(-1) == categories).double())
    elif is_binary and event_rank(distribution):
        references["marginals"] = mean
    for name, expected in references.items():
        if results[name] is not None:
            expect_close(name, results[name].double(), expected, 10 * case.tolerance)
    if results["mode"] is not None:
        best = distribution.log_prob(results["mode"])
        expect_close("log_prob(mode)", best, table.log_probs.amax(0), case.tolerance)


def _num_categories(distribution: Any) -> int:
    """Number of values of an integer entry: that of its support, the largest of all entries."""
    return int(torch.as_tensor(entry_constraint(distribution.support).upper_bound).max()) + 1


def _sampled_moments(distribution: Any, found: dict[str, Any]) -> None:
    """Six standard errors are allowed; values are taken to be no heavier than a Laplace distribution in their tails."""
    samples = distribution.sample((NUM_SAMPLES,)).double()
    if found["mean"] is not None and found["variance"] is not None:
        mean, variance = found["mean"].double(), found["variance"].double()
        error = 6 * (variance / NUM_SAMPLES).sqrt()
        expect(((samples.mean(0) - mean).abs() <= error).all(), f"mean: expected {samples.mean(0)}, got {mean}")
        ratio = samples.var(0) / variance - 1
        expect(
            (ratio.abs() <= 6 * (5 / NUM_SAMPLES) ** 0.5).all(), f"variance: expected {samples.var(0)}, got {variance}"
        )


def cumulative(case: DistributionCase) -> None:
    """``cdf``, ``log_cdf``, ``log_survival`` (of larger values) and ``icdf`` of a count equal the enumerated ones."""
    distribution = case.make()
    if event_rank(distribution) or not distribution.has_enumerate_support:
        return
    table = SupportTable.of(distribution)
    below = table.probs.cumsum(0)
    above = table.probs.flip(0).cumsum(0).flip(0) - table.probs
    for name, expected in (("cdf", below), ("log_cdf", below.log()), ("log_survival", above.log())):
        query = getattr(distribution, name, None)
        try:
            result = None if query is None else query(table.values)
        except NotImplementedError:
            continue
        if result is not None:
            certain = expected > -20.0
            result = result.double()
            expect_shape(f"{name} of all values", result, tuple(expected.shape))
            expect_close(
                name, result.masked_fill(~certain, 0.0), expected.masked_fill(~certain, 0.0), 10 * case.tolerance
            )
            expect(
                (result[~certain] <= -20.0 + case.tolerance).all(), f"{name}: expected less than -20 where that rare"
            )
    _check_icdf(distribution, table, below)


def _check_icdf(distribution: Any, table: SupportTable, below: Tensor) -> None:
    levels = torch.tensor([0.001, 0.3, 0.5, 0.9, 0.999], dtype=below.dtype, device=below.device)
    levels = levels.reshape((-1,) + (1,) * (below.dim() - 1))
    try:
        result = distribution.icdf(levels.to(distribution.mean.dtype))
    except NotImplementedError:
        return
    row = (below.unsqueeze(1) < levels - 1e-6).sum(0)
    expect_close("icdf", result, table.values.reshape(-1)[row], 0.0)


def conditional(case: DistributionCase) -> None:
    """``condition`` and ``marginal_log_prob``, unless refused, equal the enumerated results, and each other."""
    distribution = case.make()
    if not (hasattr(distribution, "condition") and distribution.has_enumerate_support):
        return
    table = SupportTable.of(distribution)
    shape = distribution.event_shape
    size, axes = shape.numel(), tuple(range(-len(shape), 0))
    value = distribution.sample((2,))
    try:
        distribution.condition(value, torch.zeros(shape, dtype=torch.bool, device=value.device))
    except NotImplementedError:
        return
    for pattern in (
        [False] * size,
        [d % 2 == 0 for d in range(size)],
        [d == size - 1 for d in range(size)],
        [True] * size,
    ):
        observed = torch.tensor(pattern, device=value.device).reshape(shape)
        agrees = ((table.values.unsqueeze(1) == value) | ~observed).all(axes)
        joint = table.log_probs.double().unsqueeze(1).masked_fill(~agrees, -torch.inf)
        evidence = torch.logsumexp(joint, 0)
        given = distribution.condition(value, observed)
        name = f"condition on observed={pattern}"
        expect_shape(f"{name}: batch_shape", torch.empty(given.batch_shape), (2, *case.batch_shape))
        expect_shape(f"{name}: event_shape", torch.empty(given.event_shape), distribution.event_shape)
        values = table.values.unsqueeze(1)
        expect_close(
            f"{name}: log_prob", given.log_prob(values), (joint - evidence).to(case.dtype), 10 * case.tolerance
        )
        sampled = given.sample((5,))
        expect(((sampled == value) | ~observed).all(), f"{name}: a sample contradicts the observed entries")
        result = distribution.marginal_log_prob(value, observed)
        expect_close(f"marginal_log_prob, observed={pattern}", result, evidence.to(case.dtype), 10 * case.tolerance)
        if hasattr(distribution, "log_partition_function"):
            gain = given.log_partition_function - distribution.log_partition_function
            expect_close(f"{name}: gain of log_partition_function", gain, result, 10 * case.tolerance)


def divergence(case: DistributionCase) -> None:
    """The registered Kullback-Leibler divergence, if any, equals the enumerated one."""
    distribution = case.make()
    other = substitute(distribution, lambda p: nudge(p, torch.tensor(2.0)))
    try:
        result = kl_divergence(distribution, other)
        zero = kl_divergence(distribution, distribution)
    except NotImplementedError:
        return
    expect_close("divergence from itself", zero, torch.zeros_like(zero), 10 * case.tolerance)
    expect_shape("kl_divergence", result, case.batch_shape)
    if distribution.has_enumerate_support:
        table = SupportTable.of(distribution)
        gap = (table.log_probs - other.log_prob(table.values)).masked_fill(table.log_probs == -torch.inf, 0.0)
        expect_close("kl_divergence", result.double(), table.expectation(gap), 10 * case.tolerance)


PROBABILITY_CHECKS = (
    normalisation,
    refused_log_prob,
    out_of_support,
    sampler,
    moments,
    cumulative,
    conditional,
    divergence,
)
