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


def test_files_that_run():
    """Of the family, and all together, once what is imported when it is needed has been."""
    for d, value in samples():
        d.log_prob(value)
    for (d, value), own, all_of_them in zip(samples(), (7, 7, 8), (13, 14, 14), strict=True):
        family, files = type(d).__module__.split(".")[1], files_that_run(d, value)
        assert len([name for name in files if name.startswith(family)]) <= own and len(files) <= all_of_them


def test_imports_have_no_circles():
    assert circles(import_graph()) == set()
