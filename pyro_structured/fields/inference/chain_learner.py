"""Learning fields from Markov chains of labels."""

__all__ = ["ChainLearner"]

from collections.abc import Callable
from typing import Any

import torch
from pyro.optim import PyroOptim
from torch import Tensor

from pyro_structured.fields.distributions.field_distribution import FieldDistribution
from pyro_structured.fields.inference.field_learner import FieldLearner, expanded_value, observed_fields
from pyro_structured.fields.ops.field import Field
from pyro_structured.fields.ops.field_sweeps import check_sweeps, sweep
from pyro_structured.foundation.inference.learner import ObservedBatch
from pyro_structured.foundation.inference.row_state import RowState, row_places
from pyro_structured.foundation.structures.argument_checks import check_size


class _FieldChains(RowState):
    """Present labels of the chains of every row that was seen so far.

    The chains of a row start anew if its observed labels have changed. Where all rows have the same field, chains
    belong to no row, and go on whichever rows come next; a single row is treated as one of many if chains already
    belong to no row.

    :param int num_chains: Number of chains for each row.
    :param int num_sweeps: Number of sweeps in each step.
    :param start: Function of a field and its observed labels that returns labels of the same shape, with which all
        chains of a row start.
    """

    def __init__(self, num_chains: int, num_sweeps: int, start: Callable[[FieldDistribution, Tensor], Tensor]) -> None:
        super().__init__()
        self.num_chains, self.num_sweeps, self.start = num_chains, num_sweeps, start

    @torch.no_grad()
    def advance(self, name: str, field: FieldDistribution, value: Tensor, node: Any, rows: dict[str, Tensor]) -> Tensor:
        """Moves the chains of some rows.

        :param str name: Name of a site.
        :param FieldDistribution field: Field of the site.
        :param Tensor value: Observed labels, of the field's batch and event shape.
        :param node: Node of the site in a trace.
        :param rows: Indices of the rows of every plate, by its name.
        :return: Labels, shape ``(num_chains,) + batch_shape + event_shape``.
        """
        rank = len(field.batch_shape)
        if field.description.num_rows == 1 and (field.batch_shape.numel() > 1 or self.belongs_to_no_row(name)):
            sizes = field.batch_shape
            places, observed = _all_places(sizes), value.new_zeros(sizes)
        else:
            places, sizes = row_places(node, rows)
            inner = field.batch_shape[len(sizes) :]
            places = (*(place.reshape(place.shape + (1,) * len(inner)) for place in places), *_all_places(inner))
            sizes, observed = sizes + inner, value
        shape = (self.num_chains,) + field.event_shape
        last, started = self.read(name, places, sizes, shape, observed)
        if last is None or not bool(started.all()):
            new = self.start(field, value).unsqueeze(rank).expand(field.batch_shape + shape)
            seen = started.reshape(started.shape + (1,) * (new.dim() - started.dim()))
            last = new if last is None else torch.where(seen, last, new)
        moved = _sweep(field.description, last, self.num_sweeps)
        self.write(name, places, sizes, moved, observed)
        return moved.movedim(rank, 0)


@torch.no_grad()
def _move_labels(field: FieldDistribution, labels: Tensor, num_sweeps: int) -> Tensor:
    """Moves labels of shape ``(chains,) + batch_shape + event_shape`` by block Gibbs sweeps, all rows at once."""
    rank = len(field.batch_shape)
    return _sweep(field.description, labels.movedim(0, rank), num_sweeps).movedim(rank, 0)


def _sweep(field: Field, labels: Tensor, num_sweeps: int) -> Tensor:
    """Labels of the same shape after some sweeps, with the chains of a row side by side."""
    check_sweeps(field)
    if not labels.numel():
        return labels
    rows = labels.double().reshape(field.num_rows, -1, field.num_pixels)
    return sweep(field, rows, num_sweeps).reshape(labels.shape).to(labels.dtype)


def _all_places(sizes: torch.Size) -> tuple[Tensor, ...]:
    """Indices of all entries along some axes, in the form of :func:`row_places`."""
    return tuple(torch.arange(size).reshape(-1, *(1,) * (len(sizes) - 1 - axis)) for axis, size in enumerate(sizes))


class ChainLearner(FieldLearner):
    """Base class of learners that move labels of observed fields by block Gibbs sweeps.

    :param optim: A Pyro optimiser.
    :param int num_chains: Number of chains for each row.
    :param int num_sweeps: Number of sweeps in each step.
    :param bool persistent: Whether chains go on from step to step, or start anew.
    :param str on_nonfinite: As for :class:`Learner`.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        guide: Callable[..., Any],
        optim: PyroOptim,
        num_chains: int,
        num_sweeps: int,
        persistent: bool,
        on_nonfinite: str = "raise",
    ) -> None:
        super().__init__(model, guide, optim, on_nonfinite)
        if optim is None:
            raise ValueError("optim: expected an optimiser of pyro.optim, as steps are random, got None")
        check_size("num_chains", num_chains)
        check_size("num_sweeps", num_sweeps)
        if not isinstance(persistent, bool):
            raise ValueError(f"persistent: expected True or False, got {persistent!r}")
        self.num_chains, self.num_sweeps, self.persistent = num_chains, num_sweeps, persistent
        self._chains: _FieldChains = _FieldChains(num_chains, num_sweeps, self._start)

    def _start(self, field: FieldDistribution, value: Tensor) -> Tensor:
        """Labels at which chains start: the observed ones."""
        return value

    @torch.no_grad()
    def _infer(self, batch: ObservedBatch) -> dict[str, Tensor]:
        samples = {}
        for name, field in observed_fields(batch.trace).items():
            node = batch.trace.nodes[name]
            value = expanded_value(field, node)
            if self.persistent:
                samples[name] = self._chains.advance(name, field, value, node, batch.rows)
            else:
                start = self._start(field, value).expand((self.num_chains,) + value.shape)
                samples[name] = _move_labels(field, start, self.num_sweeps)
        return samples
