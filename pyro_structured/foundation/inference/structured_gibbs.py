"""Structured discrete sites, drawn exactly given everything else."""

__all__ = ["StructuredGibbs"]

import math
from collections.abc import Callable
from typing import Any

import torch
from pyro import poutine
from pyro.infer import NUTS
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel
from torch import Tensor
from torch.distributions import constraints

from pyro_structured.foundation.distributions.independent_parts import entry_constraint, entry_distribution
from pyro_structured.foundation.inference.binary_gibbs import BinaryGibbs
from pyro_structured.foundation.inference.gibbs import StepKernel
from pyro_structured.foundation.inference.latent_state import at_random, latent_sites, later_sites
from pyro_structured.foundation.inference.live_model import NamedLatents
from pyro_structured.foundation.inference.site_handlers import confined_sites

# Log-likelihoods add up over entries if a draw's differs from their sum by less than this share of its size.
ROUNDING = 1e-6


class StructuredGibbs(StepKernel):
    r"""Draws structured discrete sites exactly, all entries at once, where the likelihood is a sum over entries.

    .. math::
        p(z \mid \text{rest}) \propto p(z) \exp\Big(\sum_d g_d(z_d)\Big).

    The terms :math:`g_d` are found by running the model: once for each state, with all entries in this state, where
    each log-density after the site depends on one entry, as emissions do; and once for each entry and further state
    for log-densities of several entries, such as those of ``pyro.factor``. Which entry a log-density depends on is
    found at the start of a run, with some :math:`2 \log_2 D` runs. The log-likelihood of each draw is compared with the
    sum that it was drawn from: one that is no sum over entries, such as that of a regression, is refused.

    Sites are those whose distribution has ``reweight``:
    :class:`~pyro_structured.distributions.RecursiveCardinality`, :class:`~pyro_structured.distributions.KSubset`,
    :class:`~pyro_structured.distributions.JunctionTree`, and fields of labels such as
    :class:`~pyro_structured.distributions.GridCRF`, where these draw exact samples. Sites may stand in any plates.
    Alone, it is a composition in which
    :class:`BinaryGibbs` updates all other binary sites, and NUTS the continuous ones.

    :param model: A Pyro model.
    :raises ValueError: at the start of a run, if a site has another distribution, or is masked or scaled; if a
        likelihood turns out to be no sum over entries.

    A step costs as many runs of the model as there are states, and one, and a sample of the posterior. Exact: draws are
    independent of the present value.

    Example::

        >>> import pyro
        >>> import pyro.distributions as dist
        >>> from pyro.infer import MCMC
        >>> from pyro_structured.distributions import JunctionTree
        >>> from pyro_structured.structures import CliqueTree
        >>> stay = torch.tensor([[0.9, 0.1], [0.1, 0.9]]).log().flatten().repeat(3)
        >>> def model(y):
        ...     level = pyro.sample("level", dist.Normal(0.0, 3.0))
        ...     z = pyro.sample("z", JunctionTree(stay, CliqueTree.chain(4, 2)))
        ...     pyro.sample("y", dist.Normal(level * z, 0.3).to_event(1), obs=y)
        >>> mcmc = MCMC(StructuredGibbs(model), num_samples=30, warmup_steps=10, disable_progbar=True)
        >>> mcmc.run(torch.tensor([0.1, -0.2, 2.1, 1.8]))
        >>> mcmc.get_samples()["z"].double().mean(0).round()
        tensor([0., 0., 1., 1.], dtype=torch.float64)
    """

    def prepare(self, model: Callable[..., Any], names: list[str], warmup_steps: int, args: Any, kwargs: Any) -> None:
        """Starts a chain."""
        trace: Any = poutine.trace(at_random(model)).get_trace(*args, **kwargs)
        self._sites = [_StructuredSite(name, trace, model, args, kwargs) for name in names]

    def step(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        """One draw of each site, one after the other."""
        for site in self._sites:
            values = {**values, site.name: site.draw(values)}
        return values

    def report(self) -> dict[str, Any]:
        """Number of runs of the model, for all sites together."""
        return {"runs": sum(site.num_runs for site in self._sites)}

    def state_dict(self) -> dict[str, Any]:
        """What has been found out about the sites."""
        return {site.name: site.state() for site in self._sites}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on with it."""
        for site in self._sites:
            site.load_state(state[site.name])

    def composition(self, args: Any, kwargs: Any) -> list[tuple[MCMCKernel, Any]]:
        """Structured sites, then other binary ones by :class:`BinaryGibbs`, then continuous ones by NUTS."""
        trace: Any = poutine.trace(at_random(NamedLatents(self.model))).get_trace(*args, **kwargs)
        if confined_sites(trace):
            raise ValueError(
                "model: expected no observed RandOM or Argmin site, got some; compose kernels by Gibbs, and let "
                "ConstrainedSlice update their costs"
            )
        names = list(latent_sites(trace))
        own = [name for name in names if _can_reweight(entry_distribution(trace.nodes[name]["fn"]))]
        if not own:
            raise ValueError("model: expected a latent site whose distribution has reweight, got none")
        others = [name for name in names if name not in own]
        continuous = [name for name in others if not trace.nodes[name]["fn"].support.is_discrete]
        discrete = [name for name in others if name not in continuous]
        rest: list[tuple[MCMCKernel, Any]] = [(BinaryGibbs(self.model), discrete)] if discrete else []
        return [(self, own), *rest, *([(NUTS(self.model), continuous)] if continuous else [])]


class _StructuredSite:
    """Log-likelihoods of the states of all entries of a site, from runs of a model.

    :param str name: Name of the site.
    :param trace: Trace of the model.
    :param model: A Pyro model, conditioned on all other sites.
    """

    def __init__(self, name: str, trace: Any, model: Callable[..., Any], args: Any, kwargs: Any) -> None:
        node = trace.nodes[name]
        base = entry_distribution(node["fn"])
        if not _can_reweight(base):
            raise ValueError(
                f"{name}: expected a distribution with reweight for StructuredGibbs, such as RecursiveCardinality, "
                f"KSubset, JunctionTree or GridCRF, got {node['fn']}; binary sites are updated by BinaryGibbs"
            )
        if node["mask"] is not None or not isinstance(node["scale"], (int, float)) or node["scale"] != 1:
            raise ValueError(f"{name}: expected a site without mask and scale for StructuredGibbs, got one with them")
        self.name, self.num_runs = name, 0
        self._model, self._args, self._kwargs = model, args, kwargs
        self._is_binary = isinstance(entry_constraint(base.support), type(constraints.boolean))
        sizes: Tensor | int = 2 if self._is_binary else base.support.base_constraint.upper_bound + 1
        shape = node["value"].shape
        # Numbers of states of all entries, shape (N,).
        self._sizes = sizes.expand(shape).flatten() if isinstance(sizes, Tensor) else torch.full(shape, sizes).flatten()
        # Of each log-density after the site the entry it depends on: -1 for none, -2 for several.
        self._owners: Tensor | None = None

    def state(self) -> dict[str, Any]:
        return {"owners": self._owners, "num_runs": self.num_runs}

    def load_state(self, state: dict[str, Any]) -> None:
        self._owners, self.num_runs = state["owners"], state["num_runs"]

    def draw(self, values: dict[str, Tensor]) -> Tensor:
        """A draw given everything else.

        :raises ValueError: if the likelihood is no sum over entries.
        """
        self._values, self._value = values, values[self.name]
        self._sizes = self._sizes.to(self._value.device)
        for attempt in range(2):
            is_new = attempt > 0 or self._owners is None
            if is_new:
                self._owners = self._find_owners()
            log_likelihoods, constant = self._log_likelihoods()
            drawn = self._sample(log_likelihoods)
            # Another value shows dependencies of values that are hardly ever drawn.
            tried = [drawn, self._random_value()] if is_new else [drawn]
            if all(self._is_sum(value, log_likelihoods, constant) for value in tried):
                return drawn
        raise ValueError(
            f"{self.name}: expected log-densities of later sites that add up over the entries of the site, as "
            "elementwise likelihoods do, got others; BinaryGibbs updates binary sites under any likelihood"
        )

    def _sample(self, log_likelihoods: Tensor) -> Tensor:
        base = entry_distribution(self._prior)
        shape = self._value.shape
        if self._is_binary:
            posterior = base.reweight(*log_likelihoods.reshape(2, *shape))
        else:
            posterior = base.reweight(log_likelihoods.T.reshape(*shape, -1))
        drawn: Tensor = posterior.sample().to(self._value.dtype)
        return drawn

    def _random_value(self) -> Tensor:
        noise = torch.rand(self._sizes.shape, device=self._value.device)
        return (noise * self._sizes).long().reshape(self._value.shape)

    def _is_sum(self, value: Tensor, log_likelihoods: Tensor, constant: Tensor) -> bool:
        """Whether the log-likelihood of a value is the sum over entries."""
        terms = log_likelihoods.gather(0, value.long().reshape(1, -1))
        expected, total = constant + terms.sum(), self._terms(value).sum()
        size = 1 + terms.masked_fill(terms.isinf(), 0.0).abs().sum() + constant.abs()
        return bool((expected == total) | ((expected - total).abs() <= ROUNDING * size))

    def _log_likelihoods(self) -> tuple[Tensor, Tensor]:
        """Terms of all states, shape ``(K, N)``, and the constant of their sum."""
        assert self._owners is not None
        most, number = int(self._sizes.max()), len(self._sizes)
        found = torch.zeros(most, number, dtype=torch.double, device=self._value.device)
        alone, several = self._owners >= 0, self._owners == -2
        constant = found.new_zeros(())
        for state in range(most):
            states = torch.minimum(self._sizes - 1, self._sizes.new_tensor(state))
            terms = self._terms(states.reshape(self._value.shape))
            found[state].index_add_(0, self._owners[alone], terms[alone])
            if state == 0:
                constant = terms[self._owners == -1].sum()
        if bool(several.any()):
            constant = constant + self._add_joint_terms(found, several)
        if bool(found.isnan().any()):
            raise ValueError(f"{self.name}: expected log-densities of later sites that are numbers, got NaN")
        return found, constant

    def _add_joint_terms(self, found: Tensor, several: Tensor) -> Tensor:
        """Adds differences of log-densities of several entries, each entry changed alone; returns their present sum."""
        present = self._value.long().flatten()
        level = self._terms(self._value)[several].sum()
        for entry, size in enumerate(self._sizes.tolist()):
            for state in range(size):
                if state != present[entry]:
                    changed = present.clone()
                    changed[entry] = state
                    found[state, entry] += self._terms(changed.reshape(self._value.shape))[several].sum() - level
        return level

    def _find_owners(self) -> Tensor:
        """Entries on which log-densities depend, by changing those whose numbers have, or have not, a binary digit."""
        present = self._value.long().flatten()
        other = ((present + 1) % self._sizes).reshape(self._value.shape)
        numbers = torch.arange(len(self._sizes), device=self._value.device).reshape(self._value.shape)
        level = self._terms(self._value)
        owners = torch.zeros(len(level), dtype=torch.long, device=level.device)
        several = torch.zeros(len(level), dtype=torch.bool, device=level.device)
        none = ~several
        for digit in range(max(1, math.ceil(math.log2(len(self._sizes))))):
            has_digit = (numbers >> digit) % 2 == 1
            with_digit, without = (
                self._terms(torch.where(chosen, other, self._value.long())) != level
                for chosen in (has_digit, ~has_digit)
            )
            owners += with_digit.long() << digit
            several |= with_digit & without
            none &= ~(with_digit | without)
        return owners.masked_fill(none, -1).masked_fill(several, -2)

    def _terms(self, value: Tensor) -> Tensor:
        """All log-densities of later sites, before they are summed, in double precision."""
        self.num_runs += 1
        model: Any = poutine.trace(
            poutine.condition(self._model, data={**self._values, self.name: value.to(self._value.dtype)})
        )
        trace = model.get_trace(*self._args, **self._kwargs)
        self._prior = trace.nodes[self.name]["fn"]
        terms = [_log_densities(node).flatten() for _, node in later_sites(trace, self.name)]
        return torch.cat(terms) if terms else torch.zeros(0, dtype=torch.double, device=value.device)


def _can_reweight(base: Any) -> bool:
    return hasattr(base, "reweight")


def _log_densities(node: Any) -> Tensor:
    """Log-densities of a site's value with as many axes as its distribution has before axes are declared an event."""
    fn = node["fn"]
    base = entry_distribution(fn)
    terms: Tensor = base.log_prob(node["value"]).double()
    extra = (1,) * (len(base.batch_shape) - len(fn.batch_shape))
    scale, mask = node["scale"], node["mask"]
    if isinstance(scale, Tensor):
        scale = scale.reshape(scale.shape + extra)
    terms = terms * scale
    if mask is False:
        return torch.zeros_like(terms)
    if isinstance(mask, Tensor):
        mask = mask.reshape(mask.shape + extra)
        terms = torch.where(mask, terms, 0.0)
    return terms
