"""Bounds and approximations of the log partition functions of fields, at any size."""

__all__ = ["bethe_approximation", "log_partition_bounds"]

import numpy as np
import torch
from torch import Tensor

from pyro_structured.fields.ops.bethe import bethe_log_partition
from pyro_structured.fields.ops.field import Field
from pyro_structured.fields.ops.grid_strips import GridStrips, grid_strips, log_partition_of_strips
from pyro_structured.fields.ops.holder_bound import holder_bound
from pyro_structured.fields.ops.mean_field_bound import mean_field_bound
from pyro_structured.fields.ops.modular_bound import modular_bound
from pyro_structured.fields.ops.pattern_potential import pattern_potential
from pyro_structured.fields.solvers.signed_graph import Unbalanced, balancing_flips
from pyro_structured.foundation.ops.requirements import any_true

# Largest numbers of labelings of a line across a grid that is summed as a whole, and of a line across a strip.
LABELINGS_OF_WHOLE, LABELINGS_OF_STRIP = 2**8, 2**5
# Numbers that a step of the bounds computes for each row, if patterns can be chosen accordingly.
NUMBERS_IN_STEP = 2**19
# Factor of that number where most patterns are replaced by sums over pixels.
STATES_FOR_SUMS = 4


def log_partition_bounds(field: Field) -> tuple[Tensor, Tensor]:
    r"""Lower and upper bounds of log Z without the base, both of shape ``(rows,)`` and differentiable.

    :param Field field: A field with one layer of hidden units, and any number of labels.
    :raises NotImplementedError: if the shorter side of the grid is longer than 8 pixels, with K labels :math:`8 /
        \log_2 K`, and there are infinite penalties.
    """
    strips = _strips(field)
    if len(strips) > 1:
        _check_penalties(field, "log_partition_bounds")
    if field.composition == "min":
        low, high = _bounds_of_minimum(field, strips)
    else:
        cost = sum(strip_set.pixels.numel() * field.num_labels ** min(strip_set.shape) for strip_set in strips) // len(
            strips
        )
        num_states = NUMBERS_IN_STEP // (cost if field.is_paired else field.num_pixels * (field.num_labels - 1))
        # Mean-field approximations begin at three points at a time.
        low, high = mean_field_bound(field, strips[0], num_states // 4), holder_bound(field, strips, num_states)
        binary = field.is_binary and field.composition == "sum" and _is_finite(field)
        if binary and 2**field.num_patterns > num_states:
            sums = modular_bound(field, strips, STATES_FOR_SUMS * num_states)
            high = torch.where(sums < high, sums, high)
        if binary and field.temperature == 1 and field.num_patterns:
            bethe = bethe_log_partition(field)
            low = torch.where(_balanced(field) & (bethe > low), bethe, low)
    low, high = (bound.expand(field.num_rows) for bound in (low, high))
    return torch.minimum(low, high), high


def bethe_approximation(field: Field) -> tuple[Tensor, Tensor]:
    """Bethe approximations of log Z without the base, and whether they are lower bounds, both of shape ``(rows,)``.

    :param Field field: A field of zeros and ones, with one layer of hidden units.
    :raises NotImplementedError: at other temperatures than 1, for tables, and for infinite penalties.
    """
    if field.temperature != 1 or not isinstance(field.composition, str):
        raise NotImplementedError(
            f"bethe_log_partition: expected temperature 1 and composition 'sum' or 'min', got {field.temperature} "
            f"and {field.composition if isinstance(field.composition, str) else 'a table'}; log_partition_bounds "
            "takes all"
        )
    _check_penalties(field, "bethe_log_partition")
    if field.composition == "sum":
        return bethe_log_partition(field), _balanced(field)
    plain = field.plain()
    log_z = bethe_log_partition(plain).reshape(field.num_rows, -1)
    balanced = _balanced(plain).reshape(field.num_rows, -1).all(-1)
    return pattern_potential(log_z + field.biases, "min", 1.0), balanced


def _check_penalties(field: Field, query: str) -> None:
    if not _is_finite(field):
        raise NotImplementedError(
            f"{query}: expected finite penalties where exact sums over the grid take too long, got infinite ones; "
            f"a grid whose shorter side is at most {_widest(LABELINGS_OF_WHOLE, field)} pixels has exact sums"
        )


def _strips(field: Field) -> list[GridStrips]:
    """The whole grid, or two sets of strips, so that every pair of neighbours is inside a strip of one of them."""
    whole, width = _widest(LABELINGS_OF_WHOLE, field), _widest(LABELINGS_OF_STRIP, field)
    if not field.is_paired or min(field.shape) <= whole:
        return [grid_strips(field.shape, whole)]
    return [grid_strips(field.shape, width, shift) for shift in (0, width // 2)]


def _widest(labelings: int, field: Field) -> int:
    """The largest number of pixels with at most ``labelings`` labelings, at least 2."""
    width = 2
    while field.num_labels ** (width + 1) <= labelings:
        width += 1
    return width


def _bounds_of_minimum(field: Field, strips: list[GridStrips]) -> tuple[Tensor, Tensor]:
    """Bounds of log Z with ``"min"``, from those of the fields in which one pattern is always on: by Minkowski's
    inequality for L^T norms, which is reversed for T < 1.
    """
    plain = field.plain()
    if len(strips) == 1:
        low = high = log_partition_of_strips(plain.states, plain.penalties, strips[0])
    else:
        low, high = mean_field_bound(plain, strips[0], 1), holder_bound(plain, strips, 1)
    below, above = (bound.reshape(field.num_rows, -1) + field.biases for bound in (low, high))
    return (
        pattern_potential(below, "min", min(field.temperature, 1.0)),
        pattern_potential(above, "min", max(field.temperature, 1.0)),
    )


def _is_finite(field: Field) -> bool:
    return not any_true(field.penalties == torch.inf)


def _balanced(field: Field) -> Tensor:
    """Whether every cycle of pixels and hidden units that are not known has an even number of negative couplings, shape
    ``(rows,)``.
    """
    rows, size, number = field.num_rows, field.states.shape[-1] // 2, field.num_patterns
    off, on = field.states.detach().expand(rows, -1).chunk(2, -1)
    free = (off > -torch.inf) & (on > -torch.inf)
    possible = field.biases.detach().expand(rows, -1) > -torch.inf
    penalties = field.penalties.detach().expand(rows, -1)
    pairs = field.edges[: penalties.shape[-1]]
    penalties = penalties.where(free[:, pairs].all(-1), 0.0)
    weights = field.weights.detach().expand(rows, -1, -1).where(possible.unsqueeze(-1) & free.unsqueeze(1), 0.0)
    strengths = torch.cat([penalties, weights.flatten(1)], -1).cpu().numpy()
    units = np.stack(np.meshgrid(np.arange(size, size + number), np.arange(size), indexing="ij"), -1).reshape(-1, 2)
    edges = np.concatenate([pairs.cpu().numpy(), units])
    return torch.tensor([_is_balanced(size + number, edges, row) for row in strengths], device=off.device)


def _is_balanced(number: int, edges: np.ndarray, strengths: np.ndarray) -> bool:
    try:
        balancing_flips(number, edges, strengths)
    except Unbalanced:
        return False
    return True
