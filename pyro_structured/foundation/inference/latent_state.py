"""Present values of all latent sites of a model."""

__all__ = ["LatentState", "at_random", "has_density", "latent_sites", "later_sites", "log_densities"]

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
from pyro import poutine
from pyro.distributions.util import scale_and_mask
from pyro.infer.autoguide.initialization import InitMessenger, init_to_uniform
from torch import Tensor
from torch.distributions import biject_to

from pyro_structured.foundation.distributions.independent_parts import entry_distribution
from pyro_structured.foundation.distributions.support_bounds import support_bounds
from pyro_structured.foundation.inference.site_handlers import (
    check_confined,
    confinement_of,
    handler_of,
    log_weight,
    random_value,
)
from pyro_structured.foundation.ops.private_members import is_plate


def later_sites(trace: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Names and nodes of all random sites after a site, deterministic ones and plates left out."""
    nodes = list(trace.nodes.items())
    for other, node in nodes[1 + [other for other, _ in nodes].index(name) :]:
        is_random = node["type"] == "sample" and not is_plate(node["fn"])
        if is_random and not node["infer"].get("_deterministic"):
            yield other, node


# Largest number of draws of a start of positive density.
ATTEMPTS = 100
# Largest number of draws at which the density of confined sites is zero.
MOST_IMPROBABLE = 20


class LatentState:
    """Values of latent sites, as the model sees them; confined ones in double precision, so that they stay feasible.

    :param model: A Pyro model, :class:`NamedLatents`.
    :param initial_params: Values to start with, of some or all sites, unconstrained.
    :param strategy: Initialisation strategy of all sites but those that observed ones confine, such as costs.
    :ivar trace: Trace of the model at the start.
    :ivar dict values: Values of all latent sites.
    :ivar dict transforms: Transforms to unconstrained space, for sites that need one.
    :ivar set confined: Names of latent sites that observed ones confine.
    :raises ValueError: if a start is infeasible or has density zero, or a plate is subsampled.
    """

    @torch.no_grad()
    def __init__(
        self,
        model: Callable[..., Any],
        args: Any,
        kwargs: Any,
        initial_params: dict[str, Tensor] | None = None,
        strategy: Callable[..., Any] = init_to_uniform,
    ) -> None:
        self.transforms: dict[str, Any] = {}
        self._written: dict[str, Tensor] = {}
        start, second = (poutine.trace(at_random(model)).get_trace(*args, **kwargs) for _ in range(2))
        pairs = confinement_of(start)
        self.confined = {latent for _, (latent, _) in pairs}
        self.names = list(latent_sites(start))
        self._check_names(latent_sites(second))
        check_confined(start)
        for name in self.names:
            support = start.nodes[name]["fn"].support
            if name not in self.confined and not support.is_discrete:
                self.transforms[name] = biject_to(support).inv
                _check_support(name, start, second)
        given = self._given(initial_params, start)
        self.trace, confined = self._find_start(model, args, kwargs, strategy, given, pairs)
        self._check_names([*latent_sites(self.trace), *given])
        self.values: dict[str, Tensor] = {name: self.trace.nodes[name]["value"].detach() for name in self.names}
        self.dtypes = {name: value.dtype for name, value in self.values.items()}
        self.values.update(confined)
        values = {name: self.seen(name) for name in self.names}
        self.trace = poutine.trace(poutine.condition(model, data=values)).get_trace(*args, **kwargs)

    def _check_names(self, names: Iterable[str]) -> None:
        """Raises a ValueError if a trace has other latent sites than another one."""
        known, found = sorted(self.names), sorted(names)
        if known != found:
            raise ValueError(f"model: expected the same latent sites at all values, got {known} and {found}")

    def _given(self, initial_params: dict[str, Tensor] | None, trace: Any) -> dict[str, Tensor]:
        given = {}
        for name, value in (initial_params or {}).items():
            if name not in self.names:
                raise ValueError(f"initial_params: expected latent sites of the model, {self.names}, got {name!r}")
            present = trace.nodes[name]["value"]
            if not value.is_floating_point() and present.is_floating_point():
                value = value.to(present.dtype)
            value = self.transforms[name].inv(value) if name in self.transforms else value
            if value.shape != present.shape:
                raise ValueError(
                    f"initial_params: expected shape {tuple(present.shape)} for site {name!r}, got {tuple(value.shape)}"
                )
            if bool(value.isnan().any()):
                raise ValueError(f"initial_params: expected numbers for site {name!r}, got nan")
            given[name] = value
        return given

    def _find_start(
        self, model: Any, args: Any, kwargs: Any, strategy: Any, given: dict[str, Tensor], pairs: list[Any]
    ) -> tuple[Any, dict[str, Tensor]]:
        """Trace in which all but the confined sites have a positive density, and the sites that confine them are
        feasible; and values of the confined sites, of positive density if some are found.
        """
        # The values of confined sites are checked later.
        hidden = {name for _, site in pairs for name in site}
        refusal = ValueError(
            f"initial_params: expected values of positive density, got none in {ATTEMPTS} draws of the initialisation"
        )
        confined, tried = {pair[1][0]: pair for pair in pairs}, None
        improbable, left = None, MOST_IMPROBABLE
        for _ in range(ATTEMPTS):
            initialised: Any = InitMessenger(partial(_initial_value, strategy, self.confined))
            started = poutine.condition(initialised(model), data=given)
            trace = poutine.trace(started).get_trace(*args, **kwargs)
            if not _log_weight(trace, hidden) > -float("inf"):
                continue
            try:
                for confinement, site in pairs:
                    confinement.check_feasible(site, trace)
            except ValueError as error:
                # Whether a site is feasible may depend on the values drawn.
                refusal = error
                continue
            try:
                starts = {
                    name: confinement.start(site, trace, name in given)
                    for name, (confinement, site) in confined.items()
                }
            except ValueError as error:
                # Bounds of confined sites may leave no room at some values of others. The same bounds do so again.
                bounds = [end for name in confined for end in support_bounds(trace.nodes[name]["fn"])]
                if tried is not None and all(map(torch.equal, bounds, tried)):
                    raise
                refusal, tried = error, bounds
                continue
            if all(name in given or has_density(trace.nodes[name], value) for name, value in starts.items()):
                return trace, starts
            # Not all kernels look at densities, and updates may lead to some.
            improbable, left = improbable or (trace, starts), left - 1
            if not left or set(self.names) <= given.keys() | self.confined:
                break
        if improbable is None:
            raise refusal
        return improbable

    def seen(self, name: str) -> Tensor:
        """Value of a site in the dtype that it has in the model."""
        value: Tensor = self.values[name].to(self.dtypes[name])
        return value

    def params(self, names: Iterable[str] | None = None) -> dict[str, Tensor]:
        """Unconstrained values by site, as Pyro's kernels take them; costs and discrete values as they are."""
        chosen = self.names if names is None else names
        params = {}
        for name in chosen:
            value = self.seen(name)
            params[name] = self.transforms[name](value) if name in self.transforms else value
        if names is None:
            self._written = params
        return dict(params)

    def read(self, params: dict[str, Tensor]) -> None:
        """Sets unconstrained values, unless they are those that :meth:`params` returned last."""
        for name, value in params.items():
            last = self._written.get(name)
            if last is not None and (last is value or torch.equal(last, value)):
                continue
            value = value.detach()
            self.update({name: self.transforms[name].inv(value) if name in self.transforms else value})

    def update(self, values: dict[str, Tensor]) -> None:
        """Sets values as the model sees them, costs in any precision."""
        self.values.update(values)


def _check_support(name: str, *traces: Any) -> None:
    """Raises a ValueError if a support differs between traces: Pyro's transform is that of the support at the start."""
    ends = [support_bounds(trace.nodes[name]["fn"]) for trace in traces]
    if not all(torch.equal(*pair) for pair in zip(*ends, strict=True)):
        raise ValueError(
            f"{name}: expected a support that is the same for all latent values, got bounds that change with them; "
            "scale a site of a fixed support, such as Uniform(0, 1), instead"
        )


def _log_weight(trace: Any, hidden: set[str]) -> float:
    """Log-density of all sites but the hidden ones, without log partition functions that are out of reach."""
    unnormalized = {name: node for name, node in trace.nodes.items() if not _is_normalized(node.get("fn"))}
    trace.compute_log_prob(lambda name, _: name not in hidden and name not in unnormalized)
    others = sum(float(node["log_prob_sum"]) for node in trace.nodes.values() if "log_prob_sum" in node)
    weights = (log_weight(node["fn"], node["value"]) for node in unnormalized.values())
    return others + sum(
        float(scale_and_mask(weight, node["scale"], node["mask"]).sum())
        for weight, node in zip(weights, unnormalized.values(), strict=True)
    )


def log_densities(node: Any, value: Tensor) -> Tensor:
    """Log-densities of the rows of a continuous site, as the model computes them in its own precision; -inf for all if
    some value is outside of the support.
    """
    value = value.to(node["value"].dtype)
    if not value.numel():
        # Torch's densities refuse empty tensors.
        return torch.zeros(node["fn"].batch_shape)
    if not bool(node["fn"].support.check(value).all()):
        return torch.full(node["fn"].batch_shape, -torch.inf)
    weights: Tensor = scale_and_mask(node["fn"].log_prob(value), node["scale"], node["mask"])
    return weights


def has_density(node: Any, value: Tensor) -> bool:
    """Whether the density of a continuous site, as the model computes it, is a positive number everywhere."""
    return bool(log_densities(node, value).isfinite().all())


def _is_normalized(fn: Any) -> bool:
    return handler_of(entry_distribution(fn)).is_normalized


def at_random(model: Any) -> Any:
    """Model whose latent sites are initialised by :func:`random_value`, with cheap values of positive density."""
    messenger: Any = InitMessenger(random_value)
    return messenger(model)


def _initial_value(strategy: Callable[..., Any], confined: set[str], site: Any) -> Tensor:
    chosen: Any = random_value if site["name"] in confined or site["fn"].support.is_discrete else strategy
    value: Tensor = chosen(site)
    return value


def latent_sites(trace: Any) -> Iterable[str]:
    """Names of the latent sites of a trace, without plates.

    :raises ValueError: if a plate is subsampled.
    """
    for name, node in trace.iter_stochastic_nodes():
        fn = node["fn"]
        if is_plate(fn):
            if fn.subsample_size is not None and fn.subsample_size < fn.size:
                raise ValueError(
                    f"{name}: expected a plate without subsampling, got {fn.subsample_size} of {fn.size} rows"
                )
            continue
        yield name
