"""Joint moves of parameters and of the costs that depend on them."""

__all__ = ["Interweave", "ParameterSpread", "sole_kernel"]

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from pyro import poutine
from torch import Tensor
from torch.distributions import biject_to

from pyro_structured.foundation.inference.gibbs import StepKernel
from pyro_structured.foundation.inference.latent_state import at_random, latent_sites
from pyro_structured.foundation.inference.live_model import NamedLatents
from pyro_structured.foundation.ops.private_members import is_plate
from pyro_structured.foundation.structures.argument_checks import check_size
from pyro_structured.optima.inference.cost_conditionals import cost_conditionals
from pyro_structured.optima.inference.cost_dependents import find_dependents
from pyro_structured.optima.inference.cost_sites import find_cost_sites
from pyro_structured.optima.inference.cost_sweep import sweep
from pyro_structured.optima.inference.cost_track import cost_track
from pyro_structured.optima.inference.noncentered_costs import has_noise, location_and_scale
from pyro_structured.optima.inference.parameter_line import ParameterLine, ParameterPoint, Setting
from pyro_structured.optima.ops.line_quadrature import IMPOSSIBLE
from pyro_structured.optima.ops.piecewise_exponential import piecewise_exponential
from pyro_structured.optima.ops.slice_sampling import slice_sample

# Fewer values are not enough for a standard deviation.
ENOUGH = 10
# Standard deviations from the mean that hardly any value is away.
OUTSIDE = 5.0
# Standard deviations, relative to means, that rounding explains.
LEAST_DEVIATION = {torch.float32: 1e-6, torch.float64: 1e-11}


class ParameterSpread:
    """Standard deviations of unconstrained parameters, learned while the chain warms up and kept afterwards.

    :param int warmup_steps: Number of values to learn from.
    """

    def __init__(self, warmup_steps: int) -> None:
        self._left, self._number = warmup_steps, 0
        self._mean: dict[str, Tensor] = {}
        self._squares: dict[str, Tensor] = {}

    @property
    def is_learning(self) -> bool:
        """Whether the warm-up goes on."""
        return self._left > 0

    def add(self, free: dict[str, Tensor]) -> None:
        """Updates means and squares by Welford's recurrence, while the warm-up goes on."""
        self._left -= 1
        self._number += 1
        for name, value in free.items():
            mean = self._mean.get(name, torch.zeros_like(value))
            self._mean[name] = mean + (value - mean) / self._number
            more = (value - mean) * (value - self._mean[name])
            self._squares[name] = self._squares.get(name, torch.zeros_like(value)) + more

    def frozen(self) -> list[str]:
        """Names of parameters of which some have hardly moved."""
        if self._number <= ENOUGH:
            return []
        return [
            name
            for name, mean in self._mean.items()
            if bool(((self._squares[name] / self._number).sqrt() <= LEAST_DEVIATION[mean.dtype] * mean.abs()).any())
        ]

    def outside(self) -> dict[str, Tensor] | None:
        """A point far from nearly all values, which does not change after the warm-up; ``None`` before, or if there
        were too few values.
        """
        if self._left or self._number <= ENOUGH:
            return None
        return {name: mean + OUTSIDE * self._deviation(name) for name, mean in self._mean.items()}

    def direction(self, free: dict[str, Tensor], moving: tuple[str, ...]) -> dict[str, Tensor]:
        """A random direction of some parameters, of length 1 where standard deviations are units; these are 1 as long
        as they are unknown.
        """
        direction = {name: torch.randn_like(value) * (name in moving) for name, value in free.items()}
        length = math.sqrt(sum(float(part.double().square().sum()) for part in direction.values()))
        for name, part in direction.items():
            scale = self._deviation(name) if self._number > ENOUGH else torch.ones_like(part)
            direction[name] = part * scale / max(length, torch.finfo(torch.float32).tiny)
        return direction

    def _deviation(self, name: str) -> Tensor:
        deviation = (self._squares[name] / self._number).sqrt()
        return torch.where(deviation > 0, deviation, 1.0)


# Number of draws of the parameters with which problems are compared.
NUM_DRAWS = 10
# Length of a slice's first interval, in standard deviations of the parameters.
WIDTH = 2.0
# Moves look at intervals of 1 to 16 such lengths: short ones do not reach kinks, long ones lead far.
OCTAVES = 4
# Least share of the moves of either kind.
LEAST_SHARE = 0.02
# Lines along which costs are drawn anew, where restrictions have no closed form.
NUM_LINES = 10
# Number of draws of the parameters for which costs are asked to have tracks, where joint moves are to suffice.
NUM_LINE_DRAWS = 3
# What is said of parameters that have not moved.
FROZEN = (
    "{}: hardly moved while the chain warmed up, as costs have so little noise, or are so improbable, that moves are "
    "lost to rounding; start near likely values by initial_params, or give costs more noise"
)


