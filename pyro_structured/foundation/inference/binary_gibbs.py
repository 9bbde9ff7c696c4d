"""Gibbs sampling of binary sites, entry by entry."""

__all__ = ["BinaryGibbs", "BinarySite"]

from collections.abc import Callable
from typing import Any

import torch
from pyro import poutine
from pyro.distributions.util import scale_and_mask
from pyro.infer import NUTS
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel
from torch import Tensor
from torch.distributions import constraints

from pyro_structured.foundation.distributions.independent_parts import entry_constraint
from pyro_structured.foundation.inference.gibbs import StepKernel
from pyro_structured.foundation.inference.latent_state import at_random, latent_sites, later_sites
from pyro_structured.foundation.inference.live_model import NamedLatents
from pyro_structured.foundation.inference.site_handlers import confined_sites, log_weight

# Relative difference up to which log-densities of rows count as equal.
ROUNDING = 1e-3


class BinarySite:
    """Values and densities of the rows of a binary site.

    Rows are indexed by those plates that all later sites of the model share, as only later sites depend on a value.

    :param str name: Name of the site.
    :param trace: Trace of the model.
    :param model: A Pyro model, conditioned on all other sites.
    :ivar Tensor rows: Present values, shape ``(rows, entries)``.
    :raises ValueError: if the site is not binary.
    """

    def __init__(self, name: str, trace: Any, model: Callable[..., Any], args: Any, kwargs: Any) -> None:
        fn = trace.nodes[name]["fn"]
        if not _has_two_states(fn.support):
            raise ValueError(
                f"{name}: expected a binary site for BinaryGibbs, whose support is boolean, or 0 and 1, got {fn}; a "
                "category may be a KSubset(logits, 1), a vector with a single one, StructuredGibbs draws sites whose "
                "distribution has reweight, and other discrete sites need a kernel of their own in Gibbs, such as a "
                "StepKernel"
            )
        self.name, self._model, self._args, self._kwargs = name, model, args, kwargs
        later_plates = [_plates(node) for _, node in later_sites(trace, name)]
        self._dims = sorted(dim for _, dim in _plates(trace.nodes[name]).intersection(*later_plates))
        self._axes = [dim - len(fn.event_shape) for dim in self._dims]
        self._front = list(range(len(self._dims)))

    def start(self, values: dict[str, Tensor]) -> None:
        """Sets the present values of the kernel's sites."""
        moved = values[self.name].movedim(self._axes, self._front)
        self._shape = moved.shape
        self.rows = moved.reshape(moved.shape[: len(self._axes)].numel(), -1)
        self._values = values
        trace = self._run(values)
        self._node = trace.nodes[self.name]
        self._densities = self._prior(self.rows) + self._likelihood(trace)

    def value(self, rows: Tensor) -> Tensor:
        """Value of the site from its rows, shape ``(rows, entries)``."""
        return rows.reshape(self._shape).movedim(self._front, self._axes)

    def move(self, proposed: Tensor) -> Tensor:
        """Metropolis step of each row for a symmetric proposal.

        :param Tensor proposed: Proposed rows, shape ``(rows, entries)``.
        :return: Whether each row moved, shape ``(rows,)``.
        """
        prior = self._prior(proposed)
        possible = prior > -torch.inf
        if not bool(possible.any()):
            return possible
        tried = torch.where(possible.unsqueeze(-1), proposed, self.rows)
        densities = prior + self._likelihood(self._run({**self._values, self.name: self.value(tried)}))
        noise = torch.rand(possible.shape, dtype=torch.double, device=possible.device).log()
        moved = possible & (noise < densities - self._densities)
        self.rows = torch.where(moved.unsqueeze(-1), proposed, self.rows)
        self._densities = torch.where(moved, densities, self._densities)
        return moved

    def finish(self) -> dict[str, Tensor]:
        """New values of the kernel's sites.

        :raises ValueError: if rows that moved at the same time depend on each other.
        """
        values = {**self._values, self.name: self.value(self.rows)}
        if len(self.rows) > 1:
            error = self._prior(self.rows) + self._likelihood(self._run(values)) - self._densities
            if bool((error.abs() > ROUNDING * (1 + self._densities.abs())).any()):
                raise ValueError(
                    f"{self.name}: expected rows of its plates to be independent given all other sites, as plates say, "
                    f"got densities that change by {float(error.abs().max()):.2g} with other rows"
                )
        return values

    def _run(self, values: dict[str, Tensor]) -> Any:
        model: Any = poutine.trace(poutine.condition(self._model, data=values))
        return model.get_trace(*self._args, **self._kwargs)

    def _prior(self, rows: Tensor) -> Tensor:
        """Log-densities of rows given earlier sites, by the site's present distribution, shape ``(rows,)``."""
        log_prob = log_weight(self._node["fn"], self.value(rows))
        return self._sum(scale_and_mask(log_prob, self._node["scale"], self._node["mask"]))

    def _likelihood(self, trace: Any) -> Tensor:
        """Log-densities of all later sites, shape ``(rows,)``."""
        later = dict(later_sites(trace, self.name))
        trace.compute_log_prob(lambda name, _: name in later)
        zeros = torch.zeros(len(self.rows), dtype=torch.double, device=self.rows.device)
        return zeros + sum(self._sum(node["log_prob"]) for node in later.values())

    def _sum(self, log_probs: Tensor) -> Tensor:
        """Sums over all axes but those of rows, shape ``(rows,)``."""
        kept = [dim + log_probs.dim() for dim in self._dims]
        summed = [axis for axis in range(log_probs.dim()) if axis not in kept]
        exact = log_probs.double()
        return (exact.sum(summed) if summed else exact).reshape(-1)


