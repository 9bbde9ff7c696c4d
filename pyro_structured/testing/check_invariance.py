"""Whether a kernel leaves the posterior distribution invariant."""

__all__ = ["check_invariance"]

from collections.abc import Mapping
from typing import Any

import pyro
import torch
from pyro import poutine
from scipy.stats import chi2_contingency
from torch import Tensor
from tqdm import trange

from pyro_structured.foundation.inference.live_model import NamedLatents
from pyro_structured.testing.kernel_case import KernelCase

# Least p-value of all tests together, and number of cells of each test.
LEAST_P_VALUE, NUM_CELLS = 1e-6, 8
# Number of reference draws for each replicate.
REFERENCES = 5


def check_invariance(case: KernelCase, parameters: Mapping[str, Tensor], num_replicates: int, num_steps: int) -> None:
    """Compares the states of chains, some steps after starts from exact draws, with other exact draws.

    Latent variables and data together then follow the same distribution before and after. A kernel that ignores the
    data keeps the distribution of the latent variables, but not that of the likelihood.

    **References**

    Cook, Gelman, Rubin (2006): Validation of software for Bayesian models using posterior quantiles. JCGS 15(3).
    Geweke (2004): Getting it right. JASA 99(467).
    """
    reference = [_statistics(case, *case.draw()) for _ in range(REFERENCES * num_replicates)]
    names = list(reference[0])
    moved = []
    transforms: dict[str, Any] | None = None
    for _ in trange(num_replicates, desc="chains", disable=None, leave=False):
        latents, args = case.draw()
        transforms = case.transforms(args) if transforms is None else transforms
        start = {name: transforms[name](value) if name in transforms else value for name, value in latents.items()}
        params = _walk(case, start, args, parameters, num_steps)
        ends = {name: transforms[name].inv(value) if name in transforms else value for name, value in params.items()}
        moved.append(_statistics(case, ends, args))
    for name in names:
        p_value = _p_value(torch.stack([row[name] for row in reference]), torch.stack([row[name] for row in moved]))
        least = LEAST_P_VALUE / len(names)
        assert p_value > least, (
            f"invariance: expected chains from exact draws to keep the distribution of {name}, got a p-value of "
            f"{p_value:.2g}, below {least:.2g}"
        )


def _walk(
    case: KernelCase,
    start: dict[str, Tensor],
    args: tuple[Any, ...],
    parameters: Mapping[str, Tensor],
    num_steps: int,
) -> dict[str, Tensor]:
    store = pyro.get_param_store()
    right = {name: store[name].detach().clone() for name in parameters}
    for name, value in parameters.items():
        store[name] = value
    kernel = case.started(start, args)
    for name, value in right.items():
        store[name] = value
    params: dict[str, Tensor] = dict(kernel.initial_params)
    for _ in range(num_steps):
        params = kernel.sample(params)
    kernel.cleanup()
    return params


@torch.no_grad()
def _statistics(case: KernelCase, latents: dict[str, Tensor], args: tuple[Any, ...]) -> dict[str, Tensor]:
    """Statistics whose distributions are compared, by name: all entries, log-likelihood and log-density."""
    entries = {
        f"{name}[{index}]": entry
        for name, value in latents.items()
        for index, entry in enumerate(value.detach().double().flatten())
    }
    model = poutine.condition(NamedLatents(case.model), data=latents)
    trace: Any = poutine.trace(model).get_trace(*args)
    trace.compute_log_prob()
    nodes = {name: node for name, node in trace.nodes.items() if "log_prob_sum" in node}
    likelihoods = [node["log_prob_sum"].double() for name, node in nodes.items() if name not in latents]
    densities = [nodes[name]["log_prob_sum"].double() for name in latents]
    likelihood = torch.stack(likelihoods).sum() if likelihoods else torch.zeros((), dtype=torch.double)
    return {**entries, "the log-likelihood": likelihood, "the log-density": likelihood + torch.stack(densities).sum()}


def _p_value(reference: Tensor, found: Tensor) -> float:
    """P-value of a chi-square test of two samples, on cells between quantiles of the reference that divide no ties."""
    # Densities of many values are equal but for rounding.
    reference, found = (values.float() for values in (reference, found))
    ordered = reference.sort().values
    places = torch.arange(NUM_CELLS) * len(ordered) // NUM_CELLS
    edges = ordered[places].unique()
    counts = [torch.bincount(torch.bucketize(values, edges), minlength=len(edges) + 1) for values in (reference, found)]
    table = torch.stack(counts)[:, (counts[0] + counts[1]) > 0]
    return float(chi2_contingency(table.numpy(), correction=False).pvalue) if table.shape[1] > 1 else 1.0
