"""Limits that the figures of ``import_figures.py`` keep, in the wings that have reached them."""

import pytest

import pyro_structured.distributions as sdist
from tests.import_figures import files_that_run, own_ancestors, private_reads, samples

WINGS = ("counts", "densities", "exchangeable", "junction_trees", "optima")
KINDS = [kind for name in sdist.__all__ if isinstance(kind := getattr(sdist, name), type)]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.__module__.split(".")[1] in WINGS])
def test_depth(kind):
    assert len(own_ancestors(kind)) <= 3


def test_private_members_stay_in_their_files():
    assert [line for line in private_reads() if line.startswith(WINGS)] == []


def test_files_of_a_family_that_run():
    for d, value in samples():
        family = type(d).__module__.split(".")[1]
        if family in WINGS:
            assert len([name for name in files_that_run(d, value) if name.startswith(family)]) <= 7
