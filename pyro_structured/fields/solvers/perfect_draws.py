"""Exact samples of fields whose couplings are balanced, however large they are."""

__all__ = ["MAX_SWEEPS", "attractive_flips", "perfect_draws"]

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pyro_structured.fields.ops.coupling_from_the_past import couple_from_the_past
from pyro_structured.fields.ops.field import Field, binary_states
from pyro_structured.fields.ops.field_sweeps import check_sweeps
from pyro_structured.fields.solvers.signed_graph import Unbalanced, balancing_flips

MAX_SWEEPS = 2**14


@torch.no_grad()
def perfect_draws(field: Field, num_samples: int, max_sweeps: int, event_shape: Sequence[int]) -> Tensor:
    """Coupling from the past, after flips that make all couplings attractive.

    :param Field field: A field of zeros and ones, with one layer of hidden units.
    :param int num_samples: Number of samples for each row.
    :param int max_sweeps: Largest number of sweeps ago that chains may start.
    :param event_shape: Shape of the values, for names of variables in errors.
    :return: Zeros and ones of shape ``(rows, num_samples, D)``.
    :raises NotImplementedError: if there are no such flips, or hidden units are not independent given the labels, or
        cannot be drawn.
    :raises RuntimeError: if chains that start ``max_sweeps`` sweeps ago do not meet.
    """
    flips = attractive_flips(field, event_shape)
    pixels, units = flips[:, None, : field.num_pixels], flips[:, None, field.num_pixels :]
    labels, unmet = couple_from_the_past(_flipped(field, pixels, units), num_samples, max_sweeps)
    if unmet:
        raise RuntimeError(
            f"max_sweeps: expected chains to meet within {max_sweeps} sweeps, but those of {unmet} of "
            f"{labels.shape[:2].numel()} samples did not; couplings are strong. Allow more sweeps, or draw approximate "
            "samples with inference.FieldGibbs"
        )
    return (labels - pixels).abs()


def attractive_flips(field: Field, event_shape: Sequence[int]) -> Tensor:
    """Masks of labels and units to exchange, 0 for 1, so that all couplings are attractive, zeros and ones of shape
    ``(rows, D + J)``, one row if all are alike; arguments and errors as for :func:`perfect_draws`.
    """
    check_sweeps(field)
    if field.num_patterns and field.composition != "sum":
        raise NotImplementedError(
            f"composition: expected 'sum' for perfect samples, got "
            f"{field.composition if isinstance(field.composition, str) else 'a table'!r}; inference.FieldGibbs draws "
            "approximate samples under any composition"
        )
    try:
        return _flips(field)
    except Unbalanced as error:
        cycle = ", ".join(_name(node, event_shape) for node in error.cycle)
        raise NotImplementedError(
            "perfect samples: expected couplings of which an even number is negative in every cycle, as of patterns "
            f"with weights of one sign each, but on this cycle it is odd: {cycle}; inference.FieldGibbs draws "
            "approximate samples under any couplings"
        ) from None


def _flipped(field: Field, pixels: Tensor, units: Tensor) -> Field:
    """Field of labels and hidden units of which some are exchanged, 0 for 1.

    :param Tensor pixels: Zeros and ones, shape ``(rows, 1, D)``.
    :param Tensor units: Zeros and ones, shape ``(rows, 1, J)``.
    """
    pixel_signs, unit_signs = 1 - 2 * pixels, 1 - 2 * units
    ends = pixel_signs[..., field.edges]
    odds = pixel_signs * (field.odds.unsqueeze(1) + units @ field.weights)
    states, base = binary_states(odds.squeeze(1))
    return field._replace(
        states=states,
        base=base,
        penalties=field.penalties * (ends[..., 0] * ends[..., 1]).squeeze(1),
        weights=unit_signs.mT * field.weights * pixel_signs,
        biases=(unit_signs * (field.biases.unsqueeze(1) + pixels @ field.weights.mT)).squeeze(1),
    )


def _flips(field: Field) -> Tensor:
    """Masks of labels and units to exchange, zeros and ones of shape ``(rows, D + J)``, one row if all are alike."""
    pixels, number = field.num_pixels, field.num_patterns
    # Couplings of variables that are known do not matter.
    free = field.odds.isfinite().double()
    ends = free[:, field.edges]
    able = (field.biases > -torch.inf).double().unsqueeze(-1)
    parts = [field.penalties * ends.prod(-1), (field.weights * free.unsqueeze(1) * able).flatten(1)]
    rows = max(len(couplings) for couplings in parts)
    signs = torch.cat([couplings.sign().expand(rows, -1) for couplings in parts], -1).cpu().numpy()
    hidden = np.stack(np.meshgrid(np.arange(pixels, pixels + number), np.arange(pixels), indexing="ij"), -1)
    edges = np.concatenate([field.edges.cpu().numpy(), hidden.reshape(-1, 2)])
    kinds, kind = np.unique(signs, axis=0, return_inverse=True)
    flips = np.stack([balancing_flips(pixels + number, edges, strengths) for strengths in kinds])
    return torch.from_numpy(flips[kind.reshape(-1)]).to(field.states)


def _name(node: int, event_shape: Sequence[int]) -> str:
    """Name of a node of the graph for users."""
    size = int(np.prod(event_shape))
    if node >= size:
        return f"hidden unit {node - size}"
    place = tuple(int(index) for index in np.unravel_index(node, tuple(event_shape)))
    return f"label {place if len(place) > 1 else place[0]}"
