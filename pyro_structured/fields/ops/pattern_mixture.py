"""Fields of pixels with K labels under patterns, as mixtures over the states of the hidden units of fields without."""

__all__ = ["MixtureDraws", "PatternMixture"]

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from pyro_structured.fields.ops.grid_inference import GridDraws, infer_grid, log_partition_of_grid, maximize_grid
from pyro_structured.fields.ops.grid_passes import log_add
from pyro_structured.foundation.ops.log_space import logsumexp
from pyro_structured.foundation.ops.marginal_inference import MarginalPlan
from pyro_structured.foundation.ops.vmap_rows import broadcast_shapes

# Numbers in one batch of fields: many for passes over grids, which make batches of their own; without penalties, as
# many as stay in the cache of a processor.
NUMBERS_AT_ONCE, NUMBERS_IN_CACHE = 2**22, 2**17


class PatternMixture(MarginalPlan):
    r"""Sums :math:`\exp(\text{weight}_k)` times the partition function of a field, over the states of hidden units.

    Its parameters, in this order, are log-weights of label 0 of all D pixels, then those of 1, and so on, ``(rows, K
    D)``; penalties of neighbours that differ, ``(rows, E)``, with no columns if there are none; weights of the patterns
    for the last n labels of all pixels, in the same order, ``(rows, J n D)``; log-weights of the S hidden states,
    ``(rows, S)``.

    Cost O(S·H·W·K^shorter side) a row with penalties and O(S·K·D) without.

    :param Tensor shares: States of the hidden units, from 0 to 1, shape ``(S, J)``.
    :param shape: Height and width of the grid.
    :param bool paired: Whether there are penalties.
    """

    def __init__(self, shares: Tensor, shape: tuple[int, int], paired: bool) -> None:
        self.shares, self.shape, self.paired = shares, shape, paired

    def solve(self, parameters: tuple[Tensor, ...], marginals: bool) -> tuple[Tensor, ...]:
        """Implements :meth:`MarginalPlan.solve`."""
        states, penalties, weights, log_weights = parameters
        (rows,) = broadcast_shapes(*(parameter.shape[:1] for parameter in parameters))
        log_weights = log_weights.expand(rows, -1)
        blocks = []
        for start, stop, fields in self._fields(states, weights, rows):
            shares, block_log_weights = self.shares[start:stop], log_weights[:, start:stop]
            blocks.append(
                self._sum(fields, penalties, block_log_weights, shares, self.patterns(weights).shape[-1], marginals)
            )
        log_parts = torch.stack([block[0] for block in blocks], -1)
        log_z = logsumexp(log_parts)
        if not marginals:
            return (log_z,)
        portions = (
            (log_parts - log_z.masked_fill(log_z == -torch.inf, 0.0).unsqueeze(-1)).exp().unsqueeze(-2).unbind(-1)
        )
        weighted = [
            [portion * derivative for derivative in block[1:]] for portion, block in zip(portions, blocks, strict=True)
        ]
        *sums, chosen = zip(*weighted, strict=True)
        return log_z, *(torch.stack(parts).sum(0) for parts in sums), torch.cat(chosen, -1)

    def log_sums(self, states: Tensor, penalties: Tensor, weights: Tensor) -> Tensor:
        """Log partition functions of the fields of all hidden states, shape ``(rows, S)``."""
        (rows,) = broadcast_shapes(*(parameter.shape[:1] for parameter in (states, penalties, weights)))
        parts = [self._log_partitions(fields, penalties) for _, _, fields in self._fields(states, weights, rows)]
        return torch.cat(parts, 1)

    def maximize(self, parameters: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """A largest log-weight of labels with a hidden state, shape ``(rows,)``, and these labels, integers of shape
        ``(rows, D)``.
        """
        states, penalties, weights, log_weights = parameters
        (rows,) = broadcast_shapes(*(parameter.shape[:1] for parameter in parameters))
        peaks, labels = [], []
        for start, stop, fields in self._fields(states, weights, rows):
            if self.paired:
                flat = maximize_grid(fields.flatten(0, 1), self._repeated(fields, penalties), self.shape)
                worth, best = (block.unflatten(0, fields.shape[:2]) for block in flat)
            else:
                largest = fields.unflatten(-1, (-1, self.shape[0] * self.shape[1])).max(-2)
                worth, best = largest.values.sum(-1), largest.indices
            peak, place = (worth + log_weights[:, start:stop]).max(-1)
            peaks.append(peak)
            labels.append(best[torch.arange(rows, device=best.device), place])
        peak, place = torch.stack(peaks, -1).max(-1)
        return peak, torch.stack(labels, 1)[torch.arange(rows, device=place.device), place]

    def patterns(self, weights: Tensor) -> Tensor:
        """Weights of each pattern, shape ``(rows, J, n D)``."""
        number = self.shares.shape[1]
        return weights.reshape(len(weights), number, weights.shape[-1] // max(1, number))

    def _fields(self, states: Tensor, weights: Tensor, rows: int) -> Iterator[tuple[int, int, Tensor]]:
        """Log-weights of single pixels given the hidden states, ``(rows, some of S, K D)``."""
        number, size = len(self.shares), states.shape[-1]
        at_once = NUMBERS_AT_ONCE if self.paired or states.device.type != "cpu" else NUMBERS_IN_CACHE
        step = max(1, at_once // max(1, rows * size))
        patterns = self.patterns(weights)
        for start in range(0, number, step):
            stop = min(start + step, number)
            on = _for_last_labels(self.shares[start:stop] @ patterns, states)
            yield start, stop, (states.unsqueeze(1) + on).expand(rows, stop - start, size)

    def _log_partitions(self, fields: Tensor, penalties: Tensor) -> Tensor:
        if not self.paired:
            states = fields.unflatten(-1, (-1, self.shape[0] * self.shape[1]))
            return (log_add(*states.unbind(-2)) if states.shape[-2] == 2 else logsumexp(states, -2)).sum(-1)
        flat = log_partition_of_grid(fields.flatten(0, 1), self._repeated(fields, penalties), self.shape)
        return flat.reshape(fields.shape[:2])

    def _sum(
        self, fields: Tensor, penalties: Tensor, log_weights: Tensor, shares: Tensor, columns: int, marginals: bool
    ) -> tuple[Tensor, ...]:
        """Log Z over some hidden states, and its derivatives along all parameters, in their order.

        :param int columns: Number of weights of a pattern, n D.
        """
        if not marginals:
            return (logsumexp(self._log_partitions(fields, penalties) + log_weights),)
        if self.paired:
            flat = infer_grid(fields.flatten(0, 1), self._repeated(fields, penalties), self.shape)
            log_z, single, differ = (block.unflatten(0, fields.shape[:2]) for block in flat)
        else:
            log_z = self._log_partitions(fields, penalties)
            states = fields.unflatten(-1, (-1, self.shape[0] * self.shape[1]))
            peak = states.detach().amax(-2, keepdim=True)
            odds = (states - peak.masked_fill(peak == -torch.inf, 0.0)).exp()
            total = odds.sum(-2, keepdim=True)
            single = (odds / total.masked_fill(total == 0, 1.0)).flatten(-2)
            differ = single[..., :0]
        joint = log_z + log_weights
        total = logsumexp(joint)
        chosen = (joint - total.masked_fill(total == -torch.inf, 0.0).unsqueeze(-1)).exp()
        expected = chosen.unsqueeze(-1) * single
        slopes = shares.T @ expected[..., expected.shape[-1] - columns :]
        return total, expected.sum(1), -(chosen.unsqueeze(-1) * differ).sum(1), slopes.flatten(-2), chosen

    def _repeated(self, fields: Tensor, penalties: Tensor) -> Tensor:
        """Penalties of all fields, with a row for each, or a single one."""
        if len(penalties) == 1:
            return penalties
        return penalties.unsqueeze(1).expand(-1, fields.shape[1], -1).flatten(0, 1)


class MixtureDraws:
    """Exact samples, for which the partition functions of all hidden states are computed once, and the passes over the
    grid, too, as long as the same hidden states are drawn, as where there is only one.

    :param PatternMixture mixture: The mixture.
    :param parameters: Its parameters, in their order.
    """

    def __init__(self, mixture: PatternMixture, *parameters: Tensor) -> None:
        self._mixture, self._parameters = mixture, parameters
        self._logits = mixture.log_sums(*parameters[:3]) + parameters[3]
        # The hidden states that were drawn last, and the draws of labels given these.
        self._last: tuple[Tensor, Callable[[Tensor], Tensor]] | None = None

    @property
    def possible(self) -> bool:
        """Whether all rows have labels of positive probability."""
        return bool((self._logits > -torch.inf).any(-1).all())

    def __call__(self, num_samples: int) -> Tensor:
        """Integers of shape ``(num_samples, rows, D)``."""
        rows, number = self._logits.shape
        drawn = torch.distributions.Categorical(logits=self._logits).sample((num_samples,))
        pairs, place = (drawn + torch.arange(rows, device=drawn.device) * number).unique(return_inverse=True)
        if self._last is None or not torch.equal(self._last[0], pairs):
            self._last = pairs, self._labels(pairs // number, pairs % number)
        return self._last[1](place.flatten()).reshape(*place.shape, -1)

    def _labels(self, owner: Tensor, state: Tensor) -> Callable[[Tensor], Tensor]:
        """Draws of labels of some rows in some hidden states, from the numbers of such pairs."""
        mixture, (states, penalties, weights, _), rows = self._mixture, self._parameters, len(self._logits)
        patterns = mixture.patterns(weights).expand(rows, -1, -1)[owner]
        on = (mixture.shares[state].unsqueeze(-2) @ patterns).squeeze(-2)
        fields = states.expand(rows, -1)[owner] + _for_last_labels(on, states)
        if not mixture.paired:
            return partial(_draw_labels, fields.unflatten(-1, (-1, mixture.shape[0] * mixture.shape[1])))
        return GridDraws(fields, penalties if len(penalties) == 1 else penalties[owner], mixture.shape)


def _for_last_labels(tilts: Tensor, states: Tensor) -> Tensor:
    """Log-weights of all labels: ``tilts`` for the last ones, and zeros for those before."""
    return torch.nn.functional.pad(tilts, (states.shape[-1] - tilts.shape[-1], 0))


def _draw_labels(fields: Tensor, place: Tensor) -> Tensor:
    """Labels of independent pixels of some fields, given by log-weights of shape ``(N, K, D)``."""
    probs = fields.softmax(-2)
    if probs.shape[-2] == 2:
        return torch.bernoulli(probs[:, 1][place]).long()
    thresholds = probs.cumsum(-2)[place]
    noise = torch.rand_like(thresholds[..., :1, :]) * thresholds[..., -1:, :]
    return (thresholds[..., :-1, :] <= noise).sum(-2)
