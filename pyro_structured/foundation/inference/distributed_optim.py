"""Optimisers of several processes that learn together."""

__all__ = ["DistributedOptim", "taking_part"]

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import pyro
import torch
from pyro.optim import PyroLRScheduler, PyroOptim
from torch import Tensor

from pyro_structured.foundation.inference.nonfinite_error import nonfinite_gradient
from pyro_structured.foundation.inference.peer_processes import PeerProcesses, present_peers
from pyro_structured.foundation.inference.random_state import spread_random_state
from pyro_structured.foundation.ops.private_members import share_optimizers, waiting_states
from pyro_structured.foundation.structures.argument_checks import checked_tensor
from pyro_structured.foundation.structures.representation import Represented, shortened


class _Moved(NamedTuple):
    """A parameter that a step moves.

    :ivar param: The parameter, unconstrained.
    :ivar has_gradient: Whether it has a gradient in any process.
    :ivar is_new: Whether no step has moved it yet.
    """

    param: Tensor
    has_gradient: bool
    is_new: bool

    def description(self) -> tuple[Any, ...]:
        """What has to be the same in all processes."""
        return tuple(self.param.shape), str(self.param.dtype), self.has_gradient, self.is_new


class DistributedOptim(Represented, PyroOptim):
    r"""An optimiser of Pyro for several processes that learn the same parameters from different rows.

    Before every step of the optimiser gradients are averaged,

    .. math::
        g = \sum_r \frac{m_r}{n} g_r, \qquad n = \sum_r m_r,

    where process r has :math:`m_r` rows. The plate, which is given these rows, multiplies their log-probability by
    :math:`n / m_r`: the average is the gradient for all rows, with every prior and every other site counted once, also
    if rows do not share out evenly. If there are several plates, those that are not shared out belong whole to every
    process. In a single process the optimiser acts as it is, so that the same file runs with and without ``torchrun``::

        if "RANK" in os.environ:
            torch.distributed.init_process_group("gloo")
        rows = shard_rows(len(y))

        def model():
            with pyro.plate("rows", len(y), subsample=rows):
                pyro.sample("y", ..., obs=y[rows])

        optim = DistributedOptim(pyro.optim.Adam({"lr": 0.01}), rows)
        svi = SVI(model, guide, optim, Trace_ELBO())

    A minibatch is a part of the process' own rows, for which ``rows[torch.randperm(len(rows))[:size]]`` is given to the
    plate.

    Parameters that are new in a step are those of process 0: if they are other ones elsewhere, the step only copies
    them. Random numbers of processes with the same seed are the same until the first step, and differ afterwards.

    An error in one process is an error in all, which names it, as ``rank``, and with it the row if that is known: a
    ValueError, a gradient that is not finite, Ctrl-C, the end of the process. In learners of this package such a step
    changes nothing anywhere, and all may go on; they refuse to learn in several processes without this optimiser, and
    return the loss of all rows. ``SVI`` returns that of the process' own rows, and an error in its model reaches other
    processes when it ends the program.

    :param optim: A Pyro optimiser, or a scheduler, whose :meth:`step` then moves all processes on alike.
    :param Tensor rows: Numbers of this process' rows, shape ``(m,)``, as :func:`shard_rows` returns them.
    :raises ValueError: if an argument is of another kind; in a step of several processes, if a gradient is not finite,
        parameters or optimisers are not the same everywhere, or processes have the same rows.
    :raises RuntimeError: in a step, if another process has ended, or has failed by anything but a ValueError or a
        NotImplementedError.

    A step exchanges one number for each entry of the parameters.

    Example::

        >>> import pyro.distributions as dist
        >>> from pyro.infer import SVI, Trace_ELBO
        >>> x = torch.tensor([1.0, 3.0])
        >>> def model():
        ...     with pyro.plate("rows", 2, subsample=torch.arange(2)) as rows:
        ...         pyro.sample("x", dist.Normal(pyro.param("mean", torch.tensor(0.0)), 1.0), obs=x[rows])
        >>> pyro.clear_param_store()
        >>> optim = DistributedOptim(pyro.optim.SGD({"lr": 0.25}), torch.arange(2))
        >>> svi = SVI(model, lambda: None, optim, Trace_ELBO())
        >>> losses = [svi.step() for _ in range(20)]
        >>> round(pyro.param("mean").item(), 4)
        2.0
    """

    def __init__(self, optim: PyroOptim, rows: Tensor) -> None:
        if not isinstance(optim, PyroOptim) or isinstance(optim, DistributedOptim):
            raise ValueError(f"optim: expected an optimiser or a scheduler of pyro.optim, got {optim!r}")
        numbers = checked_tensor("rows", "numbers of rows", rows)
        if numbers.dim() != 1 or not len(numbers) or numbers.is_floating_point() or numbers.dtype is torch.bool:
            raise ValueError(
                "rows: expected at least one integer along one axis, as shard_rows returns, got "
                f"{numbers.dtype} of shape {tuple(numbers.shape)}"
            )
        super().__init__(optim.pt_optim_constructor, optim.pt_optim_args, optim.pt_clip_args)
        share_optimizers(self, optim)
        self.optim, self.rows = optim, numbers.long().cpu()

    def __call__(self, params: Iterable[Tensor], *args: Any, **kwargs: Any) -> None:
        """A step of the optimiser by the averages of all processes' gradients, as ``SVI`` calls it.

        :param params: Unconstrained parameters with gradients.
        """
        params = list(params)
        peers = present_peers()
        if peers is not None:
            wrong = nonfinite_gradient({_name(param): param for param in params})
            if wrong is not None:
                _forget_gradients(params)
                peers.agree("a step", ValueError(f"{wrong}; nothing was changed"))
        self.take_step(params, 0.0, *args, **kwargs)

    def take_step(
        self, params: Iterable[Tensor], loss: float, *args: Any, sizes: Iterable[int] = (), **kwargs: Any
    ) -> float:
        """A step with finite gradients, by their averages over all processes, and the average of losses.

        :param sizes: Sizes of the model's plates, as far as they are known.
        """
        params = list(params)
        peers = present_peers()
        if peers is None:
            self.optim(params, *args, **kwargs)
            return loss
        moved = {_name(param): self._moved(param) for param in sorted(params, key=_name)}
        try:
            agreed = peers.agree("a step", digest=self._digest(moved), num_rows=len(self.rows), number=loss)
            with peers.exchange():
                self._check_sizes(set(sizes), int(agreed.num_rows.sum()))
                if not agreed.is_alike:
                    moved = self._united(peers, moved)
                goes_on = self._start_alike(peers, [each.param for each in moved.values() if each.is_new])
                if goes_on:
                    _average(peers, moved, float(agreed.weights[peers.rank]))
            if goes_on:
                is_start = not self.optim_objs and not waiting_states(self)
                self.optim([each.param for each in moved.values()], *args, **kwargs)
                if is_start:
                    spread_random_state(peers.rank)
        finally:
            _forget_gradients([each.param for each in moved.values()])
        return agreed.mean

    def step(self, *args: Any, **kwargs: Any) -> None:
        """A step of the schedule, for all parameters and in all processes alike.

        :param args: Arguments of ``step`` of PyTorch's scheduler; a loss, which ``ReduceLROnPlateau`` takes, is
            averaged over the processes.
        :raises ValueError: if the optimiser is no scheduler.
        """
        if not isinstance(self.optim, PyroLRScheduler):
            raise ValueError(f"optim: expected a scheduler of pyro.optim, got {self.optim!r}")
        peers = present_peers()
        if peers is not None:
            given = float(args[0]) if args else float(kwargs.get("metrics", 0.0))
            mean = peers.agree("a step of the schedule", num_rows=len(self.rows), number=given).mean
            args = (mean, *args[1:]) if args else args
            kwargs = {**kwargs, "metrics": mean} if "metrics" in kwargs else kwargs
        self.optim.step(*args, **kwargs)

    def start(self) -> None:
        """Gives parameters in Pyro's store that no step has moved yet the values of process 0."""
        peers = present_peers()
        if peers is None:
            return
        known = {name: self._moved(param) for name, param in sorted(pyro.get_param_store().named_parameters())}
        agreed = peers.agree("a start", digest=self._digest(known))
        with peers.exchange():
            if not agreed.is_alike:
                known = self._united(peers, known)
            self._start_alike(peers, [each.param for each in known.values() if each.is_new])

    def mean_score(self, score: float) -> float:
        """Mean of the scores of all processes."""
        peers = present_peers()
        return score if peers is None else float(peers.agree("a score", number=score).numbers.mean())

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Context of work that all processes do: an error inside of it is one in all of them."""
        try:
            yield
        except BaseException as error:
            peers = present_peers()
            if peers is not None and error is not peers.shared:
                peers.agree("a step", error)
            raise

    def _check_sizes(self, sizes: set[int], number: int) -> None:
        """Raises a ValueError if a plate has the size of this process' part, and none that of all rows."""
        if len(self.rows) in sizes and number not in sizes:
            raise ValueError(
                f"model: expected a plate of all {number} rows, as in plate(name, {number}, subsample=rows), so that "
                f"priors count once, got sizes {sorted(sizes)}, with the {len(self.rows)} rows of this process"
            )

    @property
    def _settings(self) -> str:
        """Optimiser and its arguments, to be compared."""
        settings = self.pt_optim_constructor, self.pt_optim_args, self.pt_clip_args or {}
        return " ".join(map(_described, settings)).strip()

    def _digest(self, moved: dict[str, _Moved]) -> int:
        text = repr([self._settings, [(name, each.description()) for name, each in moved.items()]])
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big")

    def _moved(self, param: Tensor) -> _Moved:
        is_new = param not in self.optim_objs and _name(param) not in waiting_states(self)
        return _Moved(param, param.grad is not None, is_new)

    def _united(self, peers: PeerProcesses, moved: dict[str, _Moved]) -> dict[str, _Moved]:
        """Parameters that any process moves, of which all processes have the values.

        :raises ValueError: if some process has no such parameter, or one of another shape, or another optimiser.
        """
        store = dict(pyro.get_param_store().named_parameters())
        own = {name: self._moved(param).description() for name, param in store.items()}
        settings, *said = zip(*peers.gather((self._settings, own, list(moved))), strict=True)
        _check_same(peers, "optim", "optimiser", settings)
        said = list(zip(*said, strict=True))
        names = sorted({name for _, touched in said for name in touched})
        for name in names:
            kinds = [_shown(known.get(name, ("none",))[:2]) for known, _ in said]
            _check_same(peers, name, "parameter", kinds, "; call pyro.param in every process and step")
        shared = {name: [known[name] for known, _ in said] for name in names}
        return {
            name: _Moved(store[name], any(each[2] for each in kinds), any(each[3] for each in kinds))
            for name, kinds in shared.items()
        }

    def _start_alike(self, peers: PeerProcesses, new: list[Tensor]) -> bool:
        """Gives new parameters the values of process 0, and returns whether they had these everywhere.

        :raises ValueError: if processes have more rows together than there are.
        """
        if not new:
            return True
        agreed = peers.agree("a start", num_rows=len(self.rows), number=float(self.rows.max()))
        total, most = int(agreed.num_rows.sum()), int(agreed.numbers.max()) + 1
        if total > most:
            peers.fail(ValueError(f"rows: expected other rows in every process, got {total} of {most} in all of them"))
        firsts = []
        for params in _by_kind(new).values():
            firsts.append((params, torch.cat([param.detach().flatten() for param in params])))
            peers.broadcast(firsts[-1][1])
        pairs = [pair for params, first in firsts for pair in _parts(params, first)]
        is_same = all(torch.equal(param.detach(), value) for param, value in pairs)
        if bool(peers.agree("a start", number=is_same).numbers.all()):
            return True
        with torch.no_grad():
            for param, value in pairs:
                param.copy_(value)
        return False


