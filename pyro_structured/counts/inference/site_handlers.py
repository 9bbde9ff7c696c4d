"""Registered handler of sites with counts that cross, for kernels that may not be able to compute log Z."""

__all__: list[str] = []

from typing import Any

from torch import Tensor

from pyro_structured.counts.distributions.generalized_matching import GeneralizedMatching
from pyro_structured.counts.distributions.overlapping_counts import OverlappingCounts
from pyro_structured.foundation.inference.site_handlers import SiteHandler, register_sites

# Number of states up to which matrices are drawn exactly, and of sweeps of larger ones in a step.
MOST_STATES = 2**20
NUM_SWEEPS = 5
SEARCH_SECONDS = 10.0


class _CrossingCounts(SiteHandler):
    is_normalized = False

    def random_value(self, fn: OverlappingCounts, site: Any) -> Tensor:
        """An exact draw, or a most probable value where sums take too long."""
        return super().random_value(fn, site) if fn.has_states(MOST_STATES) else fn.map()[0]

    def check_exact_draws(self, fn: OverlappingCounts) -> None:
        """Matrices of any size move; other values are drawn exactly."""
        if not isinstance(fn, GeneralizedMatching):
            _ = fn.log_partition_function

    def start(self, posterior: OverlappingCounts, value: Tensor) -> Tensor:
        """A most probable value of large ones, as far as a search of some seconds finds it."""
        if posterior.has_states(MOST_STATES):
            return value
        try:
            return posterior.map(SEARCH_SECONDS)[0].expand(value.shape)
        except NotImplementedError:
            return value

    def move(self, posterior: OverlappingCounts, value: Tensor) -> Tensor:
        if isinstance(posterior, GeneralizedMatching) and not posterior.has_states(MOST_STATES):
            return posterior.sweep(value, NUM_SWEEPS)
        return super().move(posterior, value)


register_sites(OverlappingCounts, _CrossingCounts())
