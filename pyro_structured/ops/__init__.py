"""Algorithms on tensors, without distributions or state."""

__all__ = [
    "Beliefs",
    "Certificate",
    "CountForest",
    "Field",
    "PatternTemplate",
    "UpperUnits",
    "bulk_mass",
    "certify",
    "count_information",
    "deep_pattern_potential",
    "infer_counts",
    "log_convolve",
    "log_correlate",
    "log_mass",
    "log_partition",
    "max_convolve",
    "most_probable",
    "pattern_from_template",
    "pattern_potential",
    "reweight",
    "sample_counts",
    "template_of_pattern",
]

from pyro_structured.counts.ops.certified_counts import Beliefs, Certificate, certify, infer_counts, log_partition
from pyro_structured.counts.ops.count_forest import CountForest
from pyro_structured.counts.ops.count_information import count_information
from pyro_structured.counts.ops.count_sampling import most_probable, sample_counts
from pyro_structured.counts.ops.log_convolution import log_convolve, log_correlate, max_convolve
from pyro_structured.counts.ops.poisson_binomial import bulk_mass, log_mass
from pyro_structured.fields.ops.deep_pattern_potential import deep_pattern_potential
from pyro_structured.fields.ops.field import Field, UpperUnits
from pyro_structured.fields.ops.pattern_potential import (
    PatternTemplate,
    pattern_from_template,
    pattern_potential,
    template_of_pattern,
)
from pyro_structured.foundation.ops.evidence import reweight