@dataclass(frozen=True)
class _Place:
    """A place on a line of parameters.

    :ivar float distance: Distance from where the line starts.
    :ivar ParameterPoint point: Parameters.
    :ivar dict costs: Costs, by the names of their sites.
    """

    distance: float
    point: ParameterPoint
    costs: dict[str, Tensor]


class _KnownPoint:
    """Parameters at which the model need not run again. They are no part of the state of a chain: models give the same
    distributions again.
    """

    def __init__(self) -> None:
        self._point: ParameterPoint | None = None
        self._values: dict[str, Tensor] = {}

    def keep(self, point: ParameterPoint, values: dict[str, Tensor]) -> None:
        """Keeps a point and the values of all sites there."""
        self._point, self._values = point, values

    def find(self, free: dict[str, Tensor], values: dict[str, Tensor], costs: set[str]) -> ParameterPoint | None:
        """The point, if all sites have the values that they had, but for costs."""
        known = self._values.items()
        if self._point is None or not all(
            torch.equal(value, values[name]) for name, value in known if name not in costs
        ):
            return None
        return self._point.with_costs(free, {name: values[name] for name in costs})

    def state_dict(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Forgets the point, of another chain."""
        self._point = None


class Interweave(StepKernel):
    r"""Moves parameters and costs together, with the noise in the costs held fixed.

    Costs :math:`w = \mu(\psi) + \sigma(\psi) \epsilon` tie the parameters :math:`\psi` down: given the costs of many
    rows, a chain that updates one after the other hardly moves. Given the noise :math:`\epsilon`, parameters can go as
    far as all costs stay in their inverse sets. Alternating both ways mixes well (ancillarity-sufficiency
    interweaving).

    Each step moves along a random direction in the unconstrained parameters, of all sites or of one, inside an interval
    that is drawn around the present place. Where locations of the costs are straight along the line, and scales stay or
    grow exponentially, more is possible: one coordinate of the noise of each row need not be held. It points along the
    change of the costs where either locations or scales of a row move, the latter alike, and elsewhere, or if costs are
    many uniform ones, along the costs which the optimum incurs. It is summed out, as ray shooting finds the interval
    that the inverse set leaves it, and drawn anew: the parameter is proposed from a table of the resulting density,
    whatever the present value, and accepted in most cases. Several such moves follow each other on a line, and costs
    are drawn anew in between, as :class:`ConstrainedSlice` draws them, so that other noise is held each time. Every
    second move does not draw the parameter, but goes to the opposite quantile of that density (overrelaxation): as held
    noise ties a parameter to where it is, that suppresses the random walk which it makes otherwise. That goes for
    normal, half-normal, truncated normal, uniform, exponential, gamma, inverse gamma, Gumbel, Laplace, logistic,
    log-normal, Weibull, Student's t, Cauchy and half-Cauchy costs whose optima are those of linear objectives, and
    takes a run of the model for each move, and two more; where coefficients of the objective are other than zeros and
    ones, or an optimum incurs no costs, either locations or scales have to stay, and the scales of a row to grow alike;
    as those of jointly normal costs have to everywhere. Locations of log-normal costs are scales, and so are rates;
    concentrations and degrees of freedom have to stay. Bounds of truncated normal costs have to stay, or to move as the
    locations and scales do, or along straight lines, where coefficients are zeros and ones: then costs which the
    optimum does not incur hold their quantile, and others their place between the bounds. Of Cauchy costs, or Student's
    t of few degrees of freedom, at least three of each row have to move: a choice of one item has none of these moves.
    A shrinking slice that holds all noise, and asks whether costs are inside, makes the other moves, with a run of the
    model for each density: few of the steps, or more, as often as the first kind was refused while the chain warmed up.
    A warning names parameters that hardly moved until then.

    :param model: A Pyro model.
    :param int num_directions: Directions for each step, tried one after the other.
    :param int num_moves: Moves along each direction where noise is summed out.
    :raises ValueError: at the start of a run, if costs are not a known function of noise. Those that are: normal,
        half-normal, truncated normal, uniform, exponential, gamma, Gumbel, Laplace, logistic, Student's t and Cauchy
        variables, jointly normal ones, and what invertible transforms make of them, such as LogNormal, Weibull and
        InverseGamma.

    It owns no sites: other kernels have to update costs and parameters too. Alone, and with costs drawn by themselves
    at the beginning of each step, it is the kernel that :class:`ConstrainedSlice` chooses for one parameter.

    **References**

    Yu, Meng (2011): To center or not to center: that is not the question - an ancillarity-sufficiency interweaving
    strategy (ASIS) for boosting MCMC efficiency. JCGS 20(3).

    Neal (1998): Suppressing random walks in Markov chain Monte Carlo using ordered overrelaxation. In: Learning in
    Graphical Models.

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

    def __init__(self, model: Callable[..., Any], num_directions: int = 1, num_moves: int = 2) -> None:
        super().__init__(model)
        check_size("num_directions", num_directions)
        check_size("num_moves", num_moves)
        self.num_directions, self.num_moves = num_directions, num_moves
        self._num_lines = NUM_LINES

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
        self._setting = Setting(model, args, kwargs, sites, transforms, dtypes, not self.owns_sites)
        # Sites that depend on the costs keep the noise from being summed out, as do inverse sets that move.
        others = [poutine.trace(model).get_trace(*args, **kwargs) for _ in range(NUM_DRAWS)]
        is_fixed = all(self._setting.have_same_problems(trace, other) for other in others)
        self._may_collapse = (
            is_fixed
            and all(trace.nodes[site.optimum]["fn"].problem.is_linear for site in sites)
            and all(location_and_scale(trace.nodes[name]["fn"]) is not None for name in costs)
            and not any(find_dependents(model, trace, site, args, kwargs) for site in sites)
        )
        # Dtypes whose rounding costs may show: those of the parameters, too.
        parameters = [trace.nodes[name]["value"].dtype for name in transforms]
        coarsest = partial(max, key=lambda dtype: torch.finfo(dtype).eps)
        self._dtypes = {name: coarsest([dtype, *parameters]) for name, dtype in dtypes.items()}
        self._spread = ParameterSpread(warmup_steps)
        # Where the last step ended, and a point far out on the one line of a single number.
        self._last, self._outside = _KnownPoint(), _KnownPoint()
        # Moves along tracks of the costs, by the parameters that moved, and those of them that stayed on the tracks.
        self._success: dict[tuple[str, ...], list[int]] = {}
        self._counts = {"collapsed moves": 0, "refused moves": 0, "sliced moves": 0, "stuck moves": 0}

    def step(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        """Values after moves along random directions, one after the other."""
        setting = self._setting
        if not setting.transforms or not setting.sites:
            return values
        for number in range(self.num_directions):
            free = self._free(values)
            moving = self._moving()
            direction = self._spread.direction(free, moving)
            line = ParameterLine(setting, values, free, direction, self._last.find(free, values, set(setting.dtypes)))
            if self.owns_sites and not number:
                costs = self._refreshed(_Place(0.0, line.at(0.0), line.origin)).costs
                values = {**values, **costs}
                line = ParameterLine(setting, values, free, direction, line.at(0.0).with_costs(free, costs))
            place = self._move(line, moving, values)
            values = {**values, **place.point.values, **place.costs}
            # Elsewhere sites that depend on costs have other distributions as soon as these move.
            if self._may_collapse:
                self._last.keep(place.point, values)
        if self._spread.is_learning:
            self._spread.add(self._free(values))
            if not self._spread.is_learning and (frozen := self._spread.frozen()):
                warnings.warn(FROZEN.format(", ".join(frozen)), stacklevel=2)
        return values

    def _free(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: transform.inv(values[name]) for name, transform in self._setting.transforms.items()}

    def _moving(self) -> tuple[str, ...]:
        """Parameters that move: one half of the time all, else those of one site."""
        names = tuple(self._setting.transforms)
        everything, place = torch.rand(2, dtype=torch.double).tolist()
        return names if everything < 0.5 or len(names) == 1 else (names[int(place * len(names))],)

    def _move(self, line: ParameterLine, moving: tuple[str, ...], values: dict[str, Tensor]) -> _Place:
        """A move inside an interval around the present point, which all its points draw with the same density."""
        octave, share = torch.rand(2, dtype=torch.double).tolist()
        length = WIDTH * 2 ** (octave * OCTAVES)
        low, high = -share * length, (1 - share) * length
        if not self._may_collapse or not self._collapses(moving):
            return self._sliced(line, low, high)
        place, made = _Place(0.0, line.at(0.0), line.origin), 0
        reference = self._reference(line, values, (low + high) / 2)
        # All moves are tried, whatever the first ones did: to stop depending on the place would change how often a
        # chain is there.
        for number in range(self.num_moves):
            place = self._refreshed(place) if number else place
            moved = self._collapsed(line, place, reference, low, high, reflects=number % 2 == 1)
            place, made = moved or place, made + (moved is not None)
        if self._spread.is_learning:
            found, tried = self._success.get(moving, (0, 0))
            self._success[moving] = [found + made, tried + self.num_moves]
        return place

    def _collapses(self, moving: tuple[str, ...]) -> bool:
        """Whether to try a move with noise summed out: at random, as often as it succeeded in the warm-up."""
        found, tried = self._success.get(moving, (0, 0))
        share = min(max((found + 1) / (tried + 2), LEAST_SHARE), 1 - LEAST_SHARE)
        return bool(torch.rand((), dtype=torch.double) < share)

    def _reference(self, line: ParameterLine, values: dict[str, Tensor], middle: float) -> _Place:
        """A point of the line that does not depend on where in the interval a move starts. Rounding may show next to
        it: the middle of the interval may be anywhere, so that moves from there are refused as often as moves to there;
        and chains do not come to what is outside of the one line that there is.
        """
        outside = self._spread.outside() if self.owns_sites else None
        if outside is None:
            point = line.at(middle, holds_noise=False)
            return _Place(middle, point, point.costs)
        distance = line.distance_to(outside)
        transforms = self._setting.transforms
        there = {**values, **{name: transforms[name](value) for name, value in outside.items()}}
        point = self._outside.find(outside, there, set(line.origin)) or line.at(distance, holds_noise=False)
        self._outside.keep(point, there)
        return _Place(distance, point, point.costs)

    def _collapsed(
        self, line: ParameterLine, place: _Place, reference: _Place, low: float, high: float, *, reflects: bool
    ) -> _Place | None:
        """A move with one coordinate of the noise summed out in each row; ``None`` where it is refused, or costs leave
        their tracks.

        :param bool reflects: Whether the parameter goes to the opposite quantile of its density given all other noise,
            and is not drawn from it.
        """
        other, here, tracks = reference.point, place.distance, {}
        distance = reference.distance - here
        for name, costs in place.costs.items():
            problem, value = place.point.optima(name)
            bases = place.point.base(name), other.base(name)
            track = cost_track(*bases, distance, costs, problem, value, self._dtypes[name])
            if track is None:
                return None
            tracks[name] = track

        def log_density(distance: Tensor) -> Tensor:
            total = other.log_prior(line.free_at(distance)).cpu()
            total = total + sum(track.log_mass(distance - here).cpu() for track in tracks.values())
            # Densities that are infinite at the end of a support are not approached.
            return total.nan_to_num(IMPOSSIBLE, IMPOSSIBLE, IMPOSSIBLE).clamp(min=IMPOSSIBLE)

        start, *bounds = torch.tensor([here, low, high], dtype=torch.double, device="cpu")
        ends = bounds[0], bounds[1]
        num_places = min(track.num_places for track in tracks.values())
        density = piecewise_exponential(log_density, *ends, num_places)
        drawn, log_forth = density.reflect(start, *ends) if reflects else density.draw(*ends)
        # Models need not have distributions at places that mean nothing.
        if bool(density.log_height(drawn.unsqueeze(-1)) < IMPOSSIBLE / 2):
            self._refuse()
            return None
        point = line.at(float(drawn), holds_noise=False)
        # Draws may miss problems that few parameters change; moves keep to parameters with the present problems.
        if not point.has_problems_of(place.point):
            return None
        length = float(drawn) - here
        if not all(track.fits(point.base(name), length) for name, track in tracks.items()):
            return None
        log_ratio = density.log_density(start, *ends) - log_forth
        log_ratio = log_ratio + _log_density(point) - _log_density(place.point)
        costs_there = {}
        for name, track in tracks.items():
            x, log_drawn = track.draw(length)
            log_ratio = log_ratio + track.log_density_here() - log_drawn
            log_ratio = log_ratio + track.log_weight(point.base(name), x, length)
            log_ratio = log_ratio - track.log_weight(place.point.base(name), torch.zeros_like(x), 0.0)
            costs_there[name] = track.costs_at(x, length)
        is_taken = bool(torch.rand((), dtype=torch.double).log() < log_ratio)
        # Ends of chords may be too far by rounding; outside of inverse sets there is no density.
        if not is_taken or not point.with_costs(point.free, costs_there).feasible():
            self._refuse()
            return None
        self._counts["collapsed moves"] += 1
        return _Place(float(drawn), point, costs_there)

    def _refuse(self) -> None:
        for name in ("collapsed moves", "refused moves"):
            self._counts[name] += 1

    def _refreshed(self, place: _Place) -> _Place:
        """New costs for the same parameters."""
        drawn = {}
        for name, costs in place.costs.items():
            problem, value = place.point.optima(name)
            family = cost_conditionals(place.point.base(name), len(problem.cost_shape))
            drawn[name], _ = sweep(costs, value, problem, family, self._num_lines)
        return replace(place, costs=drawn)

    def _sliced(self, line: ParameterLine, low: float, high: float) -> _Place:
        """A move with all noise held fixed, where costs are feasible."""

        def log_density(distance: Tensor) -> Tensor:
            point = line.at(float(distance))
            return torch.full_like(distance, _log_density(point) if point.feasible() else -torch.inf)

        self._counts["sliced moves"] += 1
        distance = float(self._slice(log_density, low, high))
        point = line.at(distance)
        return _Place(distance, point, point.costs)

    def _slice(self, log_density: Callable[[Tensor], Tensor], low: float, high: float) -> Tensor:
        zero, least, most = torch.tensor([0.0, low, high], dtype=torch.double, device="cpu")
        distance, stuck = slice_sample(log_density, zero, least, most, WIDTH * torch.ones_like(zero))
        self._counts["stuck moves"] += int(stuck)
        return distance

    def _suffices(self, trace: Any) -> bool:
        """Whether there is one number to infer from optima alone, and costs have tracks along it, next to the values of
        a trace.
        """
        setting = self._setting
        values = {name: trace.nodes[name]["value"] for name in latent_sites(trace)}
        free = self._free(values)
        if not self._may_collapse or sum(value.numel() for value in free.values()) != 1 or _other_data(trace, setting):
            return False
        line = ParameterLine(setting, values, free, {name: torch.ones_like(value) for name, value in free.items()})
        here, between, other = (line.at(distance, holds_noise=False) for distance in (0.0, WIDTH / 2, WIDTH))
        for name in setting.dtypes:
            problem, value = here.optima(name)
            bases, costs = (here.base(name), other.base(name)), here.costs[name].double()
            track = cost_track(*bases, WIDTH, costs, problem, value, self._dtypes[name])
            if track is None or not track.fits(between.base(name), WIDTH / 2):
                return False
        return True

    def report(self) -> dict[str, Any]:
        """Numbers of moves with a coordinate of the noise summed out, of those of them that were refused, of moves with
        all noise fixed, and of those of them that were stuck.
        """
        return dict(self._counts)


def sole_kernel(model: Callable[..., Any], num_lines: int, args: Any, kwargs: Any) -> Interweave | None:
    """A kernel that needs no other one for costs and continuous parameters, as there is one number to infer from optima
    alone, along which costs have tracks: steps along lines reach all its values; ``None`` for other models.

    :param model: A Pyro model.
    :param int num_lines: Lines for each update of costs, for problems without closed-form restrictions.
    """
    trial, named = Interweave(model), at_random(NamedLatents(model))
    trace: Any = poutine.trace(named).get_trace(*args, **kwargs)
    names = [name for name in latent_sites(trace) if not trace.nodes[name]["fn"].support.is_discrete]
    trial.prepare(named, names, 0, args, kwargs)
    if not all(trial._suffices(poutine.trace(named).get_trace(*args, **kwargs)) for _ in range(NUM_LINE_DRAWS)):
        return None
    kernel = Interweave(model)
    kernel.owns_sites, kernel._num_lines = True, num_lines
    return kernel


def _other_data(trace: Any, setting: Setting) -> set[str]:
    """Names of observed sites but for optima."""
    nodes = {name: node for name, node in trace.nodes.items() if node["type"] == "sample" and node["is_observed"]}
    seen = {
        name for name, node in nodes.items() if not is_plate(node["fn"]) and not node["infer"].get("_deterministic")
    }
    return seen - {site.optimum for site in setting.sites}


def _log_density(point: ParameterPoint) -> float:
    """Log-density at a point; -inf where it is +inf, as it is where parameters have underflown to a pole."""
    log_density = point.log_density()
    return log_density if log_density < torch.inf else -torch.inf
