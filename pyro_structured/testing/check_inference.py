"""Sites in Pyro models: plates, enumeration, masks, prediction, and Hamiltonian Monte Carlo."""

__all__ = ["INFERENCE_CHECKS"]

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import MCMC, NUTS, Predictive, TraceEnum_ELBO, config_enumerate
from pyro.infer.inspect import get_dependencies
from pyro.infer.mcmc.util import initialize_model
from torch import Tensor

from pyro_structured.testing.distribution_case import DistributionCase, nudge, substitute
from pyro_structured.testing.expectation import expect, expect_close, expect_shape
from pyro_structured.testing.support_table import SupportTable, flat_events


@contextlib.contextmanager
def _plates(shape: tuple[int, ...]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for axis, size in enumerate(reversed(shape)):
            stack.enter_context(pyro.plate(f"plate_{axis}", size, dim=-1 - axis))
        yield


def _level(value: Tensor, case: DistributionCase, distribution: Any) -> Tensor:
    """Weighted sums of all entries of values, without the event axes."""
    events = flat_events(distribution, value)
    weights = torch.linspace(0.5, 1.5, events.shape[-1], dtype=events.dtype, device=events.device)
    return (events * weights).sum(-1).to(case.dtype)


def _model(case: DistributionCase, data: Tensor | None = None, noisy: Tensor | None = None) -> Callable[[], Tensor]:
    """A site whose parameters are shifted by a latent number, observed as ``data``, or through noise, or not at all."""
    distribution = case.make()

    def model() -> Tensor:
        shift = pyro.sample("shift", _standard(case))
        shifted = substitute(distribution, lambda p: nudge(p, shift))
        with _plates(case.batch_shape):
            value: Tensor = pyro.sample("value", shifted, obs=data)
            if noisy is not None:
                pyro.sample("noisy", dist.Normal(_level(value, case, distribution), 1.0), obs=noisy)
        return value

    return model


def _standard(case: DistributionCase) -> Any:
    return dist.Normal(torch.zeros((), dtype=case.dtype, device=case.device), 1.0)


def plates(case: DistributionCase) -> None:
    """In a plate, which expands the distribution, a site keeps its class."""
    distribution = case.make()
    outer = (2, *case.batch_shape)

    def model() -> None:
        with _plates(outer):
            pyro.sample("value", distribution)

    site: Any = pyro.poutine.trace(model).get_trace().nodes["value"]
    kept = type(site["fn"]) is type(distribution)
    expect(kept, f"plate: expected a site of class {type(distribution).__name__}, got {type(site['fn']).__name__}")
    expect_shape("plate: value", site["value"], (*outer, *distribution.event_shape))
    expect_shape("plate: log_prob", site["fn"].log_prob(site["value"]), outer)


def mask(case: DistributionCase) -> None:
    """``mask`` switches elements of the batch off."""
    distribution = case.make()
    value = distribution.sample()
    chosen = (torch.arange(torch.Size(case.batch_shape).numel(), device=value.device) % 2 == 0).reshape(
        case.batch_shape
    )
    expected = distribution.log_prob(value) * chosen
    expect_close("mask(...).log_prob", distribution.mask(chosen).log_prob(value), expected, case.tolerance)
    expect_close("mask(False).log_prob", distribution.mask(False).log_prob(value), 0 * expected, case.tolerance)


def to_event(case: DistributionCase) -> None:
    """``to_event`` turns batch axes into event axes."""
    distribution = case.make()
    value = distribution.sample((3,))
    for rank in range(1, len(case.batch_shape) + 1):
        joined = distribution.to_event(rank)
        expected = distribution.log_prob(value).flatten(-rank).sum(-1)
        expect_close(f"to_event({rank}).log_prob", joined.log_prob(value), expected, 10 * case.tolerance)
        shape = (*case.batch_shape, *distribution.event_shape)
        expect_shape(f"to_event({rank}).sample()", joined.sample(), shape)
        again = joined.expand((2, *joined.batch_shape))
        expect_shape(f"to_event({rank}).expand(...).sample()", again.sample(), (2, *shape))


def predictive(case: DistributionCase) -> None:
    """``Predictive`` draws in parallel, from the prior and given posterior samples."""
    distribution = case.make()
    model = _model(case)
    shape = (5, *case.batch_shape, *distribution.event_shape)
    shifts = torch.linspace(-1.0, 1.0, 5, dtype=case.dtype, device=case.device)
    for samples in (None, {"shift": shifts}):
        drawn = Predictive(model, posterior_samples=samples, num_samples=5, parallel=True)()
        expect_shape("Predictive(parallel=True)", drawn["value"].reshape(shape), shape)
        for shift, value in zip(drawn.get("shift", shifts), drawn["value"].reshape(shape), strict=True):
            shifted = substitute(distribution, partial(nudge, amount=shift.reshape(())))
            expect(shifted.support.check(value).all(), "Predictive: a value is not in the support")


def enumeration(case: DistributionCase) -> None:
    """``TraceEnum_ELBO`` sums a latent site out exactly, in plates."""
    distribution = case.make()
    if not distribution.has_enumerate_support:
        return
    table = SupportTable.of(distribution)
    size = torch.Size(case.batch_shape).numel()
    data = torch.linspace(-1.0, 2.0, size, dtype=case.dtype, device=case.device).reshape(case.batch_shape)

    def model() -> None:
        with _plates(case.batch_shape):
            value = pyro.sample("value", distribution)
            pyro.sample("noisy", dist.Normal(_level(value, case, distribution), 1.0), obs=data)

    expected = -_log_marginal(table, _level(table.values, case, distribution), data)
    elbo = TraceEnum_ELBO(max_plate_nesting=len(case.batch_shape))
    loss = elbo.loss(config_enumerate(model), lambda: None)
    expect_close("TraceEnum_ELBO", torch.tensor(loss), expected.cpu(), 10 * case.tolerance)
    if not case.batch_shape:
        _enumerated_guide(distribution, table, case)


def _log_marginal(table: SupportTable, level: Tensor, data: Tensor) -> Tensor:
    likelihood = dist.Normal(level, 1.0).log_prob(data)
    return torch.logsumexp(table.log_probs.double() + likelihood, 0).sum()


def _enumerated_guide(distribution: Any, table: SupportTable, case: DistributionCase) -> None:
    """A guide may enumerate its site, in parallel or one value after the other."""
    if distribution.has_rsample:
        return  # Pyro gives all values that such a site enumerates in a guide the same weight.
    prior = substitute(distribution, lambda p: nudge(p, torch.tensor(2.0)))
    impossible = table.log_probs == -torch.inf
    gap = (table.log_probs - prior.log_prob(table.values)).masked_fill(impossible, 0.0)

    def model() -> None:
        pyro.sample("value", prior)

    def guide() -> None:
        pyro.sample("value", distribution)

    for how in ("sequential", "parallel"):
        loss = TraceEnum_ELBO(max_plate_nesting=0).loss(model, config_enumerate(guide, default=how))
        name = f"TraceEnum_ELBO with a guide of {how} enumeration"
        expect_close(name, torch.tensor(loss), table.expectation(gap).cpu(), 10 * case.tolerance)


def dependencies(case: DistributionCase) -> None:
    """Pyro finds the sites on which an observed site depends, as ``render_model``, ``AutoGaussian`` and others need."""
    found: Any = get_dependencies(_model(case, data=case.make().sample()))["posterior_dependencies"]
    expect("value" in found["shift"], f"get_dependencies: expected that 'shift' matters to 'value', got {found}")


def nuts_observed(case: DistributionCase) -> None:
    """An observed site under NUTS: the potential energy is the joint density's, and the chain moves."""
    shift = _initial_shift(case)
    shifted = substitute(case.make(), lambda p: nudge(p, shift))
    data = shifted.sample()  # possible where the chain starts, also if the support moves
    expected = _standard(case).log_prob(shift) + shifted.log_prob(data).sum()
    _check_nuts("observed site", _model(case, data=data), expected, case)


def nuts_enumerated(case: DistributionCase) -> None:
    """A latent site that NUTS enumerates: the potential energy is the marginal density's, and the chain moves."""
    distribution = case.make()
    if not distribution.has_enumerate_support:
        return
    data = _level(distribution.sample(), case, distribution)
    shift = _initial_shift(case)
    table = SupportTable.of(substitute(distribution, lambda p: nudge(p, shift)))
    evidence = _log_marginal(table, _level(table.values, case, distribution), data)
    _check_nuts("enumerated site", _model(case, noisy=data), _standard(case).log_prob(shift) + evidence, case)


def _initial_shift(case: DistributionCase) -> Tensor:
    return torch.tensor(0.3, dtype=case.dtype, device=case.device)


def _check_nuts(name: str, model: Callable[[], object], expected: Tensor, case: DistributionCase) -> None:
    rank = len(case.batch_shape)
    initial = {"shift": _initial_shift(case)}
    _, potential, _, _ = initialize_model(model, max_plate_nesting=rank, initial_params=initial)
    with pyro.validation_enabled(False):  # as in MCMC.run
        energy = potential(initial).double()
    expect_close(f"NUTS, {name}: potential energy", energy, -expected.double(), 10 * case.tolerance)
    kernel = NUTS(model, step_size=0.3, adapt_step_size=False, max_tree_depth=2, max_plate_nesting=rank)
    chain = MCMC(kernel, num_samples=3, warmup_steps=1, initial_params=initial, disable_progbar=True)
    chain.run()
    drawn = chain.get_samples()["shift"]
    expect(drawn.isfinite().all(), f"NUTS, {name}: expected finite samples, got {drawn}")
    expect(len(drawn.unique()) > 1, f"NUTS, {name}: the chain did not move")


INFERENCE_CHECKS = (plates, mask, to_event, predictive, enumeration, dependencies, nuts_observed, nuts_enumerated)
