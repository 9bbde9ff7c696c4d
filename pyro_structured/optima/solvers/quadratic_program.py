"""Convex quadratic programs."""

__all__ = ["solve_quadratic_program"]

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
