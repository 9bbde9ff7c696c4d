"""Pictures of Markov chains."""

__all__ = ["plot_chains"]

from typing import Any

import torch
from pyro.infer import MCMC
from pyro.ops.stats import effective_sample_size, split_gelman_rubin

from pyro_structured.plotting.arrays import as_array, current_axes


def plot_chains(chains: Any, site: str | None = None, index: tuple[int, ...] | int = (), ax: Any = None) -> Any:
    """Draws one number of the states of each chain, step by step, with its R-hat and effective sample size as title.

    :param chains: A ``pyro.infer.MCMC`` that has run, or draws of shape ``(chains, draws, *event_shape)``.
    :param str site: Name of the site, if ``chains`` is an ``MCMC``.
    :param index: Which entry of the values, a tuple of as many numbers as they have axes, or a number for one axis.
    :param ax: Matplotlib axes; ``None``: the current ones.
    :return: The axes.
    :raises ValueError: if there is no such site or entry.

    Example::

        >>> from matplotlib.figure import Figure
        >>> ax = plot_chains(torch.randn(2, 100, 3), index=1, ax=Figure().subplots())
        >>> len(ax.lines), ax.get_title().startswith("R-hat 1.0")
        (2, True)
    """
    draws = _draws(chains, site)
    place = index if isinstance(index, tuple) else (index,)
    if len(place) != draws.dim() - 2:
        raise ValueError(
            f"index: expected {draws.dim() - 2} numbers for values of shape {tuple(draws.shape[2:])}, got {index!r}"
        )
    try:
        entry = draws.movedim((0, 1), (-2, -1))[place].to(torch.double)
    except IndexError:
        raise ValueError(
            f"index: expected an entry of values of shape {tuple(draws.shape[2:])}, got {index!r}"
        ) from None
    numbers = as_array("chains", entry, "(chains, draws)", None, None)
    ax = current_axes(ax)
    for number, chain in enumerate(numbers):
        ax.plot(chain, linewidth=0.8, alpha=0.8, label=f"chain {number}")
    name = "value" if site is None else site
    ax.set(xlabel="step", ylabel=f"{name}{list(place)}" if place else name)
    if numbers.shape[1] >= 4 and (numbers.std(1) > 0).all():
        r_hat, size = float(split_gelman_rubin(entry)), float(effective_sample_size(entry))
        ax.set_title(f"R-hat {r_hat:.3f}, effective sample size {size:.0f} of {numbers.size}", fontsize="medium")
    return ax


def _draws(chains: Any, site: str | None) -> torch.Tensor:
    """Shape ``(chains, draws, *event_shape)``."""
    if not isinstance(chains, MCMC):
        draws = torch.as_tensor(chains)
        if draws.dim() < 2:
            raise ValueError(f"chains: expected shape (chains, draws, ...), got {tuple(draws.shape)}")
        return draws.detach().cpu()
    sites = chains.get_samples(group_by_chain=True)
    if site not in sites:
        raise ValueError(f"site: expected one of {tuple(sites)}, got {site!r}")
    values: torch.Tensor = sites[site]
    return values.detach().cpu()
