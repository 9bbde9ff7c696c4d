"""Registered handler of field sites for kernels and learners, which may not be able to compute log Z."""

__all__: list[str] = []

from typing import Any

import torch
from torch import Tensor

from pyro_structured.fields.distributions.field_distribution import FieldDistribution
from pyro_structured.fields.inference.field_sites import random_labels
from pyro_structured.foundation.inference.site_handlers import SiteHandler, register_sites


class _Fields(SiteHandler):
    is_normalized = False

    def random_value(self, fn: FieldDistribution, site: Any) -> Tensor:
        """Independent labels, which take no time; an exact draw where these may be impossible."""
        return (
            super().random_value(fn, site) if bool((fn.description.penalties == torch.inf).any()) else random_labels(fn)
        )


register_sites(FieldDistribution, _Fields())
