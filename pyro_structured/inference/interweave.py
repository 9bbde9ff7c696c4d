"""Joint moves of parameters and of the costs that depend on them."""

__all__ = ["Interweave"]

from collections.abc import Callable
from typing import Any

import torch
from pyro import poutine
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.distributions import biject_to

from pyro_structured.inference.cost_noise import costs_from_noise, noise_of_costs
from pyro_structured.inference.cost_sites import find_cost_sites
from pyro_structured.inference.step_kernel import StepKernel
from pyro_structured.ops.slice_sampling import slice_sample

# Relative deviation from a straight line that rounding in single precision explains.
STRAIGHT = {torch.float32: 1e-4, torch.float64: 1e-9}


class Interweave(StepKernel):
    r"""Moves parameters and costs together, with the noise in the costs held fixed.

    Costs :math:`w = \mu(\psi) + \sigma(\psi) \epsilon` tie the parameters :math:`\psi` down: given the costs of many
    rows, a chain that updates one after the other hardly moves. Given the noise :math:`\epsilon`, parameters can go as
    far as all costs stay in their inverse sets. Alternating both ways mixes well (ancillarity-sufficiency interweaving).

    Each step moves along random directions in the unconstrained parameters. Where the costs are linear along a
    direction, the feasible interval is found exactly by ray shooting; elsewhere, a shrinking slice asks whether costs
    are inside. The model is run for each density.

    :param model: A Pyro model.
    :param int num_directions: Directions for each step, tried one after the other.
    :raises ValueError: at the start of a run, if costs are neither normal nor have quantiles in closed form.

    It owns no sites: other kernels have to update costs and parameters too.

    **References**

    Yu, Meng (2011): To center or not to center: that is not the question - an ancillarity-sufficiency interweaving
    strategy (ASIS) for boosting MCMC efficiency. JCGS 20(3).

    Example::

        >>> import pyro
        >>> import pyro.distributions as dist
        >>> from pyro.infer import MCMC, NUTS
        >>> from pyro_structured.distributions import RandOM
        >>> from pyro_structured.inference import ConstrainedSlice, Gibbs
        >>> from pyro_structured.structures.matching import Matching
        >>> def model(y):
        ...     psi = pyro.sample("psi", dist.Normal(0.0, 1.0))
        ...     pyro.sample("y", RandOM(dist.Normal(psi * torch.eye(2), 1.0).to_event(2), Matching(2)), obs=y)
        >>> kernel = Gibbs([(ConstrainedSlice(model), ["y_costs"]), (Interweave(model), None), (NUTS(model), ["psi"])])
        >>> MCMC(kernel, num_samples=2, warmup_steps=2, disable_progbar=True).run(torch.tensor([1, 0]))
    """

    owns_sites = False
    moves_costs = True

    def __init__(self, model: Callable[..., Any], num_directions: int = 2) -> None:
        super().__init__(model)
        if isinstance(num_directions, bool) or not isinstance(num_directions, int) or num_directions < 1:
            raise ValueError(f"num_directions: expected an integer of at least 1, got {num_directions!r}")
        self.num_directions = num_directions

    def prepare(self, model: Callable[..., Any], names: list[str], warmup_steps: int, args: Any, kwargs: Any) -> None:
        """Starts a chain."""
        self._model, self._args, self._kwargs = model, args, kwargs
        trace = poutine.trace(model).get_trace(*args, **kwargs)
        self._sites = find_cost_sites(trace)
        costs = {site.costs for site in self._sites}
        self._transforms = {
            name: biject_to(trace.nodes[name]["fn"].support)
            for name in names
            if name not in costs and not trace.nodes[name]["fn"].support.is_discrete
        }
        for site in self._sites:
            node = trace.nodes[site.costs]
            try:
                noise_of_costs(node["fn"], node["value"])
            except NotImplementedError as error:
                raise ValueError(f"{site.costs}: {error}; leave Interweave out") from None
        self._spread = _Spread(warmup_steps)
        self._num_straight = self._num_bent = self._num_stuck = 0

    def step(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        """Some directions, one after the other."""
        values = dict(values)
        if not self._transforms or not self._sites:
            return values
        free = {name: transform.inv(values[name]) for name, transform in self._transforms.items()}
        for _ in range(self.num_directions):
            free = self._move(values, free)
        self._spread.add(free)
        return values

    def _move(self, values: dict[str, Tensor], free: dict[str, Tensor]) -> dict[str, Tensor]:
        """Changes the values along one direction, and returns the unconstrained ones."""
        line = _Line(self, values, free, self._spread.direction(free))
        low, high = line.interval()
        if line.is_straight:
            self._num_straight += 1
        else:
            self._num_bent += 1
        zero = torch.zeros((), dtype=torch.double)
        distance, stuck = slice_sample(line.log_density, zero, low, high, torch.ones_like(zero))
        self._num_stuck += int(stuck)
        moved = line.at(float(distance))
        if moved.feasible():
            values.update(moved.values)
            return moved.free
        self._num_stuck += 1  # rounding, at the end of an interval
        return free

    def report(self) -> dict[str, Any]:
        """How many moves had an exact interval, how many asked for membership, and how many failed."""
        return {
            "straight moves": self._num_straight,
            "bent moves": self._num_bent,
            "stuck moves": self._num_stuck,
        }


class _Spread:
    """Standard deviations of unconstrained parameters, learned while the chain warms up."""

    def __init__(self, warmup_steps: int) -> None:
        self._left, self._number = warmup_steps, 0
        self._mean: dict[str, Tensor] = {}
        self._squares: dict[str, Tensor] = {}

    def add(self, free: dict[str, Tensor]) -> None:
        """Welford's recurrence, until the warm-up ends."""
        if not self._left:
            return
        self._left -= 1
        self._number += 1
        for name, value in free.items():
            change = value - self._mean.get(name, torch.zeros_like(value))
            self._mean[name] = self._mean.get(name, torch.zeros_like(value)) + change / self._number
            more = change * (value - self._mean[name])
            self._squares[name] = self._squares.get(name, torch.zeros_like(value)) + more

    def direction(self, free: dict[str, Tensor]) -> dict[str, Tensor]:
        """A normal direction with these standard deviations; 1 as long as there are none."""
        found = {}
        for name, value in free.items():
            scale = torch.ones_like(value)
            if self._number > 10:
                deviation = (self._squares[name] / self._number).sqrt()
                scale = torch.where(deviation > 0, deviation, scale)
            found[name] = torch.randn_like(value) * scale
        return found


class _Point:
    """Parameters at some place of a line, and the costs that belong to them."""

    def __init__(self, kernel: Any, free: dict[str, Tensor], noise: dict[str, Tensor]) -> None:
        self.free, self._kernel = free, kernel
        self.values = {name: transform(free[name]) for name, transform in kernel._transforms.items()}
        model = poutine.condition(kernel._model, data=self.values)
        with _Costs(noise) as costs:
            self.trace = poutine.trace(model).get_trace(*kernel._args, **kernel._kwargs)
        self.values.update(costs.exact)
        self.costs = costs.exact

    def log_density(self) -> float:
        """Of the parameters and of all that is observed, but not of noise and optima."""
        kernel = self._kernel
        hidden = {name for site in kernel._sites for name in site}
        self.trace.compute_log_prob(lambda name, _: name not in hidden)
        total = sum(float(node["log_prob_sum"]) for node in self.trace.nodes.values() if "log_prob_sum" in node)
        for name, transform in kernel._transforms.items():
            total += float(transform.log_abs_det_jacobian(self.free[name], self.values[name]).sum())
        return total

    def feasible(self) -> bool:
        """Whether all costs are in their inverse sets."""
        for site in self._kernel._sites:
            node = self.trace.nodes[site.optimum]
            if not bool(node["fn"].problem.contains(self.costs[site.costs], node["value"]).all()):
                return False
        return True


class _Line:
    """Where a direction leads."""

    def __init__(
        self, kernel: Any, values: dict[str, Tensor], free: dict[str, Tensor], direction: dict[str, Tensor]
    ) -> None:
        self._kernel, self._free, self._direction = kernel, free, direction
        here = poutine.trace(poutine.condition(kernel._model, data=values)).get_trace(*kernel._args, **kernel._kwargs)
        self._noise = {
            site.costs: noise_of_costs(here.nodes[site.costs]["fn"], values[site.costs]) for site in kernel._sites
        }
        self._origin = {site.costs: values[site.costs] for site in kernel._sites}
        self.is_straight = False

    def at(self, distance: float) -> _Point:
        """The point at a distance."""
        free = {name: value + distance * self._direction[name] for name, value in self._free.items()}
        return _Point(self._kernel, free, self._noise)

    def interval(self) -> tuple[Tensor, Tensor]:
        """Exact ends of the feasible interval if costs are linear along the line, infinite otherwise."""
        low, high = torch.tensor(-torch.inf, dtype=torch.double), torch.tensor(torch.inf, dtype=torch.double)
        ahead, behind = self.at(1.0), self.at(-1.0)
        ends = []
        for site in self._kernel._sites:
            node = ahead.trace.nodes[site.optimum]
            problem, origin = node["fn"].problem, self._origin[site.costs]
            change, back = ahead.costs[site.costs] - origin, origin - behind.costs[site.costs]
            tolerance = STRAIGHT[torch.float64 if node["fn"].costs.dtype == torch.float64 else torch.float32]
            if not problem.is_linear or not torch.allclose(change, back, rtol=tolerance, atol=tolerance * _size(change)):
                return low, high
            ends.append((problem, origin, node["value"], change))
        for problem, origin, value, change in ends:
            if not bool(change.any()):
                continue
            first, last = problem.chord(origin, value, change)
            low, high = torch.maximum(low, first.max()), torch.minimum(high, last.min())
        self.is_straight = True
        return low.clamp(max=0), high.clamp(min=0)

    def log_density(self, distance: Tensor) -> Tensor:
        """-inf where costs are outside."""
        point = self.at(float(distance))
        if not self.is_straight and not point.feasible():
            return torch.tensor(-torch.inf, dtype=torch.double)
        return torch.tensor(point.log_density(), dtype=torch.double)


def _size(change: Tensor) -> float:
    return float(change.abs().max()) if change.numel() else 0.0


class _Costs(Messenger):  # type: ignore[misc]
    """Gives cost sites the values that belong to their noise."""

    def __init__(self, noise: dict[str, Tensor]) -> None:
        super().__init__()
        self._noise = noise
        self.exact: dict[str, Tensor] = {}

    def _pyro_sample(self, msg: Any) -> None:
        if msg["name"] in self._noise:
            costs = costs_from_noise(msg["fn"], self._noise[msg["name"]]).detach()
            self.exact[msg["name"]] = costs
            msg["value"] = costs.to(_dtype_of(msg["fn"]))
            msg["is_observed"] = msg["done"] = True


def _dtype_of(base: Any) -> torch.dtype:
    with torch.random.fork_rng(devices=[]):
        found: torch.dtype = base.sample().dtype
    return found
