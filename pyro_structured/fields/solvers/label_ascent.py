"""Good labelings with several labels, by moves in which one label takes over pixels of all others."""

__all__ = ["ascend_labels", "expand_label", "likely_labels"]

import numpy as np
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from pyro_structured.fields.ops.field import Field
from pyro_structured.fields.solvers.field_cut import Ascent, FieldCut


def ascend_labels(field: Field, labels: Tensor, max_cuts: int, optima: Tensor | None = None) -> Ascent:
    r"""Improves labels until no label can gain pixels.

    Without patterns this is alpha-expansion: a cut finds the best of the labelings in which some pixels change to one
    and the same label; then the next label has its turn, until none makes anything better. The result is worth at least
    as much as the best labels would be if they paid all their penalties twice.

    With patterns it is expectation maximisation: their potential is convex in the activations, so that its tangent at
    the labels bounds it from below; the E-step finds the tangent, and a move improves the objective with the tangent in
    place of the potential. There is a new tangent for each move. Labels never get worse.

    :param Field field: A field on the processor, with penalties of at least 0.
    :param Tensor labels: Labels to begin with, possible integers of shape ``(rows, D)``.
    :param int max_cuts: The largest number of cuts for each row.
    :param Tensor optima: Labels that are known to be local optima, at which the ascent of a row stops, shape ``(rows,
        D)``.

    **References**

    Boykov, Veksler, Zabih (2001): Fast approximate energy minimization via graph cuts. IEEE Transactions on Pattern
    Analysis and Machine Intelligence 23(11), Section 5. Li (2013), Section 4.2, Equations (4.11) and (4.12).
    """
    edges, number = field.edges.numpy(), field.num_labels
    network = FieldCut(edges, field.num_pixels)
    best, worth = labels.clone(), field.log_weight(labels)
    num_cuts = torch.zeros(len(labels), dtype=torch.long)
    # Moves since the last change. The label that moved last has nothing to gain, unless the tangent is another one.
    in_vain, settled, label = torch.zeros_like(num_cuts), int(not field.num_patterns), 0
    while True:
        active = ((in_vain < number) & (num_cuts < max_cuts)).nonzero().squeeze(-1)
        if not len(active):
            return Ascent(best, worth, num_cuts)
        active_rows = field.rows(active)
        states = active_rows.tangent(best[active]).label_states.numpy()
        moved = expand_label(network, edges, states, active_rows.penalties.numpy(), best[active].numpy(), label)
        candidates = torch.from_numpy(moved)
        values = active_rows.log_weight(candidates)
        better = (values > worth[active]) & (candidates != best[active]).any(-1)
        num_cuts[active] += 1
        in_vain[active] = torch.where(better, settled, in_vain[active] + 1)
        changed = active[better]
        best[changed], worth[changed] = candidates[better], values[better]
        if optima is not None:
            in_vain[(best == optima).all(-1)] = number
        label = (label + 1) % number


def expand_label(
    network: FieldCut, edges: np.ndarray, states: np.ndarray, penalties: np.ndarray, labels: np.ndarray, label: int
) -> np.ndarray:
    r"""Expansion move: maximises :math:`\sum_i s_i(y_i) - \sum_e p_e [y_{e_1} \ne y_{e_2}]` over the labelings in which
    some pixels have changed to a label.

    With :math:`x_i = 1` where pixel i has changed, a pair of two other labels is worth :math:`-p [x_i \ne x_j]` if they
    are the same, and :math:`-p + \frac{p}{2} (x_i + x_j - [x_i \ne x_j])` if they are not.

    :param FieldCut network: Network of these edges.
    :param np.ndarray edges: Pairs of pixels, shape ``(E, 2)``.
    :param np.ndarray states: s, -inf where a label is impossible, shape ``(N, K, n)``.
    :param np.ndarray penalties: p, at least 0, +inf included, shape ``(N, E)`` or ``(1, E)``.
    :param np.ndarray labels: Present labels, integers of shape ``(N, n)``.
    :param int label: The label that pixels may change to.
    :return: Labels, shape ``(N, n)``.

    **References**

    Boykov, Veksler, Zabih (2001), Section 5. Kolmogorov, Zabih (2004): What energy functions can be minimized via graph
    cuts? IEEE Transactions on Pattern Analysis and Machine Intelligence 26(2), for pairs without auxiliary nodes.
    """
    penalties = _bounded(penalties, states)
    own = labels == label
    first, second = (labels[:, edges[:, end]] for end in (0, 1))
    of_label = np.stack([first == label, second == label], -1)
    free, alike = ~of_label.any(-1), first == second
    weights = np.where(free, np.where(alike, penalties, penalties / 2), 0.0)
    # A neighbour that has the label already, or one that has a third label.
    gains = np.where(~of_label & of_label[..., ::-1], penalties[..., None], 0.0)
    gains += np.where(free & ~alike, penalties / 2, 0.0)[..., None]
    rows = np.arange(len(labels))[:, None, None] * labels.shape[1]
    places = (rows + edges).ravel()
    pulls = np.bincount(places, gains.ravel(), labels.size).reshape(labels.shape)
    with np.errstate(invalid="ignore"):
        odds = states[:, label] - np.take_along_axis(states, labels[:, None], 1)[:, 0] + pulls
    odds = np.where(own, 0.0, np.where(states[:, label] == -np.inf, -np.inf, odds))
    taken: np.ndarray = np.where(network.maximize(odds, weights), label, labels)
    return taken


def likely_labels(field: Field) -> Tensor:
    """Best labels without finite penalties and patterns, shape ``(rows, D)``: of each pixel by itself, and of pixels
    together whose labels have to be alike; possible labels, if there are any.
    """
    by_label = field.label_states
    best = by_label.argmax(1)
    for row, penalties in enumerate(field.penalties.expand(len(best), -1)):
        hard = penalties.numpy() == np.inf
        if hard.any():
            pairs, number = field.edges.numpy()[hard], best.shape[1]
            graph = coo_array((np.ones(len(pairs)), tuple(pairs.T)), shape=(number, number))
            count, owner = connected_components(graph, directed=False)
            owner = torch.from_numpy(owner).long()
            states = by_label[row]
            total = states.new_zeros(len(states), count).index_add(1, owner, states)
            best[row] = total.argmax(0)[owner]
    return best


def _bounded(penalties: np.ndarray, states: np.ndarray) -> np.ndarray:
    """Penalties with +inf replaced by a finite number that all other numbers together do not outweigh."""
    penalties = np.broadcast_to(penalties, (len(states), penalties.shape[-1]))
    if np.isfinite(penalties).all():
        return penalties
    sizes = [np.where(np.isfinite(numbers), np.abs(numbers), 0.0) for numbers in (penalties, states)]
    total = sum(size.reshape(len(size), -1).sum(1) for size in sizes)
    bounded: np.ndarray = np.minimum(penalties, np.asarray(2 * total + 1)[:, None])
    return bounded
