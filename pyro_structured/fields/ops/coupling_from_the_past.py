"""Exact samples of attractive fields by monotone coupling from the past."""

__all__ = ["couple_from_the_past"]

from typing import NamedTuple

import torch
from torch import Tensor

from pyro_structured.fields.ops.field import Field
from pyro_structured.fields.ops.field_sweeps import (
    chain_activations,
    draw_binary_labels,
    shares_from_noise,
    times,
)

# Uniform numbers of one sweep of a batch of samples.
NUMBERS_AT_ONCE = 2**22


class _Period(NamedTuple):
    """Consecutive sweeps of the past.

    :ivar Tensor state: State of the random number generator before their uniform numbers.
    :ivar Tensor samples: Numbers of the samples that they move, in increasing order.
    :ivar int length: Number of sweeps.
    """

    state: Tensor
    samples: Tensor
    length: int


def couple_from_the_past(field: Field, num_samples: int, max_sweeps: int) -> tuple[Tensor, int]:
    """Monotone coupling from the past.

    A sweep keeps the order of two labelings if it uses the same uniform numbers for both. So where the chains that
    start from the least and the largest labels some sweeps ago meet, all chains do, and their labels follow the
    distribution of a chain that has run forever. Where they do not, they start twice as long ago, with the same numbers
    for the sweeps that they have in common. Samples whose chains have met are finished, and take no further part.

    :param Field field: A field of zeros and ones, composition ``"sum"``, at a temperature that is a positive integer;
        its penalties and weights at least 0, but for those of clamped pixels and of units that are never on.
    :param int num_samples: Number of samples for each row.
    :param int max_sweeps: Largest number of sweeps ago that chains may start.
    :return: Zeros and ones of shape ``(rows, num_samples, D)``, and the number of samples whose chains have not met,
        which are NaN.

    **References**

    Propp, Wilson (1996): Exact sampling with coupled Markov chains and applications to statistical mechanics. Random
    Structures and Algorithms 9.

    Example::

        >>> states, one = torch.zeros(1, 6).double(), torch.ones(1, 1, 3).double()
        >>> field = Field(states, states[:, 0], states[:, :0], (3, 1), one, -one[:, 0, :1], "sum", 1.0)
        >>> labels, unmet = couple_from_the_past(field, 5, 1000)
        >>> labels.shape, unmet
        (torch.Size([1, 5, 3]), 0)
    """
    numbers_of_sample = field.num_rows * (field.num_pixels + int(field.temperature) * field.num_patterns)
    batches = [
        _couple(field, min(NUMBERS_AT_ONCE // numbers_of_sample + 1, num_samples - start), max_sweeps)
        for start in range(0, num_samples, NUMBERS_AT_ONCE // numbers_of_sample + 1)
    ]
    labels = torch.cat(batches, 1) if batches else field.states.new_zeros(field.num_rows, 0, field.num_pixels)
    return labels, int(labels[..., 0].isnan().sum())


def _couple(field: Field, number: int, max_sweeps: int) -> Tensor:
    labels = field.states.new_full((field.num_rows * number, field.num_pixels), torch.nan)
    samples = torch.arange(len(labels), device=labels.device)
    periods: list[_Period] = []
    start = 1
    while len(samples) and start <= max_sweeps:
        periods.append(_Period(_global_generator(labels.device).get_state(), samples, start - start // 2))
        table = _table(samples // number)
        lower, upper = _run(field.rows((samples // number)[table[:, 0]]), samples[table], periods)
        ends = lower.new_zeros(len(samples), field.num_pixels)
        met = torch.zeros_like(samples, dtype=torch.bool)
        ends[table], met[table] = lower, (lower == upper).all(-1)
        labels[samples[met]] = ends[met]
        samples = samples[~met]
        start *= 2
    return labels.reshape(field.num_rows, number, -1)


def _table(rows: Tensor) -> Tensor:
    """Indices of the samples, with a line for each row that has some; its first sample fills up a shorter line.

    :param Tensor rows: Row of each sample, sorted.
    """
    _, line, counts = rows.unique_consecutive(return_inverse=True, return_counts=True)
    first = counts.cumsum(0) - counts
    places = torch.arange(len(rows), device=rows.device)
    table: Tensor = first.unsqueeze(-1).repeat(1, int(counts.max()))
    table[line, places - first[line]] = places
    return table


def _run(field: Field, samples: Tensor, periods: list[_Period]) -> tuple[Tensor, Tensor]:
    """Labels of the chains from the least and the largest labels after all periods, shape ``(rows, chains, D)`` each.

    The last period is the first in time, and has new uniform numbers; those of the other periods are repeated.

    :param Tensor samples: Numbers of the samples, shape ``(rows, chains)``.
    """
    shape, number, odds = (*samples.shape, -1), samples.shape[1], field.odds.unsqueeze(1)
    starts = [(odds == torch.inf).expand(shape), (odds > -torch.inf).expand(shape)]
    labels, replicas = torch.cat(starts, 1).to(odds.dtype), int(field.temperature)
    penalties, again = field.penalties.unsqueeze(1), torch.Generator(odds.device)
    for period in reversed(periods):
        if period is periods[-1]:
            generator = _global_generator(odds.device)
        else:
            generator = again.set_state(period.state)
        places = torch.searchsorted(period.samples, samples)
        for _ in range(period.length):
            for_units, for_pixels = (noise[places].repeat(1, 2, 1) for noise in _noise(field, period, generator))
            total = odds
            if field.num_patterns:
                split = for_units.unflatten(-1, (replicas, field.num_patterns))
                shares = shares_from_noise(chain_activations(field, labels) / replicas, split)
                total = odds + times(shares, field.weights)
            labels = draw_binary_labels(labels, total, penalties, field.shape, for_pixels)
    return labels[:, :number], labels[:, number:]


def _global_generator(device: torch.device) -> torch.Generator:
    if device.type == "cpu":
        return torch.default_generator
    generator: torch.Generator = torch.get_device_module(device).default_generators[device.index]
    return generator


def _noise(field: Field, period: _Period, generator: torch.Generator) -> tuple[Tensor, ...]:
    """Uniform numbers for the units and the pixels in one sweep of all samples of a period."""
    units, pixels = int(field.temperature) * field.num_patterns, field.num_pixels
    size = (len(period.samples), units + pixels)
    noise = torch.rand(size, dtype=field.states.dtype, device=field.states.device, generator=generator)
    return noise[:, :units], noise[:, units:]
