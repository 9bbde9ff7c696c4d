"""Public data and seeded generators."""

__all__ = [
    "DensityData",
    "TextData",
    "conjunction_task",
    "disjunction_task",
    "load_density",
    "load_mnist_test",
    "load_text",
    "symmetric_task",
]

from pyro_structured.datasets.conjunction_task import conjunction_task
from pyro_structured.datasets.density_data import DensityData, load_density
from pyro_structured.datasets.disjunction_task import disjunction_task
from pyro_structured.datasets.mnist import load_mnist_test
from pyro_structured.datasets.symmetric_task import symmetric_task
from pyro_structured.datasets.text_data import TextData, load_text