def taking_part(optim: Any) -> AbstractContextManager[None]:
    """Context of work that all processes do with an optimiser.

    :raises ValueError: if there are several processes, and the optimiser does not keep them together.
    """
    if isinstance(optim, DistributedOptim):
        return optim.attempt()
    peers = present_peers()
    if peers is not None:
        instead = "L-BFGS (None), which learns in a single process only" if optim is None else shortened(optim)
        raise ValueError(
            f"optim: expected DistributedOptim(optim, shard_rows(n)), as each of {peers.size} processes would learn "
            f"other parameters without it, got {instead}"
        )
    return nullcontext()


def _name(param: Tensor) -> str:
    name = pyro.get_param_store().param_name(param)
    if name is None:
        raise ValueError(
            "optim: expected parameters in Pyro's store, got one without a name; with the setting module_local_params "
            "wrap the module in torch's DistributedDataParallel"
        )
    return str(name)


def _described(setting: Any) -> str:
    """Text that is the same in all processes: functions by their names."""
    if isinstance(setting, dict):
        return ", ".join(f"{name}={_described(value)}" for name, value in setting.items())
    return str(getattr(setting, "__qualname__", repr(setting)))


def _check_same(peers: PeerProcesses, name: str, what: str, shown: Sequence[str], remedy: str = "") -> None:
    """Raises a ValueError in all processes if their descriptions of something differ."""
    other = next((rank for rank, text in enumerate(shown) if text != shown[0]), None)
    if other is not None:
        peers.fail(
            ValueError(
                f"{name}: expected the same {what} in all processes, got {shown[0]} in rank 0 and {shown[other]} in "
                f"rank {other}{remedy}"
            )
        )


