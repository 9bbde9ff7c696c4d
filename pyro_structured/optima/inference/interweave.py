"""Joint moves of parameters and of the costs that depend on them."""

__all__ = ["Interweave", "ParameterSpread"]

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from pyro import poutine
from torch import Tensor
from torch.distributions import biject_to

from pyro_structured.foundation.inference.gibbs import StepKernel
from pyro_structured.foundation.structures.argument_checks import check_size
from pyro_structured.optima.inference.collapsed_move import CollapsedMove, is_normal
from pyro_structured.optima.inference.cost_dependents import find_dependents
from pyro_structured.optima.inference.cost_sites import find_cost_sites
from pyro_structured.optima.inference.noncentered_costs import has_noise
from pyro_structured.optima.inference.parameter_line import ParameterLine, Setting, StraightLocations
from pyro_structured.optima.ops.slice_sampling import slice_sample

# Fewer values are not enough for a standard deviation.
ENOUGH = 10


class ParameterSpread:
    """Standard deviations of unconstrained parameters, learned while the chain warms up and kept afterwards.

    :param int warmup_steps: Number of values to learn from.
    """

    def __init__(self, warmup_steps: int) -> None:
        self._left, self._number = warmup_steps, 0
        self._mean: dict[str, Tensor] = {}
        self._squares: dict[str, Tensor] = {}

    def add(self, free: dict[str, Tensor]) -> None:
        """Updates means and squares by Welford's recurrence, until the warm-up ends."""
        if not self._left:
            return
        self._left -= 1
        self._number += 1
        for name, value in free.items():
            mean = self._mean.get(name, torch.zeros_like(value))
            self._mean[name] = mean + (value - mean) / self._number
            more = (value - mean) * (value - self._mean[name])
            self._squares[name] = self._squares.get(name, torch.zeros_like(value)) + more

    def direction(self, free: dict[str, Tensor]) -> dict[str, Tensor]:
        """A normal direction with the learned standard deviations; with 1 as long as they are unknown."""
        direction = {}
        for name, value in free.items():
            scale = torch.ones_like(value)
            if self._number > ENOUGH:
                deviation = (self._squares[name] / self._number).sqrt()
                scale = torch.where(deviation > 0, deviation, scale)
            direction[name] = torch.randn_like(value) * scale
        return direction


# Number of draws of the parameters with which problems are compared.
NUM_DRAWS = 10
# Length of a slice's first interval, in standard deviations of the parameters.
WIDTH = 2.0
# Moves look at intervals of 1 to 16 such lengths: short ones do not reach kinks, long ones lead far.
OCTAVES = 4


