"""Results of Pyro's MCMC for ArviZ."""

__all__ = ["to_arviz"]

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyro.distributions as dist
import torch
from pyro import poutine
from torch import Tensor
from tqdm import trange

from pyro_structured.foundation.distributions.independent_parts import unmasked
from pyro_structured.foundation.inference.restore_dtypes import restore_dtypes
from pyro_structured.foundation.inference.site_handlers import handler_of
from pyro_structured.foundation.ops.private_members import is_plate, mcmc_run


def to_arviz(
    mcmc: Any,
    posterior_predictive: Mapping[str, Tensor] | None = None,
    log_likelihood: Sequence[str] = (),
    coords: Mapping[str, Any] | None = None,
    dims: Mapping[str, Sequence[str]] | None = None,
) -> Any:
    """Converts the draws of a finished run, with any kernel, to ArviZ's data structure.

    The groups are ``posterior``, of shape (chains, draws, ...) and with the dtypes that sites have in the model;
    ``sample_stats``, with ``diverging``, if a kernel reports divergences; ``observed_data``; and those that are asked
    for. Needs ArviZ: ``pip install pyro-structured[arviz]``.

    :param mcmc: A :class:`pyro.infer.MCMC` after ``run``.
    :param posterior_predictive: Draws from ``Predictive(model, mcmc.get_samples())``, shape (chains * draws, ...).
    :param log_likelihood: Names of observed sites; the model is run once for every draw, with a progress bar. Masked
        entries count 0.
    :param coords: Labels of dimensions.
    :param dims: Names of the dimensions of sites.
    :return: ``arviz.InferenceData`` from ArviZ 0.x, ``xarray.DataTree`` from 1.x.
    :raises ImportError: without ArviZ.
    :raises ValueError: if the run is not finished; if a site of ``log_likelihood`` is not observed or has no
        log-likelihood, as optima of random costs; if the number of predictions is not that of the draws.

    **References**

    Kumar, Carroll, Hartikainen, Martin (2019): ArviZ: a unified library for exploratory analysis of Bayesian models in
    Python. JOSS 4(33).

    Example::

        >>> import pyro
        >>> from pyro.infer import MCMC, NUTS
        >>> def model():
        ...     x = pyro.sample("x", dist.Normal(0.0, 1.0))
        ...     with pyro.plate("rows", 3):
        ...         pyro.sample("y", dist.Normal(x, 1.0), obs=torch.ones(3))
        >>> mcmc = MCMC(NUTS(model), num_samples=5, warmup_steps=5, disable_progbar=True)
        >>> mcmc.run()
        >>> to_arviz(mcmc, log_likelihood=["y"]).log_likelihood["y"].shape
        (1, 5, 3)
    """
    try:
        arviz = importlib.import_module("arviz")
    except ImportError:
        raise ImportError("to_arviz: expected ArviZ, got none; pip install pyro-structured[arviz]") from None
    if not hasattr(mcmc, "_samples"):
        raise ValueError(f"mcmc: expected a pyro.infer.MCMC, got {mcmc!r}")
    run = mcmc_run(mcmc)
    if run.draws is None:
        raise ValueError("mcmc: expected a finished run, got none; call mcmc.run first")
    for name, given in (("posterior_predictive", posterior_predictive), ("coords", coords), ("dims", dims)):
        if given is not None and not (isinstance(given, Mapping) and all(isinstance(key, str) for key in given)):
            raise ValueError(f"{name}: expected a mapping of names, or None, got {given!r}")
    model, args, kwargs = mcmc.kernel.model, run.args, run.kwargs
    samples = restore_dtypes(mcmc.get_samples(group_by_chain=True), model, *args, **kwargs)
    with torch.no_grad(), poutine.block():
        trace: Any = poutine.trace(model).get_trace(*args, **kwargs)
    groups = {
        "posterior": {name: _array(value) for name, value in samples.items()},
        "sample_stats": _sample_stats(mcmc),
        "observed_data": {name: _array(trace.nodes[name]["value"]) for name in _observed(trace)},
        "posterior_predictive": _predictions(posterior_predictive or {}, samples),
        "log_likelihood": _log_likelihood(mcmc, samples, log_likelihood, trace),
    }
    named: dict[str, Any] = {name: value for name, value in (("coords", coords), ("dims", dims)) if value is not None}
    filled = {name: group for name, group in groups.items() if group}
    if arviz.__version__.startswith("0."):
        return arviz.from_dict(**filled, **named)
    return arviz.from_dict(filled, **named)