def _has_two_states(support: Any) -> bool:
    """Whether all entries are booleans, or zeros and ones among the integers, as in junction trees of two states."""
    entry = entry_constraint(support)
    if isinstance(entry, constraints.integer_interval):
        lowest, highest = (torch.as_tensor(bound) for bound in (entry.lower_bound, entry.upper_bound))
        return bool((lowest == 0).all() and (highest == 1).all())
    return isinstance(entry, type(constraints.boolean))


def _plates(node: Any) -> set[tuple[str, int]]:
    return {(frame.name, frame.dim) for frame in node["cond_indep_stack"] if frame.vectorized}


class BinaryGibbs(StepKernel):
    r"""Flips and swaps the entries of binary sites, under any prior and any likelihood; a kernel for ``MCMC``.

    .. math::
        P(x \to x') = \min\{1,\; p(x', \text{rest}) / p(x, \text{rest})\},

    where :math:`x'` differs from :math:`x` in one entry, or has a one and a zero exchanged. Of the two values of an
    entry, a Gibbs sampler often draws the old one again; to accept the other one with this probability also leaves the
    conditional distribution invariant, and never has a larger asymptotic variance (Metropolised Gibbs sampler). Swaps
    keep the number of ones: they let priors with a fixed or bounded number of ones mix, such as
    :class:`~pyro_structured.distributions.KSubset` and :class:`~pyro_structured.distributions.RecursiveCardinality`.

    Priors that allow numbers of ones only with gaps of more than one are beyond it: no move leads across.

    Sites are those whose support is boolean, or the integers 0 and 1, as of junction trees of two states. In each step
    every entry of a row is tried once in random order, and then as many pairs of a one and a zero at random. Rows of
    plates are updated at the same time where that is exact: if all sites that come after a site in the model are in its
    plates too, as plates say that their rows are independent. Sites that a binary site has no influence on are best
    sampled before it. Other sites are updated with the joint density, as one row.

    Alone, it is the composition ``Gibbs([(BinaryGibbs(model), discrete), (NUTS(model), continuous)])``.

    :param model: A Pyro model.
    :raises ValueError: at the start of a run, if a site is not binary; if rows of a plate turn out to depend on each
        other.

    A step runs the model at most twice for each entry of a row; not where the site's own prior excludes the change in
    all rows.

    **References**

    Liu (1996): Peskun's theorem and a modified discrete-state Gibbs sampler. Biometrika 83(3).

    Example::

        >>> import pyro
        >>> import pyro.distributions as dist
        >>> from pyro.infer import MCMC
        >>> from pyro_structured.distributions import KSubset
        >>> def model():
        ...     x = pyro.sample("x", KSubset(torch.zeros(4), 2))
        ...     pyro.sample("y", dist.Normal(x @ torch.arange(4.0), 0.1), obs=torch.tensor(5.0))
        >>> mcmc = MCMC(BinaryGibbs(model), num_samples=100, warmup_steps=20, disable_progbar=True)
        >>> mcmc.run()
        >>> mcmc.get_samples()["x"].mean(0)
        tensor([0., 0., 1., 1.])
    """

    def prepare(self, model: Callable[..., Any], names: list[str], warmup_steps: int, args: Any, kwargs: Any) -> None:
        """Starts a chain."""
        trace: Any = poutine.trace(at_random(model)).get_trace(*args, **kwargs)
        self._sites = [BinarySite(name, trace, model, args, kwargs) for name in names]
        self._tried, self._accepted = {"flip": 0, "swap": 0}, {"flip": 0, "swap": 0}
        self._num_stuck = 0

    def step(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        """New values of all sites, one site after the other."""
        before = sum(self._accepted.values())
        for site in self._sites:
            site.start(values)
            self._flip(site)
            self._swap(site)
            values = site.finish()
        self._num_stuck += sum(self._accepted.values()) == before
        return values

    def _flip(self, site: BinarySite) -> None:
        order = torch.rand(site.rows.shape, device=site.rows.device).argsort(-1)
        for place in order.split(1, -1):
            flipped = (site.rows.gather(-1, place) == 0).to(site.rows.dtype)
            self._count("flip", site.move(site.rows.scatter(-1, place, flipped)))

    def _swap(self, site: BinarySite) -> None:
        # Rows with both ones and zeros, which swaps keep.
        mixed = (site.rows != site.rows[:, :1]).any(-1)
        for _ in range(site.rows.shape[-1] if bool(mixed.any()) else 0):
            noise = torch.rand(site.rows.shape, device=site.rows.device)
            one, zero = (noise.masked_fill(site.rows != bit, -1.0).argmax(-1, keepdim=True) for bit in (1, 0))
            swapped = site.rows.scatter(-1, one, 0).scatter(-1, zero, 1)
            self._count("swap", site.move(torch.where(mixed.unsqueeze(-1), swapped, site.rows))[mixed])

    def _count(self, kind: str, accepted: Tensor) -> None:
        self._tried[kind] += len(accepted)
        self._accepted[kind] += int(accepted.sum())

    def state_dict(self) -> dict[str, Any]:
        """Counters of the kernel; its sites have no state between steps."""
        return {"tried": self._tried, "accepted": self._accepted, "num_stuck": self._num_stuck}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the counters."""
        self._tried, self._accepted, self._num_stuck = state["tried"], state["accepted"], state["num_stuck"]

    def report(self) -> dict[str, Any]:
        """Shares of flips and swaps that were accepted, and the number of steps that changed nothing."""
        shares = {f"{kind} acceptance": self._accepted[kind] / max(1, tried) for kind, tried in self._tried.items()}
        return {**shares, "stuck steps": self._num_stuck}

    def composition(self, args: Any, kwargs: Any) -> list[tuple[MCMCKernel, Any]]:
        """Binary sites, then all continuous ones by NUTS."""
        trace: Any = poutine.trace(at_random(NamedLatents(self.model))).get_trace(*args, **kwargs)
        if confined_sites(trace):
            raise ValueError(
                "model: expected no observed RandOM or Argmin site, got some; compose kernels by Gibbs, and let "
                "ConstrainedSlice update their costs"
            )
        names = list(latent_sites(trace))
        continuous = [name for name in names if not trace.nodes[name]["fn"].support.is_discrete]
        discrete = [name for name in names if name not in continuous]
        return [(self, discrete), *([(NUTS(self.model), continuous)] if continuous else [])]
