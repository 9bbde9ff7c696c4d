"""Brute-force references, and checks of distributions, problems and kernels, for other packages too."""

__all__ = ["ball_arithmetic", "brute_force", "check_distribution", "check_kernel", "check_problem"]

from pyro_structured.testing import ball_arithmetic, brute_force
from pyro_structured.testing.check_distribution import check_distribution
from pyro_structured.testing.check_kernel import check_kernel
from pyro_structured.testing.check_problem import check_problem
