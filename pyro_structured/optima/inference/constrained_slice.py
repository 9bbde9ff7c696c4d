"""Costs given their observed optima."""

__all__ = ["ConstrainedSlice"]

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from pyro import poutine
from pyro.infer import NUTS
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel
from torch import Tensor

from pyro_structured.foundation.inference.gibbs import StepKernel
from pyro_structured.foundation.inference.latent_state import at_random, latent_sites
from pyro_structured.foundation.inference.live_model import NamedLatents
from pyro_structured.foundation.inference.structured_gibbs import discrete_blocks
from pyro_structured.foundation.structures.argument_checks import check_size
from pyro_structured.optima.distributions.exact_optimum_costs import exact_costs
from pyro_structured.optima.distributions.randomized_optimum import RandOM
from pyro_structured.optima.inference.cost_conditionals import cost_conditionals
from pyro_structured.optima.inference.cost_dependents import find_dependents, row_log_prob
from pyro_structured.optima.inference.cost_family import CostFamily
from pyro_structured.optima.inference.cost_sites import find_cost_sites
from pyro_structured.optima.inference.cost_sweep import SweepInfo, sweep
from pyro_structured.optima.inference.costs_reparam import costs_name
from pyro_structured.optima.inference.independent_costs import IndependentCosts
from pyro_structured.optima.inference.interweave import Interweave, sole_kernel
from pyro_structured.optima.inference.marginal_nuts import MarginalNUTS
from pyro_structured.optima.inference.noncentered_costs import has_noise
from pyro_structured.optima.inference.observed_optima import observed_optima
from pyro_structured.optima.structures.problem import Problem

# Number of draws of the latent variables with which it is asked whether costs can be drawn exactly.
NUM_DRAWS = 3


