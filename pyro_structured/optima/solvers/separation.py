"""Costs that separate an optimum from other values."""

__all__ = ["solve_quadratic_program", "widest_separation"]

import numpy as np


def solve_quadratic_program(
    quadratic: np.ndarray, linear: np.ndarray, matrix: np.ndarray, bound: np.ndarray
) -> np.ndarray:
    r"""The x that minimises :math:`x^T Q x / 2 + c^T x` subject to :math:`A x \le b`, by an interior-point method.

    :param np.ndarray quadratic: Q, symmetric and positive semi-definite, shape ``(n, n)``.
    :param np.ndarray linear: c, shape ``(n,)``.
    :param np.ndarray matrix: A, shape ``(m, n)``.
    :param np.ndarray bound: b, finite, shape ``(m,)``.
    :return: Shape ``(n,)``, with relative errors of about 1e-8.
    :raises ImportError: if the package clarabel is not installed.
    :raises RuntimeError: if the program is infeasible or unbounded.
    """
    from scipy.sparse import csc_matrix, triu

    try:
        import clarabel
    except ImportError:
        raise ImportError(
            "quadratic programs need the package clarabel: pip install 'pyro-structured[learning]'"
        ) from None
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    upper = triu(csc_matrix(quadratic), format="csc")
    cones = [clarabel.NonnegativeConeT(len(bound))]
    solution = clarabel.DefaultSolver(upper, linear, csc_matrix(matrix), bound, cones, settings).solve()
    if str(solution.status) not in ("Solved", "AlmostSolved"):
        raise RuntimeError(f"quadratic program: expected a solution, got the status {solution.status}")
    return np.array(solution.x)


# Largest violation of constraints, in units of the widest interval.
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
    solution = linprog(
        np.append(np.zeros(len(low)), -1.0),
        vstack([separated, hstack([-identity, margin]), hstack([identity, margin])]).tocsr(),
        np.concatenate([differences @ low / width, np.zeros(len(low)), room]),
        options={"primal_feasibility_tolerance": TOLERANCE, "dual_feasibility_tolerance": TOLERANCE},
    )
    if solution.x is None:
        return None
    return np.clip(low + width * solution.x[:-1], low, high), float(solution.x[-1])
