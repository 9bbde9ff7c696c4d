"""Suite of checks of the contract of a distribution that is first-class in Pyro."""

__all__ = ["check_distribution"]

import contextlib
import itertools
import random
import warnings
from collections.abc import Iterator, Sequence

import numpy as np
import pyro
import torch

from pyro_structured.testing.check_gradients import GRADIENT_CHECKS
from pyro_structured.testing.check_inference import INFERENCE_CHECKS
from pyro_structured.testing.check_probabilities import PROBABILITY_CHECKS
from pyro_structured.testing.check_queries import QUERY_CHECKS
from pyro_structured.testing.check_shapes import SHAPE_CHECKS
from pyro_structured.testing.distribution_case import DistributionCase, DistributionFactory, log_prob_refusal

CHECKS = (*SHAPE_CHECKS, *PROBABILITY_CHECKS, *QUERY_CHECKS, *GRADIENT_CHECKS, *INFERENCE_CHECKS)


def check_distribution(
    factory: DistributionFactory,
    batch_shapes: Sequence[tuple[int, ...]] = ((), (3,), (2, 3)),
    dtypes: Sequence[torch.dtype] = (torch.float32, torch.float64),
    devices: Sequence[str] | None = None,
) -> None:
    r"""Checks that a distribution keeps the contract that Pyro's sites, guides and kernels rely on.

    The distribution itself tells which checks apply: values are enumerated where ``has_enumerate_support`` is true;
    ``mean``, ``entropy()``, ``condition`` and the like are compared where they exist; ``rsample``, where
    ``has_rsample`` is true. If ``log_prob`` raises a NotImplementedError, checks end where they need it, and the error
    has to name an alternative. Nothing can be switched off. The checks are

    - construction: ``arg_constraints`` hold, NaN is refused, arguments can be read from attributes of the same names;
    - shapes: ``sample``, also of no values, ``log_prob`` with values and parameters that broadcast, ``support``,
      ``enumerate_support``, ``infer_shapes``; ``expand`` once, repeatedly and wrongly; dtypes and devices; batches
      without elements; copies and pickles;
    - numbers: normalisation, values outside the support, goodness of fit of the sampler, moments, mode, entropy,
      cumulative probabilities, ``condition`` and ``marginal_log_prob``, ``marginal_logits``, ``count_marginals`` of
      ``subsets``, ``reweight`` and ``log_evidence``, Kullback-Leibler divergence, by enumeration; the identity that
      ``conjugate_update`` promises;
    - derivatives of the first and second order, of ``log_prob``, moments, marginals and entropy, along all parameters
      and along one, also by ``torch.func``, and where evidence of probability zero is masked out; float32 against
      float64, ``torch.vmap`` over values and parameters, alone and of gradients;
    - inference: plates, ``mask``, ``to_event``, ``Predictive(parallel=True)``, ``TraceEnum_ELBO``,
      ``get_dependencies``, and NUTS with the distribution as an observed and as an enumerated site;
    - no warnings.

    The random generators are seeded, and restored at the end. With some 20 values it takes a few seconds.

    :param factory: Called as ``factory(batch_shape, dtype, device=device)``; returns the distribution with parameters
        of that dtype on that device. Small is best: about 4 variables, and parameters that vary over the batch.
    :param batch_shapes: The batch shapes to ask for.
    :param dtypes: The dtypes to ask for.
    :param devices: The devices to ask for; ``None``: the CPU, and CUDA where there is one.
    :raises AssertionError: naming every check that failed, with what was expected and what came.

    Example::

        >>> import pyro.distributions as dist
        >>> def factory(batch_shape, dtype, device="cpu"):
        ...     loc = torch.linspace(-1, 1, batch_shape.numel(), dtype=dtype, device=device)
        ...     return dist.Normal(loc.reshape(batch_shape), 1.0)
        >>> check_distribution(factory, batch_shapes=[(3,)])
    """
    if devices is None:
        devices = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
    failures: dict[str, list[tuple[DistributionCase, Exception]]] = {}
    for arguments in itertools.product(devices, batch_shapes, dtypes):
        device, batch_shape, dtype = arguments
        case = DistributionCase(factory, tuple(batch_shape), dtype, device)
        with _isolated(device):
            refusal = log_prob_refusal(case.make())
        for check in CHECKS:
            try:
                with _isolated(device):
                    check(case)
            except Exception as error:
                if refusal is not None and _stems_from(error, refusal):
                    continue
                failures.setdefault(check.__name__, []).append((case, error))
    if failures:
        name = type(case.make()).__name__
        lines = [f"{name} breaks the contract of a Pyro distribution; failed checks:"]
        lines += [_describe(check, failure) for check, failure in failures.items()]
        raise AssertionError("\n".join(lines)) from next(iter(failures.values()))[0][1]


def _stems_from(error: BaseException | None, refusal: str) -> bool:
    """Whether an error is, or was raised from, the error with which a distribution refuses ``log_prob``."""
    while error is not None:
        if isinstance(error, NotImplementedError) and str(error) == refusal:
            return True
        error = error.__cause__
    return False


def _describe(check: str, found: list[tuple[DistributionCase, Exception]]) -> str:
    """Text on the first of a check's failures; failures with other batch shapes and dtypes mostly say the same."""
    case, error = found[0]
    kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
    more = f", and {len(found) - 1} more" if len(found) > 1 else ""
    return f"- {check} ({case}{more}): {kind}{error}"


@contextlib.contextmanager
def _isolated(device: str) -> Iterator[None]:
    """Makes checks deterministic and warnings errors, and restores generators and parameters afterwards."""
    states = random.getstate(), np.random.get_state()
    cuda = range(torch.cuda.device_count()) if device.startswith("cuda") else ()
    with (
        torch.random.fork_rng(cuda),
        warnings.catch_warnings(),
        pyro.get_param_store().scope(),
        pyro.validation_enabled(True),
    ):
        warnings.simplefilter("error")
        # Seeds of devices that nobody uses keep a list of all calls, which takes longer than some checks.
        for seed in (random.seed, np.random.seed, torch.default_generator.manual_seed):
            seed(0)
        if cuda:
            torch.cuda.manual_seed_all(0)
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])
