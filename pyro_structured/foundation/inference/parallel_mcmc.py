"""Markov chains in several processes."""

__all__ = ["ParallelMCMC"]

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from pyro.infer import MCMC
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel
from torch import Tensor

from pyro_structured.foundation.inference.checkpoint import Checkpoint
from pyro_structured.foundation.inference.seeded_runs import seeded_runs
from pyro_structured.foundation.ops.private_members import MCMCRun, keep_mcmc_run, mcmc_run
from pyro_structured.foundation.ops.progress import verbosity
from pyro_structured.foundation.structures.argument_checks import check_flag, check_size
from pyro_structured.foundation.structures.representation import Represented


class ParallelMCMC(Represented, MCMC):
    """Pyro's ``MCMC``, with each chain in a process of joblib's.

    Draws, ``diagnostics()``, ``summary()`` and :func:`to_arviz` are as for ``MCMC(..., num_chains=4)``, with any
    kernel. What differs from that:

    - There are as many processes as ``n_jobs`` says, and draws are the same for any number of them. Chains have seeds
      of their own, drawn from PyTorch's generator: a second run, and one with the next seed, have other chains.
    - Models may be lambdas, or stand in a notebook. Pyro's parameters, its settings and torch's default dtype are the
      same in every process.
    - An error in a chain names it and ends the run; so does a process that is killed, for which ``MCMC`` waits forever.
    - Progress is shown by chains that are finished, not by draws.

    :param kernel: Any kernel: of Pyro, of this package, or your own. :class:`Checkpoint` around it keeps each chain in
        a file, and goes on with the chains of a run that was killed.
    :param int num_samples: Number of draws of each chain.
    :param int warmup_steps: Number of steps before them; ``None``: as many as draws.
    :param dict initial_params: Unconstrained values to start with, with an axis of chains in front.
    :param int num_chains: Number of chains.
    :param n_jobs: Number of processes, as for scikit-learn: -1 is one for each processor, ``None`` is 1 unless in a
        ``joblib.parallel_config``.
    :param save_params: Names of sites to be kept; ``None``: all.
    :param bool disable_progbar: Whether to show no progress.
    :raises ValueError: if numbers are of another kind, or ``initial_params`` are not those of as many chains; in
        ``run``, if the kernel or the arguments of the model cannot be sent to other processes, or a chain fails by a
        ValueError.
    :raises RuntimeError: in ``run``, if a process is killed, or a chain fails by an error that is neither a ValueError
        nor a NotImplementedError.

    Starting processes takes some seconds; they are kept for later runs. Data are sent to every chain, draws come back
    when it ends.

    Example::

        >>> import pyro
        >>> import pyro.distributions as dist
        >>> from pyro.infer import NUTS
        >>> def model(y):
        ...     x = pyro.sample("x", dist.Normal(0.0, 1.0))
        ...     pyro.sample("y", dist.Normal(x, 1.0), obs=y)
        >>> mcmc = ParallelMCMC(NUTS(model), num_samples=20, warmup_steps=10, num_chains=2, n_jobs=1)
        >>> mcmc.run(torch.tensor(1.0))
        >>> mcmc.get_samples(group_by_chain=True)["x"].shape
        torch.Size([2, 20])
    """

    def __init__(
        self,
        kernel: MCMCKernel,
        num_samples: int,
        warmup_steps: int | None = None,
        initial_params: dict[str, Tensor] | None = None,
        num_chains: int = 4,
        n_jobs: int | None = -1,
        save_params: Sequence[str] | None = None,
        disable_progbar: bool = False,
    ) -> None:
        if not isinstance(kernel, MCMCKernel):
            raise ValueError(f"kernel: expected a kernel for pyro.infer.MCMC, got {kernel!r}")
        check_size("num_samples", num_samples)
        warmup_steps = num_samples if warmup_steps is None else warmup_steps
        check_size("warmup_steps", warmup_steps, 0)
        check_size("num_chains", num_chains)
        check_flag("disable_progbar", disable_progbar)
        starts = _starts(initial_params, num_chains)
        super().__init__(kernel, num_samples, warmup_steps, starts[0], save_params=save_params)  # type: ignore[no-untyped-call]
        self.num_chains, self.n_jobs, self.disable_progbar = num_chains, n_jobs, disable_progbar
        self._chain = _Chain(kernel, num_samples, warmup_steps, starts)

    def run(self, *args: Any, **kwargs: Any) -> None:
        """Runs all chains.

        :param args: Arguments of the model.
        :param kwargs: Keyword arguments of the model.
        """
        chain = self._chain._replace(args=args, kwargs=kwargs)
        shown = {"desc": "chains", "unit": "chain"}
        with verbosity(False if self.disable_progbar else None):
            runs = seeded_runs(chain.run, self.num_chains, self.n_jobs, "chain", "kernel or args", **shown)
        draws = {name: torch.stack([draws[name] for draws, _ in runs]) for name in runs[0][0]}
        keep_mcmc_run(self, MCMCRun(draws, args, kwargs, [diagnostics for _, diagnostics in runs]))


class _Chain(NamedTuple):
    """A chain, given its number.

    :ivar starts: Values to start with, for each chain.
    """

    kernel: MCMCKernel
    num_samples: int
    warmup_steps: int
    starts: list[dict[str, Tensor] | None]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}

    def run(self, number: int) -> tuple[dict[str, Tensor], Any]:
        # Pyro's kernels start a second chain with what they have learned in the first one.
        kernel = self.kernel.of_chain(number) if isinstance(self.kernel, Checkpoint) else copy.deepcopy(self.kernel)
        mcmc = MCMC(kernel, self.num_samples, self.warmup_steps, self.starts[number], disable_progbar=True)
        mcmc.run(*self.args, **self.kwargs)
        run = mcmc_run(mcmc)
        assert run.draws is not None
        return {name: value[0] for name, value in run.draws.items()}, run.diagnostics[0]


def _starts(initial_params: Any, num_chains: int) -> list[dict[str, Tensor] | None]:
    if initial_params is None:
        return [None] * num_chains
    if not isinstance(initial_params, dict) or not initial_params:
        raise ValueError(f"initial_params: expected tensors by the names of sites, got {initial_params!r}")
    for name, value in initial_params.items():
        if not isinstance(value, Tensor) or not value.dim() or len(value) != num_chains:
            got = tuple(value.shape) if isinstance(value, Tensor) else repr(value)
            raise ValueError(
                f"initial_params: expected a tensor of shape ({num_chains}, ...), a row for each chain, for {name!r}, "
                f"got {got}"
            )
    return [{name: value[chain] for name, value in initial_params.items()} for chain in range(num_chains)]
