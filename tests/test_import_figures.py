"""Limits that the figures of ``import_figures.py`` keep."""

import pytest

import pyro_structured.distributions as sdist
from tests.import_figures import circles, files_that_run, import_graph, own_ancestors, private_reads, samples

KINDS = [kind for name in sdist.__all__ if isinstance(kind := getattr(sdist, name), type)]


@pytest.mark.parametrize("kind", KINDS)
def test_depth(kind):
    assert len(own_ancestors(kind)) <= 3


def test_private_members_stay_in_their_files():
    assert list(private_reads()) == []


def test_files_of_a_family_that_run():
    for (d, value), most in zip(samples(), (7, 7, 8), strict=True):
        family = type(d).__module__.split(".")[1]
        assert len([name for name in files_that_run(d, value) if name.startswith(family)]) <= most


def test_imports_have_no_circles():
    assert circles(import_graph()) == set()
