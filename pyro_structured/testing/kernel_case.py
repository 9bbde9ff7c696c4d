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
    """Factory of kernels, a model, and exact draws of the model's latent sites and data."""

    factory: Callable[[Callable[..., Any]], MCMCKernel]
    model: Callable[..., Any]
    draw: Draw

    def new(self) -> Any:
        """A new kernel."""
        return self.factory(self.model)

    def unconstrained(self, latents: dict[str, Tensor], args: tuple[Any, ...]) -> dict[str, Tensor]:
        """Values of latent sites in the kernel's unconstrained space."""
        transforms = self.transforms(args)
        return {name: transforms[name](value) if name in transforms else value for name, value in latents.items()}

    def transforms(self, args: tuple[Any, ...]) -> dict[str, Any]:
        """Transforms of latent sites to the kernel's unconstrained space, by name."""
        kernel = self.new()
        kernel.setup(0, *args)
        transforms = dict(kernel.transforms)
        kernel.cleanup()
        return transforms

    def started(self, params: dict[str, Tensor], args: tuple[Any, ...]) -> Any:
        """A new kernel at the start of a chain without warm-up."""
        kernel = self.new()
        kernel.initial_params = dict(params)
        kernel.setup(0, *args)
        return kernel
