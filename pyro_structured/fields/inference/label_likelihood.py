"""What all later sites of a model say of the labels of a field, one by one."""

__all__ = ["LabelLikelihood"]

from collections.abc import Sequence
from typing import Any

import torch
from pyro.distributions.util import scale_and_mask
from torch import Tensor
from torch.distributions import Independent

from pyro_structured.fields.inference.field_sites import field_of
from pyro_structured.foundation.inference.latent_state import later_sites

# Log-densities that are equal but for rounding, relative to their size.
ROUNDING = 1e-4


class LabelLikelihood:
    """Log-densities of later sites, entry by entry, for all K values of every label.

    :param str name: Of the field's site.
    :param trace: Of the model with the present labels.
    :param others: K - 1 traces of the model with other labels: those that are larger by 1, by 2, and so on, modulo K,
        wherever these are possible.
    :raises NotImplementedError: if the log-density of a site that depends on the labels is no sum over them.
    """

    def __init__(self, name: str, trace: Any, others: Sequence[Any]) -> None:
        self.name = name
        self._labels: Tensor = trace.nodes[name]["value"]
        self._nodes = dict(later_sites(trace, name))
        self._num_labels = len(others) + 1
        # With the present labels, and with the others.
        self._entries: dict[str, tuple[Tensor, ...]] = {}
        for site, node in self._nodes.items():
            alternatives = [other.nodes[site] for other in others]
            if not all(_same_field(node, other) for other in alternatives):
                present, *exchanged = (_entries(each, self._labels) for each in (node, *alternatives))
                if not all(torch.equal(present, each) for each in exchanged) and not _covers(present, self._labels):
                    self._refuse(site, f"got log-densities of shape {tuple(present.shape)}")
                self._entries[site] = present, *exchanged

    def log_weights(self) -> Tensor:
        """Of all labels, those of the present ones being 0, shape ``(K,)`` and then that of the labels."""
        shape = self._labels.shape
        found = torch.zeros((self._num_labels, *shape), dtype=torch.double, device=self._labels.device)
        for present, *exchanged in self._entries.values():
            for step, other in enumerate(exchanged, 1):
                if not torch.equal(present, other):
                    label = ((self._labels + step) % self._num_labels).long().unsqueeze(0)
                    found.scatter_add_(0, label, (other - present).sum_to_size(shape).unsqueeze(0))
        return found

    def check(self, moved: Any) -> None:
        """Compares the log-densities of other labels with those that follow.

        :param moved: A trace of the model with these labels.
        :raises NotImplementedError: if they differ.
        """
        steps = (moved.nodes[self.name]["value"] - self._labels) % self._num_labels
        for site, node in self._nodes.items():
            if site not in self._entries:
                if not _same_field(node, moved.nodes[site]):
                    self._refuse(site, "got a field whose parameters change with several labels")
                continue
            expected, *exchanged = self._entries[site]
            found = _entries(moved.nodes[site], self._labels)
            for step, other in enumerate(exchanged, 1):
                expected = torch.where(steps == step, other, expected) if _covers(other, steps) else expected
            close = (found == expected) | ((found - expected).abs() <= ROUNDING * (1 + expected.abs()))
            if not bool(close.all()):
                self._refuse(site, "got entries that depend on several labels")

    def _refuse(self, site: str, found: str) -> None:
        remedy = "; BinaryGibbs updates labels under any likelihood" if self._labels.is_floating_point() else ""
        raise NotImplementedError(
            f"{site}: expected log-densities of which each entry depends on one label of {self.name!r}, in the shape "
            f"of its values, {tuple(self._labels.shape)}, with any axes before it, and with axes after it if they "
            f"belong to an event, {found}{remedy}"
        )


def _covers(entries: Tensor, labels: Tensor) -> bool:
    """Whether every entry has one label."""
    wanted = labels.shape
    found = entries.shape[max(0, entries.dim() - len(wanted)) :]
    return len(found) == len(wanted) and all(one in (1, other) for one, other in zip(wanted, found, strict=True))


def _same_field(node: Any, other: Any) -> bool:
    """Whether both are fields with the same parameters, whose log partition functions need not be known."""
    one, two = field_of(node["fn"]), field_of(other["fn"])
    if one is None or two is None:
        return False
    return all(torch.equal(getattr(one, name), getattr(two, name)) for name in one.arg_constraints)


def _entries(node: Any, labels: Tensor) -> Tensor:
    """Log-densities, summed over as few axes as possible of those that ``to_event`` made part of an event, so that
    every entry has one label; over all of them if none will do.
    """
    fn, rank = node["fn"], 0
    while isinstance(fn, Independent):
        rank += fn.reinterpreted_batch_ndims
        fn = fn.base_dist
    scale, mask = (
        part.reshape(part.shape + (1,) * rank) if isinstance(part, Tensor) and part.dim() else part
        for part in (node["scale"], node["mask"])
    )
    entries: Tensor = scale_and_mask(fn.log_prob(node["value"]), scale, mask).double()
    for _ in range(rank):
        if not _covers(entries, labels):
            entries = entries.sum(-1)
    return entries