def _array(value: Tensor) -> np.ndarray:
    return value.detach().cpu().numpy()


def _observed(trace: Any) -> list[str]:
    """Names of the observed sites that are random: neither factors nor deterministic sites."""
    return [
        name
        for name in trace.observation_nodes
        if not trace.nodes[name]["infer"].get("_deterministic")
        and not isinstance(trace.nodes[name]["fn"], dist.Unit)
        and not is_plate(trace.nodes[name]["fn"])
    ]


def _sample_stats(mcmc: Any) -> dict[str, np.ndarray]:
    # Gibbs puts the name of a kernel in front if several report divergences.
    chains = [
        [draws for name, draws in reported.items() if name == "divergences" or name.endswith(" divergences")]
        for reported in mcmc_run(mcmc).diagnostics
    ]
    if not chains[0]:
        return {}
    diverging = np.zeros((mcmc.num_chains, mcmc.num_samples), dtype=bool)
    for chain, kernels in enumerate(chains):
        for draws in kernels:
            diverging[chain, draws] = True
    return {"diverging": diverging}


def _predictions(predictive: Mapping[str, Tensor], samples: dict[str, Tensor]) -> dict[str, np.ndarray]:
    chains, draws = next(iter(samples.values())).shape[:2]
    for name, value in predictive.items():
        if not isinstance(value, Tensor) or not value.dim():
            raise ValueError(f"posterior_predictive: expected a tensor of draws of {name!r}, got {value!r}")
        if len(value) != chains * draws:
            raise ValueError(
                f"posterior_predictive: expected {chains * draws} draws of {name!r}, as many as of the posterior, got "
                f"{len(value)}"
            )
    return {name: _array(value).reshape(chains, draws, *value.shape[1:]) for name, value in predictive.items()}


def _log_likelihood(mcmc: Any, samples: dict[str, Tensor], names: Sequence[str], trace: Any) -> dict[str, np.ndarray]:
    known = isinstance(names, Sequence) and not isinstance(names, str)
    if not known or any(name not in _observed(trace) for name in names):
        raise ValueError(f"log_likelihood: expected a list of observed sites, {_observed(trace)}, got {names!r}")
    if not names:
        return {}
    for name in names:
        _require_log_likelihood(name, trace)
    _, args, kwargs, _ = mcmc_run(mcmc)
    chains, draws = next(iter(samples.values())).shape[:2]
    flat = {name: value.flatten(0, 1) for name, value in samples.items()}
    entries: dict[str, list[np.ndarray]] = {name: [] for name in names}
    for draw in trange(chains * draws, desc="log likelihood", unit="draw", disable=None, leave=False):
        given = poutine.condition(mcmc.kernel.model, data={name: value[draw] for name, value in flat.items()})
        with torch.no_grad(), poutine.block():
            drawn: Any = poutine.trace(given).get_trace(*args, **kwargs)
        drawn.compute_log_prob(lambda name, _: name in names)
        for name in names:
            entries[name].append(_array(drawn.nodes[name]["log_prob"]))
    return {name: np.stack(rows).reshape(chains, draws, *rows[0].shape) for name, rows in entries.items()}


def _require_log_likelihood(name: str, trace: Any) -> None:
    node = trace.nodes[name]
    fn = unmasked(node["fn"])
    try:
        handler_of(fn).check_log_likelihood(fn, node["value"])
    except NotImplementedError as error:
        raise ValueError(f"log_likelihood: expected sites with a log-likelihood, got {name!r}: {error}") from error
