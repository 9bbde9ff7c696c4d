"""All values of a few discrete variables."""

__all__ = ["ENUMERATION_CAP", "enumerate_values", "is_enumerable"]

import torch
from torch import Tensor

# More values are never enumerated.
ENUMERATION_CAP = 2**12


def is_enumerable(num_variables: int, num_categories: int = 2) -> bool:
    """Whether there are at most ``2 ** 12`` values."""
    return bool(num_categories**num_variables <= ENUMERATION_CAP)


def enumerate_values(num_variables: int, num_categories: int, device: torch.device) -> Tensor:
    """All values in lexicographic order, integers of shape ``(num_categories ** num_variables, num_variables)``.

    :raises NotImplementedError: if there are more than ``2 ** 12``.

    Example::

        >>> enumerate_values(2, 2, torch.device("cpu")).tolist()
        [[0, 0], [0, 1], [1, 0], [1, 1]]
    """
    if not is_enumerable(num_variables, num_categories):
        raise NotImplementedError(
            f"enumerate_support: expected at most {ENUMERATION_CAP} values, got {num_categories}**{num_variables}; use "
            "condition(), marginals and sample(), which are exact and need no enumeration"
        )
    states = torch.arange(num_categories**num_variables, device=device).unsqueeze(-1)
    powers = num_categories ** torch.arange(num_variables - 1, -1, -1, device=device)
    return states // powers % num_categories
