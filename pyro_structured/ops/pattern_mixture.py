"""Fields of binary pixels under patterns, as mixtures over the states of the hidden units of fields without."""

__all__ = ["PatternMixture"]

from collections.abc import Iterator

import torch
from torch import Tensor

from pyro_structured.ops.convolution import logsumexp
from pyro_structured.ops.grid_inference import infer_grid, log_partition_of_grid, sample_grid
from pyro_structured.ops.grid_passes import log_add
from pyro_structured.ops.marginal_inference import MarginalPlan

# Numbers of the fields that are looked at together: many for passes over grids, which make parts of their own; without
# penalties, as many as stay in the cache of a processor.
NUMBERS_AT_ONCE, NUMBERS_IN_CACHE = 2**22, 2**17


class PatternMixture(MarginalPlan):
    r"""Sums :math:`\exp(\text{weight}_k)` times the partition function of a field, over the states of hidden units.

    Its parameters, all with rows: log-weights of 0 of all D pixels and then those of 1, ``(rows, 2 D)``; penalties of
    neighbours that differ, ``(rows, E)``, with no columns if there are none; weights of the patterns, ``(rows, J D)``;
    log-weights of the hidden states, ``(rows, K)``.

    Cost O(K·H·W·2^shorter side) a row with penalties and O(K·D) without.

    :param Tensor shares: How far each state switches each pattern on, shape ``(K, J)``.
    :param shape: Height and width of the grid.
    :param bool paired: Whether there are penalties.
    """

    def __init__(self, shares: Tensor, shape: tuple[int, int], paired: bool) -> None:
        self.shares, self.shape, self.paired = shares, shape, paired

    def solve(self, parameters: tuple[Tensor, ...], marginals: bool) -> tuple[Tensor, ...]:
        """As :meth:`MarginalPlan.solve` says."""
        states, penalties, weights, log_weights = parameters
        (rows,) = torch.broadcast_shapes(*(parameter.shape[:1] for parameter in parameters))
        log_weights = log_weights.expand(rows, -1)
        found = []
        for start, stop, fields in self._fields(states, weights, rows):
            found.append(self._sum(fields, penalties, log_weights[:, start:stop], self.shares[start:stop], marginals))
        log_parts = torch.stack([part[0] for part in found], -1)
        log_z = logsumexp(log_parts)
        if not marginals:
            return (log_z,)
        portions = (
            (log_parts - log_z.masked_fill(log_z == -torch.inf, 0.0).unsqueeze(-1)).exp().unsqueeze(-2).unbind(-1)
        )
        weighted = [[portion * each for each in part[1:]] for portion, part in zip(portions, found, strict=True)]
        *sums, chosen = zip(*weighted, strict=True)
        return log_z, *(torch.stack(parts).sum(0) for parts in sums), torch.cat(chosen, -1)

    def log_sums(self, states: Tensor, penalties: Tensor, weights: Tensor) -> Tensor:
        """Log partition functions of the fields of all hidden states, shape ``(rows, K)``."""
        (rows,) = torch.broadcast_shapes(*(parameter.shape[:1] for parameter in (states, penalties, weights)))
        parts = [self._log_partitions(fields, penalties) for _, _, fields in self._fields(states, weights, rows)]
        return torch.cat(parts, 1)

    def sample(self, parameters: tuple[Tensor, ...], num_samples: int) -> Tensor:
        """Exact samples, integers of shape ``(num_samples, rows, D)``."""
        states, penalties, weights, log_weights = parameters
        logits = self.log_sums(states, penalties, weights) + log_weights
        rows = len(logits)
        drawn = torch.distributions.Categorical(logits=logits).sample((num_samples,))
        pairs, place = (drawn + torch.arange(rows, device=drawn.device) * logits.shape[1]).unique(return_inverse=True)
        owner, state = pairs // logits.shape[1], pairs % logits.shape[1]
        size = states.shape[-1] // 2
        patterns = weights.expand(rows, -1)[owner].unflatten(-1, (self.shares.shape[1], size))
        on = (self.shares[state].unsqueeze(-2) @ patterns).squeeze(-2)
        fields = states.expand(rows, -1)[owner] + torch.nn.functional.pad(on, (size, 0))
        if not self.paired:
            odds = fields.unflatten(-1, (2, -1)).softmax(-2)[:, 1]
            return torch.bernoulli(odds[place]).long()
        some = penalties if len(penalties) == 1 else penalties[owner]
        return sample_grid(fields, some, self.shape, place.flatten()).reshape(*place.shape, size)

    def _fields(self, states: Tensor, weights: Tensor, rows: int) -> Iterator[tuple[int, int, Tensor]]:
        """Log-weights of single pixels given the hidden states, ``(rows, some of K, 2 D)``."""
        number, size = len(self.shares), states.shape[-1]
        at_once = NUMBERS_AT_ONCE if self.paired or states.device.type != "cpu" else NUMBERS_IN_CACHE
        step = max(1, at_once // max(1, rows * size))
        patterns = weights.unflatten(-1, (self.shares.shape[1], size // 2))
        for start in range(0, number, step):
            stop = min(start + step, number)
            on = torch.nn.functional.pad(self.shares[start:stop] @ patterns, (size // 2, 0))
            yield start, stop, (states.unsqueeze(1) + on).expand(rows, stop - start, size)

    def _log_partitions(self, fields: Tensor, penalties: Tensor) -> Tensor:
        if not self.paired:
            return log_add(*fields.unflatten(-1, (2, -1)).unbind(-2)).sum(-1)
        flat = log_partition_of_grid(fields.flatten(0, 1), self._repeated(fields, penalties), self.shape)
        return flat.reshape(fields.shape[:2])

    def _sum(
        self, fields: Tensor, penalties: Tensor, log_weights: Tensor, shares: Tensor, marginals: bool
    ) -> tuple[Tensor, ...]:
        """Of some hidden states: log Z, and averages of its derivatives."""
        if not marginals:
            return (logsumexp(self._log_partitions(fields, penalties) + log_weights),)
        if self.paired:
            flat = infer_grid(fields.flatten(0, 1), self._repeated(fields, penalties), self.shape)
            each, single, differ = (part.unflatten(0, fields.shape[:2]) for part in flat)
        else:
            each = self._log_partitions(fields, penalties)
            pairs = fields.unflatten(-1, (2, -1))
            peak = pairs.detach().amax(-2, keepdim=True)
            odds = (pairs - peak.masked_fill(peak == -torch.inf, 0.0)).exp()
            total = odds.sum(-2, keepdim=True)
            single = (odds / total.masked_fill(total == 0, 1.0)).flatten(-2)
            differ = single[..., :0]
        joint = each + log_weights
        total = logsumexp(joint)
        chosen = (joint - total.masked_fill(total == -torch.inf, 0.0).unsqueeze(-1)).exp()
        expected = chosen.unsqueeze(-1) * single
        slopes = shares.T @ expected[..., expected.shape[-1] // 2 :]
        return total, expected.sum(1), -(chosen.unsqueeze(-1) * differ).sum(1), slopes.flatten(-2), chosen

    def _repeated(self, fields: Tensor, penalties: Tensor) -> Tensor:
        """Penalties for all fields."""
        if len(penalties) == 1:
            return penalties
        return penalties.unsqueeze(1).expand(-1, fields.shape[1], -1).flatten(0, 1)
