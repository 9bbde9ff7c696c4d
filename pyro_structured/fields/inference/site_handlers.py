"""Registered handler of field sites for kernels and learners, which may not be able to compute log Z."""

__all__: list[str] = []

from typing import Any

import torch
from torch import Tensor

from pyro_structured.fields.distributions.field_distribution import FieldDistribution
from pyro_structured.fields.inference.field_sites import random_labels
from pyro_structured.fields.ops.field_sums import FieldSums
from pyro_structured.fields.ops.single_layer import single_layer
from pyro_structured.fields.solvers.perfect_draws import attractive_flips
from pyro_structured.foundation.inference.site_handlers import SiteHandler, register_sites


class _Fields(SiteHandler):
    is_normalized = False

    def random_value(self, fn: FieldDistribution, site: Any) -> Tensor:
        """Independent labels, which take no time; an exact draw where these may be impossible."""
        return (
            super().random_value(fn, site) if bool((fn.description.penalties == torch.inf).any()) else random_labels(fn)
        )

    def check_exact_draws(self, fn: FieldDistribution) -> None:
        """Exact sums, or coupling from the past, have to be possible; how long the latter takes is not known before."""
        field = fn.description
        try:
            _ = FieldSums(field, "coupling from the past has no such limit").hidden
        except NotImplementedError as too_large:
            if not field.is_binary:
                raise
            try:
                attractive_flips(single_layer(field), field.shape)
            except NotImplementedError as error:
                raise NotImplementedError(f"{too_large}; {error}") from None


register_sites(FieldDistribution, _Fields())