def _shown(kind: tuple[Any, ...]) -> str:
    return "none" if kind == ("none",) else f"shape {kind[0]} and {kind[1]}"


def _by_kind(params: Iterable[Tensor]) -> dict[tuple[Any, ...], list[Tensor]]:
    """Parameters that fit into one tensor, by dtype and device."""
    groups = defaultdict(list)
    for param in params:
        groups[param.dtype, param.device].append(param)
    return groups


def _parts(params: list[Tensor], flat: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Parameters, and their parts of a tensor of all their entries."""
    parts = flat.split([param.numel() for param in params])
    return ((param, part.view_as(param)) for param, part in zip(params, parts, strict=True))


@torch.no_grad()
def _average(peers: PeerProcesses, moved: dict[str, _Moved], weight: float) -> None:
    """Replaces gradients by their averages over all processes."""
    for params in _by_kind(each.param for each in moved.values() if each.has_gradient).values():
        gradients = [torch.zeros_like(param) if param.grad is None else param.grad for param in params]
        total = torch.cat([gradient.flatten() for gradient in gradients]).mul_(weight)
        peers.sum(total)
        for param, gradient in _parts(params, total):
            param.grad = gradient


def _forget_gradients(params: Iterable[Tensor]) -> None:
    for param in params:
        param.grad = None
