"""A kernel's model together with exact draws of all of its variables."""

__all__ = ["Draw", "KernelCase"]

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyro.infer.mcmc.mcmc_kernel import MCMCKernel
from torch import Tensor

Draw = Callable[[], tuple[dict[str, Tensor], tuple[Any, ...]]]


@dataclass(frozen=True)
class KernelCase:
    """Factory of kernels, their model, and draws of its latent sites and its data."""

    factory: Callable[[Callable[..., Any]], MCMCKernel]
    model: Callable[..., Any]
    draw: Draw

    def new(self) -> Any:
        """A new kernel."""
        return self.factory(self.model)

    def unconstrained(self, latents: dict[str, Tensor], args: tuple[Any, ...]) -> dict[str, Tensor]:
        """Values as the kernel takes them."""
        transforms = self.transforms(args)
        return {name: transforms[name](value) if name in transforms else value for name, value in latents.items()}

    def transforms(self, args: tuple[Any, ...]) -> dict[str, Any]:
        """Transforms of the latent sites to unconstrained space."""
        kernel = self.new()
        kernel.setup(0, *args)
        found = dict(kernel.transforms)
        kernel.cleanup()
        return found

    def started(self, params: dict[str, Tensor], args: tuple[Any, ...]) -> Any:
        """A new kernel at the start of a chain without warm-up."""
        kernel = self.new()
        kernel.initial_params = dict(params)
        kernel.setup(0, *args)
        return kernel
