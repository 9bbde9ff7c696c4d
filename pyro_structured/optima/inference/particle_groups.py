"""Weighted particles in independent groups."""

__all__ = ["ParticleGroups", "check_groups"]

import math

import torch
from torch import Tensor

from pyro_structured.foundation.ops.log_mean_error import log_mean_error
from pyro_structured.foundation.structures.argument_checks import check_size
from pyro_structured.optima.distributions.optimum_estimate import OptimumEstimate


def check_groups(num_particles: int, num_groups: int, least: int = 1) -> None:
    """Raises a ValueError unless particles can be divided into two or more groups of the same, sufficient size."""
    check_size("num_groups", num_groups, 2)
    check_size("num_particles", num_particles, least * num_groups)
    if num_particles % num_groups:
        raise ValueError(f"num_particles: expected a multiple of num_groups, {num_groups}, got {num_particles}")


class ParticleGroups:
    r"""Weights of sequential importance samplers that do not know of each other.

    Each group of n particles estimates a normalising constant. The spread of the groups' estimates says how good their
    mean is, whatever the particles of one group have in common: standard errors are the jackknife's, times Student's
    factor, 1.16 for 10 groups.

    :param shape: Number of groups, at least 2, and number of particles of each.
    :param torch.Size rows: Shape of the constants; particles have shape ``shape + rows``.
    :param device: Device of the weights.
    """

    def __init__(self, shape: tuple[int, int], rows: torch.Size, device: torch.device) -> None:
        self._log_weights = torch.zeros(shape + rows, dtype=torch.double, device=device)
        self._log_total = self._log_weights[:, 0].clone()

    def reweight(self, increments: Tensor) -> Tensor | None:
        """Multiplies weights, and resamples the particles of groups that have degenerated.

        :param Tensor increments: Logarithms of factors, of the shape of all particles.
        :return: The particle that takes the place of each one, integers of the same shape that count along the second
            axis; everyone stays where no weight is zero and the effective number at least half of the particles.
            ``None`` where all stay.
        """
        # A group that has lost all its particles stays lost, whatever has become of them.
        log_weights = self._log_weights + increments.masked_fill(self._log_total.unsqueeze(1) == -torch.inf, 0.0)
        total = log_weights.logsumexp(1, keepdim=True)
        lost, count = total == -torch.inf, log_weights.shape[1]
        weights = (log_weights - total).masked_fill(lost, -math.log(count)).exp()
        dead = (log_weights == -torch.inf).any(1, keepdim=True)
        renewed = dead | (1 / weights.square().sum(1, keepdim=True) < count / 2)
        self._log_total = self._log_total + (total - math.log(count)).where(renewed, 0.0).squeeze(1)
        self._log_weights = log_weights.masked_fill(renewed, 0.0)
        if not bool(renewed.any()):
            return None
        stay = torch.arange(count, device=weights.device).reshape(-1, *(1,) * (weights.dim() - 2))
        return torch.where(renewed, _systematic(weights), stay)

    def estimate(self, costs: Tensor, batch: torch.Size) -> OptimumEstimate:
        """Estimates of log-probabilities with standard errors, and all particles with their weights.

        :param Tensor costs: Costs of all particles, shape ``shape + rows + cost_shape``.
        :param torch.Size batch: Batch shape of the result, into which the rows are reshaped.
        """
        num_groups, count = self._log_weights.shape[:2]
        group_estimates = self._log_total + self._log_weights.logsumexp(1) - math.log(count)
        log_prob = group_estimates.logsumexp(0) - math.log(num_groups)
        log_weights = self._log_weights + self._log_total.unsqueeze(1)
        return OptimumEstimate(
            log_prob.reshape(batch),
            log_mean_error(group_estimates).reshape(batch),
            costs.reshape(num_groups * count, *batch, *costs.shape[self._log_weights.dim() :]),
            log_weights.reshape(num_groups * count, *batch),
        )


def _systematic(weights: Tensor) -> Tensor:
    """Indices of resampled particles: each as often as its share of the weights says, rounded up or down."""
    count = weights.shape[1]
    ends = (weights.cumsum(1) * count - torch.rand_like(weights[:, :1])).ceil().long()
    ends[:, -1] = count
    rows = ends.movedim(1, -1).contiguous()
    places = torch.arange(count, device=weights.device).expand(rows.shape).contiguous()
    return torch.searchsorted(rows, places, right=True).movedim(-1, 1)
