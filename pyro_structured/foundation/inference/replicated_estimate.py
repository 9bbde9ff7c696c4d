"""Estimates that are the mean of several independent ones, made in several processes."""

__all__ = ["ReplicatedEstimate", "replicate_estimate"]

import math
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyro_structured.foundation.distributions.estimate_warning import EstimateWarning, warn_of_spread
from pyro_structured.foundation.inference.seeded_runs import seeded_runs
from pyro_structured.foundation.ops.log_mean_error import log_mean_error
from pyro_structured.foundation.ops.user_frame import frames_below_user
from pyro_structured.foundation.structures.argument_checks import check_size

# Largest number of replicates that a message names.
MOST_LISTED = 10


class ReplicatedEstimate(NamedTuple):
    """The logarithm of the mean of R independent estimates, in double precision.

    :ivar Tensor value: Logarithms of the means, shape ``(...)``.
    :ivar Tensor standard_error: Standard errors of these, from the spread of the estimates; infinite where at most one
        is positive.
    :ivar Tensor effective_number: Effective number of estimates in the mean, from 1 to R: near 1, one of them outweighs
        all others. 0 where all estimates are zero.
    :ivar Tensor replicates: Logarithms of the estimates, shape ``(R, ...)``.
    """

    value: Tensor
    standard_error: Tensor
    effective_number: Tensor
    replicates: Tensor


def replicate_estimate(
    estimate: Callable[[], Tensor | tuple[Tensor, Tensor]], num_replicates: int = 8, n_jobs: int | None = None
) -> ReplicatedEstimate:
    r"""Repeats an estimate with random numbers of its own, in several processes, and takes the mean.

    .. math::
        \log \hat Z = \log \frac1R \sum_{r=1}^R \hat Z_r

    is the estimate from all chains or particles of annealed importance sampling or sequential Monte Carlo together:
    unbiased before the logarithm, if each one is. Its standard error is the jackknife's over the replicates, times
    Student's factor. What the error of a single run does not show, as modes that some of the runs have missed, shows
    there.

    :param estimate: Function without arguments that returns an estimated logarithm, of any shape, or a pair of it and
        its standard error, which is not used: ``d.estimate_log_partition``, or, for a ``RandOM``, ``lambda:
        d.estimate_log_prob(y)``. With several processes it has to be picklable.
    :param int num_replicates: Number R of estimates, at least 2; 8 or more tell the standard error well.
    :param n_jobs: Number of processes, as for scikit-learn: ``None`` is 1 unless in a ``joblib.parallel_config``; -1 is
        one for each processor. Results are the same for all.
    :raises ValueError: if an argument is of another kind, or a replicate fails by a ValueError, with its number.
    :raises RuntimeError: if a process is killed, or a replicate fails by an error that is neither a ValueError nor a
        NotImplementedError.

    Log-probabilities of fields and of matrices are -log Z and a constant: estimate log Z, and subtract it from
    ``unnormalized_log_prob``. :class:`AnnealedImportanceSampling` with ``reverse=True`` is unbiased for 1/Z: estimate
    ``-d.estimate_log_partition()[0]``.

    No gradient; give the estimator of the distribution more chains for that. Starting processes takes some seconds;
    they are kept for later calls. An :class:`~pyro_structured.distributions.EstimateWarning` says where the standard
    error of the mean is above 0.5, and which replicates are NaN; means of these are NaN, too.

    Example::

        >>> from pyro_structured.distributions import RBM
        >>> from pyro_structured.inference import AnnealedImportanceSampling
        >>> torch.manual_seed(0)
        <torch._C.Generator object at ...>
        >>> d = RBM(torch.randn(5, 9), torch.randn(9), torch.randn(5), estimator=AnnealedImportanceSampling(20, 20))
        >>> found = replicate_estimate(d.estimate_log_partition, 8)
        >>> bool((found.value - d.log_partition_function).abs() < 4 * found.standard_error)
        True
    """
    if not callable(estimate):
        raise ValueError(f"estimate: expected a function without arguments, got {estimate!r}")
    check_size("num_replicates", num_replicates, 2)
    bar = {"desc": "replicates", "unit": "replicate"}
    estimates = seeded_runs(_Replicate(estimate).run, num_replicates, n_jobs, "replicate", "estimate", **bar)
    logs = torch.stack([_checked(found) for found in estimates])
    undefined = [place for place, each in enumerate(logs) if bool(each.isnan().any())]
    if undefined:
        shown = ", ".join(map(str, undefined[:MOST_LISTED]))
        more = f" and {len(undefined) - MOST_LISTED} more" * (len(undefined) > MOST_LISTED)
        message = f"estimate: expected logarithms, got NaN in replicates {shown}{more}"
        warnings.warn(message, EstimateWarning, stacklevel=frames_below_user())
    total = logs.logsumexp(0)
    effective = (2 * total - (2 * logs).logsumexp(0)).exp()
    found = ReplicatedEstimate(
        total - math.log(num_replicates), log_mean_error(logs), effective.masked_fill(total == -torch.inf, 0.0), logs
    )
    warn_of_spread(estimate, found.standard_error)
    return found


class _Replicate(NamedTuple):
    estimate: Callable[[], Any]

    def run(self, _: int) -> Any:
        with torch.no_grad(), warnings.catch_warnings():
            # The error of the mean is what counts.
            warnings.simplefilter("ignore", EstimateWarning)
            return self.estimate()


def _checked(found: Any) -> Tensor:
    value = found[0] if isinstance(found, tuple) and found else found
    if not isinstance(value, Tensor) or not value.is_floating_point():
        raise ValueError(f"estimate: expected one that returns an estimated logarithm, a tensor, got {found!r}")
    return value.double()
