"""Costs that separate an optimum from other values."""

__all__ = ["widest_separation"]

import numpy as np

# By how much constraints may be missed, in units of the widest interval.
TOLERANCE = 1e-10


def widest_separation(
    differences: np.ndarray, distances: np.ndarray, low: np.ndarray, high: np.ndarray
) -> tuple[np.ndarray, float] | None:
    r"""Costs w between bounds with :math:`\langle d_k, w \rangle \ge t h_k` for all k, and the largest margin t.

    Every cost is away from its bounds by t times their distance, so t is at most 1/2.

    :param np.ndarray differences: d, shape ``(K, P)``.
    :param np.ndarray distances: h, at least 0, shape ``(K,)``.
    :param np.ndarray low: Lower bounds, finite, shape ``(P,)``.
    :param np.ndarray high: Upper bounds, finite, at least the lower ones.
    :return: Costs, shape ``(P,)``, and the margin, at least 0; ``None`` if there are none. One linear program.
    """
    from scipy.optimize import linprog
    from scipy.sparse import csr_array, eye_array, hstack, vstack

    width = float((high - low).max()) or 1.0
    identity, room = eye_array(len(low)), (high - low) / width
    margin = csr_array(room[:, None])
    separated = hstack([csr_array(-differences), csr_array(distances[:, None] / width)])
    found = linprog(
        np.append(np.zeros(len(low)), -1.0),
        vstack([separated, hstack([-identity, margin]), hstack([identity, margin])]).tocsr(),
        np.concatenate([differences @ low / width, np.zeros(len(low)), room]),
        options={"primal_feasibility_tolerance": TOLERANCE, "dual_feasibility_tolerance": TOLERANCE},
    )
    if found.x is None:
        return None
    return np.clip(low + width * found.x[:-1], low, high), float(found.x[-1])
