"""Learning fields from Markov chains of labels."""

__all__ = ["ChainLearner"]

from collections.abc import Callable
from typing import Any

import torch
from pyro.optim import PyroOptim
from torch import Tensor

from pyro_structured.fields.distributions.label_field import LabelField
from pyro_structured.fields.inference.field_chains import FieldChains, move_labels
from pyro_structured.fields.inference.field_learner import FieldLearner, expanded_value, observed_fields
from pyro_structured.foundation.inference.learner import ObservedBatch
from pyro_structured.foundation.structures.argument_checks import check_size


class ChainLearner(FieldLearner):
    """What learners share that move labels of observed fields by block Gibbs sweeps.

    :param optim: A Pyro optimiser.
    :param int num_chains: For each row.
    :param int num_sweeps: In each step.
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
        self._chains: FieldChains = FieldChains(num_chains, num_sweeps, self._start)

    def _start(self, field: LabelField, value: Tensor) -> Tensor:
        """Labels at which chains start: the observed ones."""
        return value

    @torch.no_grad()
    def _infer(self, batch: ObservedBatch) -> dict[str, Tensor]:
        found = {}
        for name, field in observed_fields(batch.trace).items():
            node = batch.trace.nodes[name]
            value = expanded_value(field, node)
            if self.persistent:
                found[name] = self._chains.advance(name, field, value, node, batch.rows)
            else:
                start = self._start(field, value).expand((self.num_chains,) + value.shape)
                found[name] = move_labels(field, start, self.num_sweeps)
        return found