class Interweave(StepKernel):
    r"""Moves parameters and costs together, with the noise in the costs held fixed.

    Costs :math:`w = \mu(\psi) + \sigma(\psi) \epsilon` tie the parameters :math:`\psi` down: given the costs of many
    rows, a chain that updates one after the other hardly moves. Given the noise :math:`\epsilon`, parameters can go as
    far as all costs stay in their inverse sets. Alternating both ways mixes well (ancillarity-sufficiency
    interweaving).

    Each step moves along random directions in the unconstrained parameters, inside an interval that is drawn around the
    present place. Where normal costs have constant scales and locations on the straight line between those at the ends
    of the interval, more is possible: the coordinate of the noise that points along the change of the costs need not be
    held, but is summed out in closed form in every row, as ray shooting finds the interval that the inverse set leaves
    it, and drawn anew; only the noise across is held. Elsewhere, a shrinking slice holds all noise and asks whether
    costs are inside. No move leads from one kind of place to the other. The model is run for each density.

    :param model: A Pyro model.
    :param int num_directions: Directions for each step, tried one after the other.
    :raises ValueError: at the start of a run, if costs are not a known function of noise. Those that are: normal,
        half-normal, truncated normal, uniform, exponential, Gumbel, Laplace, logistic and Cauchy variables, jointly
        normal ones, and what invertible transforms make of them, such as LogNormal and Weibull.

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
        >>> from pyro_structured.structures import Matching
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
        check_size("num_directions", num_directions)
        self.num_directions = num_directions

    def prepare(self, model: Callable[..., Any], names: list[str], warmup_steps: int, args: Any, kwargs: Any) -> None:
        """Starts a chain."""
        trace: Any = poutine.trace(model).get_trace(*args, **kwargs)
        sites = find_cost_sites(trace)
        costs = {site.costs for site in sites}
        for name in costs:
            if not has_noise(trace.nodes[name]["fn"]):
                raise ValueError(
                    f"{name}: expected costs that are a known function of noise, such as normal or exponential ones, "
                    f"got {trace.nodes[name]['fn']}; leave Interweave out"
                )
        supports = {name: trace.nodes[name]["fn"].support for name in names if name not in costs}
        transforms = {name: biject_to(support) for name, support in supports.items() if not support.is_discrete}
        dtypes = {name: trace.nodes[name]["value"].dtype for name in costs}
        self._setting = Setting(model, args, kwargs, sites, transforms, dtypes)
        # Sites that depend on the costs keep the noise from being summed out, as do inverse sets that move.
        others = [poutine.trace(model).get_trace(*args, **kwargs) for _ in range(NUM_DRAWS)]
        is_fixed = all(self._setting.have_same_problems(trace, other) for other in others)
        self._only_optima = is_fixed and not any(find_dependents(model, trace, site, args, kwargs) for site in sites)
        self._spread = ParameterSpread(warmup_steps)
        self._counts = {"collapsed moves": 0, "sliced moves": 0, "stuck moves": 0}

    def step(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        """Values after moves along random directions, one after the other."""
        setting = self._setting
        if not setting.transforms or not setting.sites:
            return values
        for _ in range(self.num_directions):
            free = {name: transform.inv(values[name]) for name, transform in setting.transforms.items()}
            line = ParameterLine(setting, values, free, self._spread.direction(free))
            values = self._move(line, values)
        self._spread.add({name: transform.inv(values[name]) for name, transform in setting.transforms.items()})
        return values

    def _move(self, line: ParameterLine, values: dict[str, Tensor]) -> dict[str, Tensor]:
        """A move inside an interval around the present point, which all its points draw with the same density."""
        octave, share = torch.rand(2, dtype=torch.double).tolist()
        length = WIDTH * 2 ** (octave * OCTAVES)
        low, high = -share * length, (1 - share) * length
        straight = self._straight(line, low, high)
        if straight is not None and straight.contains(0.0, line.base):
            return self._collapsed(line, values, low, high, straight)
        return self._sliced(line, values, low, high, straight)

    def _straight(self, line: ParameterLine, low: float, high: float) -> StraightLocations | None:
        """Part of the line where the noise along the costs' change can be summed out, or ``None``."""
        closed = all(line.optima(name)[0].is_linear and is_normal(line.base(name)) for name in line.origin)
        return StraightLocations(self._setting, line, low, high) if closed and self._only_optima else None

    def _collapsed(
        self, line: ParameterLine, values: dict[str, Tensor], low: float, high: float, straight: StraightLocations
    ) -> dict[str, Tensor]:
        """A move with the noise along the costs' change summed out."""
        moves, present = {}, line.at(0.0)
        for name, origin in line.origin.items():
            problem, value = line.optima(name)
            chord = partial(problem.chord, origin, value)
            moves[name] = CollapsedMove(line.base(name), origin, straight.changes[name], chord)

        def log_density(distance: Tensor) -> Tensor:
            point = line.at(float(distance))
            # Draws may miss problems that few parameters change; moves keep to parameters with the present problems.
            if not straight.contains(float(distance), point.base) or not point.has_problems_of(present):
                return torch.full_like(distance, -torch.inf)
            return torch.stack([move.log_density(distance) for move in moves.values()]).sum() + point.log_density()

        distance = self._slice(log_density, low, high)
        self._counts["collapsed moves"] += 1
        moved = {name: value for name, value in line.at(float(distance)).values.items() if name not in moves}
        return {**values, **moved, **{name: move.draw(distance) for name, move in moves.items()}}

    def _sliced(
        self,
        line: ParameterLine,
        values: dict[str, Tensor],
        low: float,
        high: float,
        straight: StraightLocations | None,
    ) -> dict[str, Tensor]:
        """A move with all noise held fixed, where costs are feasible and no noise can be summed out."""

        def log_density(distance: Tensor) -> Tensor:
            point = line.at(float(distance))
            collapses = straight is not None and straight.contains(float(distance), point.base)
            total = point.log_density() if point.feasible() and not collapses else -torch.inf
            return torch.full_like(distance, total)

        self._counts["sliced moves"] += 1
        return {**values, **line.at(float(self._slice(log_density, low, high))).values}

    def _slice(self, log_density: Callable[[Tensor], Tensor], low: float, high: float) -> Tensor:
        zero, least, most = torch.tensor([0.0, low, high], dtype=torch.double)
        distance, stuck = slice_sample(log_density, zero, least, most, WIDTH * torch.ones_like(zero))
        self._counts["stuck moves"] += int(stuck)
        return distance

    def report(self) -> dict[str, Any]:
        """Numbers of moves with a coordinate of the noise summed out, with all noise fixed, and of stuck moves."""
        return dict(self._counts)
