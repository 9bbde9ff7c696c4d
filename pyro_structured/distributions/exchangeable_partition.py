"""Independent blocks of exchangeable binary variables."""

__all__ = ["ExchangeablePartition"]

from typing import Any

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import constraints
from torch.distributions.utils import lazy_property

from pyro_structured.distributions.argument_checks import check_entries, check_vector, expanded_batch
from pyro_structured.ops.cardinality import require, require_support
from pyro_structured.ops.level_sets import log_binomial