class ConstrainedSlice(StepKernel):
    r"""Samples costs whose optima are observed, inside the inverse sets :math:`F^{-1}(y)`; a kernel for ``MCMC``.

    .. math::
        w \sim p(w \mid \psi, y) \propto p(w \mid \psi)\, 1[F(w) = y].

    The costs are those of observed :class:`~pyro_structured.distributions.RandOM` sites (the site ``y`` gets a latent
    site ``y_costs``) and of :class:`~pyro_structured.distributions.Argmin` sites. One step updates all of them, all
    rows of plates at once. Where the restriction of an inverse set to some costs has a closed form
    (:meth:`~pyro_structured.structures.Problem.boxes`), these are drawn from their conditional distribution: exactly if
    they are normal, truncated or half-normal, uniform, log-normal, exponential, gamma, inverse gamma, Laplace,
    logistic, Gumbel, Weibull, Student's t, Cauchy or half-Cauchy variables, also jointly normal, or if each cost is a
    mixture (``MixtureSameFamily``) of one of these with the same bounds, but for gamma, inverse gamma and Student's t
    variables; by slice sampling otherwise, also if other sites depend on the costs, in the same plates.
    Other problems have lines through the inverse set, with exact ends. No proposal is ever outside, but for the
    rounding of a row's largest cost: costs that are less than 1e-16 of it may be of no account. If costs have several
    optima, in several sites or in rows of a plate that share them, they stay in the intersection of all inverse
    sets, which lines along one cost after the other explore. Costs are drawn on the processor, where solvers are,
    and go back to the device of the model.

    Alone, it stands for a composition that updates all other latent variables, too. Where costs can be drawn exactly
    given an observed optimum, they are summed out of the densities of all parameters, and drawn afterwards,
    independently of what they were: those of ``RandOM`` sites that are rankings of exponential costs, or Gumbel ones of
    one scale, choices of one item or matchings with one row, of exponential costs or Gumbel rewards
    (``maximize=True``), or 2 x 2 matchings of normal costs; :attr:`summed_sites` says which. NUTS updates continuous
    parameters, and a :class:`StructuredGibbs` or :class:`BinaryGibbs` discrete sites. Otherwise it is
    ``Gibbs([(ConstrainedSlice(model), costs), (Interweave(model), None), (NUTS(model), rest)])``, with discrete sites
    first, and without the second block where costs are no known function of noise. Where there is one number to infer,
    from optima alone, along which the joint moves of :class:`Interweave` draw noise anew, these suffice: they also draw
    the costs, by the same update, and a step runs the model four times. Discrete sites are updated given the
    costs then: where the costs of many rows depend on one, it hardly ever changes. Compare several chains, or sum it
    out: fit a model for each of its values.

    :param model: A Pyro model.
    :param int num_lines: Lines for each step, for problems without closed-form restrictions.
    :raises ValueError: at the start of a run, if the model observes no optimum, or no costs lead to one, or
        ``initial_params`` are outside of the inverse sets, or several optima of the same costs are not those of linear
        objectives; later, if costs that could be drawn exactly at the start cannot be at other latent values.

    **References**

    Tarlow, Adams, Zemel (2012): *Randomized optimum models for structured prediction.* AISTATS. Section 4.1.1,
    Equation 11. Its Algorithm 2 asks a dynamic solver whether points are inside; here, shortest paths say how far the
    inverse set goes.

    Example::

        >>> import pyro
        >>> import pyro.distributions as dist
        >>> from pyro.infer import MCMC
        >>> from pyro_structured.distributions import RandOM
        >>> from pyro_structured.structures import Matching
        >>> def model(y):
        ...     pyro.sample("y", RandOM(dist.Normal(torch.zeros(2, 2), 1.0).to_event(2), Matching(2)), obs=y)
        >>> mcmc = MCMC(ConstrainedSlice(model), num_samples=100, warmup_steps=10, disable_progbar=True)
        >>> mcmc.run(torch.tensor([1, 0]))
        >>> costs = mcmc.get_samples()["y_costs"]
        >>> bool((costs[:, 0, 1] + costs[:, 1, 0] <= costs[:, 0, 0] + costs[:, 1, 1]).all())
        True
    """

    moves_costs = True

    def __init__(self, model: Callable[..., Any], num_lines: int = 10) -> None:
        super().__init__(model)
        check_size("num_lines", num_lines)
        self.num_lines = num_lines
        self._summed_sites: list[str] = []
        # Observed sites whose costs are drawn exactly, by the names of these costs.
        self._exact: dict[str, str] = {}

    @property
    def summed_sites(self) -> list[str]:
        """Observed sites whose costs are summed out of all else, once a chain of the kernel alone has started."""
        return list(self._summed_sites)

    def prepare(self, model: Callable[..., Any], names: list[str], warmup_steps: int, args: Any, kwargs: Any) -> None:
        """Starts a chain."""
        self._model, self._args, self._kwargs = model, args, kwargs
        self._info, self._num_steps = SweepInfo(0, 0, 0), 0
        trace: Any = poutine.trace(model).get_trace(*args, **kwargs)
        sites = {site.costs: site for site in find_cost_sites(trace)}
        if not names or not set(names) <= set(sites):
            raise ValueError(f"sites: expected costs of observed optima, which are {list(sites)}, got {names}")
        self._dtypes = {name: trace.nodes[name]["value"].dtype for name in names}
        self._dependents = {name: find_dependents(model, trace, sites[name], args, kwargs) for name in names}

    def step(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        """One sweep over the costs of every site."""
        return self.steps(values, 1)[0]

    def steps(self, values: dict[str, Tensor], num_steps: int) -> list[dict[str, Tensor]]:
        """Values after each of several sweeps, for which the model is run once if it has one site of costs."""
        return self._sweep(values, num_steps, None)

    def steps_with_prior(
        self, values: dict[str, Tensor], num_steps: int
    ) -> tuple[list[dict[str, Tensor]], list[dict[str, Tensor]]]:
        """Values after each of several sweeps, and unconditional draws of the costs, from the same random numbers.

        Costs that a sweep does not restrict are equal in both, up to rounding.

        :raises NotImplementedError: unless costs are independent and drawn by inversion.
        """
        prior: list[dict[str, Tensor]] = []
        return self._sweep(values, num_steps, prior), prior

    def _sweep(
        self, values: dict[str, Tensor], num_steps: int, priors: list[dict[str, Tensor]] | None
    ) -> list[dict[str, Tensor]]:
        states, known = [], {}
        for _ in range(num_steps):
            values, prior = dict(values), {}
            # What is out of date, as it was summed out, first: other costs may be its parameters.
            for name in sorted(self._dependents, key=lambda name: name not in self._exact):
                if name in self._exact:
                    values[name] = self._exact_draw(name, values)
                    continue
                # Costs of other sites may be parameters of these.
                if name not in known or len(self._dependents) > 1:
                    known[name] = self._conditionals(name, values)
                uniform = None
                if priors is not None:
                    uniform = torch.rand_like(values[name], device="cpu")
                    prior[name] = _draw_all(name, known[name][-1], uniform).to(values[name].device)
                values[name], info = sweep(values[name], *known[name], self.num_lines, uniform)
                self._info += info
            self._num_steps += 1
            states.append(values)
            if priors is not None:
                priors.append(prior)
        return states

    def _exact_draw(self, name: str, values: dict[str, Tensor]) -> Tensor:
        """Costs given their optimum, whatever the present ones are."""
        trace = self._trace(values)
        problem, value = observed_optima(trace, name)
        draw = exact_costs(trace.nodes[name]["fn"], problem)
        if draw is None:
            raise ValueError(
                f"{self._exact[name]}: expected costs that can be drawn exactly at all latent values, as at the "
                f"start, got {trace.nodes[name]['fn']}; compose kernels by Gibbs instead"
            )
        return draw(value)

    def _conditionals(self, name: str, values: dict[str, Tensor]) -> tuple[Tensor, Problem, CostFamily]:
        """Observed optima of a site of costs, their problem, and the conditional distributions of the costs."""
        trace = self._trace(values)
        problem, value = observed_optima(trace, name)
        likelihood = partial(self._likelihood, name, values) if self._dependents[name] else None
        return value, problem, cost_conditionals(trace.nodes[name]["fn"], len(problem.cost_shape), likelihood)

    def _trace(self, values: dict[str, Tensor]) -> Any:
        seen = {name: value.to(self._dtypes[name]) for name, value in values.items()}
        return poutine.trace(poutine.condition(self._model, data=seen)).get_trace(*self._args, **self._kwargs)

    def _likelihood(self, name: str, values: dict[str, Tensor], costs: Tensor) -> Tensor:
        """Log-probability of all sites that depend on the costs, but for the optima, one for each row."""
        trace, names = self._trace({**values, name: costs}), self._dependents[name]
        trace.compute_log_prob(lambda site, _: site in names)
        total = torch.zeros((), dtype=torch.double)
        for dependent in names:
            total = total + row_log_prob(trace, dependent, name)
        return total

    def report(self) -> dict[str, Any]:
        """Numbers of solver calls and of closed-form restrictions per step, and of stuck updates of the run."""
        steps = max(1, self._num_steps)
        return {
            "solver calls per step": self._info.num_solves / steps,
            "restrictions per step": self._info.num_boxes / steps,
            "stuck updates": self._info.num_stuck,
        }

    def composition(self, args: Any, kwargs: Any) -> list[tuple[MCMCKernel, Any]]:
        """Kernels that sum costs out; discrete sites, exactly or entry by entry; costs; joint moves; and continuous
        sites by NUTS, unless they come first.
        """
        trace: Any = poutine.trace(NamedLatents(self.model)).get_trace(*args, **kwargs)
        costs = list(dict.fromkeys(site.costs for site in find_cost_sites(trace)))
        if not costs:
            raise ValueError("model: expected an observed RandOM or Argmin site, got none")
        # A block of its own: this kernel may also be a block of others, which sum nothing out.
        block = copy.copy(self)
        block._exact = self._find_summed(args, kwargs)
        self._summed_sites = list(block._exact.values())
        rest = [name for name in latent_sites(trace) if name not in costs]
        discrete = [name for name in rest if trace.nodes[name]["fn"].support.is_discrete]
        continuous = [name for name in rest if name not in discrete]
        blocks: list[tuple[MCMCKernel, Any]] = []
        if continuous and self._summed_sites:
            blocks.append((MarginalNUTS(self.model, self._summed_sites), continuous))
        blocks += discrete_blocks(self.model, discrete, trace, args, kwargs, self._summed_sites)
        # Costs are drawn right after the kernels that sum them out.
        blocks.append((block, costs))
        others = [name for name in costs if name not in block._exact]
        if rest and others and all(has_noise(trace.nodes[name]["fn"]) for name in costs):
            sole = None if self._summed_sites else sole_kernel(self.model, self.num_lines, args, kwargs)
            if sole is not None:
                return [*blocks[:-1], (sole, [*costs, *continuous])]
            blocks.append((Interweave(self.model), None))
        if continuous and not self._summed_sites:
            blocks.append((NUTS(self.model), continuous))
        return blocks

    def _find_summed(self, args: Any, kwargs: Any) -> dict[str, str]:
        """Observed sites whose costs can be drawn exactly, by the names of the sites of these costs."""
        found: dict[str, str] = {}
        for draw in range(NUM_DRAWS):
            trace: Any = poutine.trace(at_random(self.model)).get_trace(*args, **kwargs)
            summed = {costs_name(name): name for name, node in trace.nodes.items() if _has_exact_costs(node)}
            found = summed if not draw else {costs: name for costs, name in found.items() if costs in summed}
        return found


def _has_exact_costs(node: Any) -> bool:
    is_optimum = node["type"] == "sample" and node["is_observed"] and isinstance(node["fn"], RandOM)
    return is_optimum and exact_costs(node["fn"].base, node["fn"].problem) is not None


def _draw_all(name: str, family: CostFamily, uniform: Tensor) -> Tensor:
    """Unconditional draws of costs, by inversion of uniform variables of their shape."""
    if not isinstance(family, IndependentCosts):
        raise NotImplementedError(
            f"{name}: expected independent normal, truncated normal, half-normal, uniform, log-normal, exponential, "
            "gamma, inverse gamma, Laplace, logistic, Gumbel, Weibull, Cauchy or half-Cauchy costs that no other sites "
            "depend on, got others"
        )
    return family.draw_all(uniform.reshape(family.loc.shape)).reshape(uniform.shape)
