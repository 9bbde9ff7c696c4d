"""What kernels and learners do at sites of fields, registered: log partition functions may be out of reach."""

__all__: list[str] = []

from typing import Any

import torch
from torch import Tensor

from pyro_structured.fields.distributions.label_field import LabelField
from pyro_structured.fields.distributions.units_of_field import independent_labels
from pyro_structured.foundation.inference.site_handlers import SiteHandler, register_sites


class _Fields(SiteHandler):
    is_normalized = False

    def random_value(self, fn: LabelField, site: Any) -> Tensor:
        """Independent labels, which take no time; an exact draw where these may be impossible."""
        return super().random_value(fn, site) if bool((fn._penalties == torch.inf).any()) else independent_labels(fn)


register_sites(LabelField, _Fields())
