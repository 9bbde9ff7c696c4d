"""Local files and downloads of a small town; the published likelihood, if the data are there."""

import os

import numpy as np
import pytest
import torch
from scipy import sparse
from scipy.sparse.linalg import splu

from pyro_structured.datasets import BorlangeTrips, borlange_trips, load_borlange_trips
from pyro_structured.structures import ShortestPath

# Links 1 to 3; destinations 4 and 5.
INCIDENCE = np.array([[2, 1], [1, 2], [1, 3], [3, 1], [2, 3], [2, 4], [3, 4], [1, 5]])
# Without edges into destinations; the sources also have a time of an edge that does not exist.
TIME = np.array([[1, 2, 0.5], [1, 3, 0.25], [2, 1, 2.0], [2, 2, 0.5], [2, 3, 0.25], [3, 1, 2.0]])
# A u-turn on either side, a wide left turn, a slight one, a right turn.
ANGLE = np.array([[1, 2, 3.125], [2, 1, -3.125], [1, 3, -0.75], [3, 1, -0.5], [2, 3, 0.75]])
ROWS = [[4, 1, 2, 4], [5, 2, 3, 1, 5], [4, 1, 3, 4]]


def check(found):
    assert isinstance(found, BorlangeTrips)
    assert found.edges.dtype == np.int64
    np.testing.assert_array_equal(found.edges, INCIDENCE - 1)
    assert found.feature_names == ("travel_time", "left_turn", "u_turn", "link_constant")
    assert found.features.dtype == np.float64
    assert found.features.tolist() == [
        [2, 0, 1, 1],
        [0.5, 0, 1, 1],
        [0.25, 1, 0, 1],
        [2, 0, 0, 1],
        [0.25, 0, 0, 1],
        [0, 0, 0, 0],
        [0, 0, 0, 0],
        [0, 0, 0, 0],
    ]
    assert found.num_nodes == 5
    assert found.origins.dtype == found.destinations.dtype == np.int64
    assert (found.origins.tolist(), found.destinations.tolist()) == ([0, 1, 0], [3, 4, 3])
    assert [path.tolist() for path in found.paths] == [[1, 5], [4, 3, 7], [2, 6]]
    assert {path.dtype for path in found.paths} == {np.dtype(np.int64)}
    values = found.path_values([1, 2])
    assert values.dtype == np.uint8 and values.tolist() == [[0, 0, 0, 1, 1, 0, 0, 1], [0, 0, 1, 0, 0, 0, 1, 0]]


def test_local_file(tmp_path, monkeypatch):
    monkeypatch.setenv("PYRO_STRUCTURED_DATA", str(tmp_path))
    (tmp_path / "paths").mkdir()
    np.savez_compressed(
        tmp_path / "paths" / "borlange_gps.npz",
        incidence=INCIDENCE.astype(np.int32),
        time=TIME.astype(np.float32),
        angle=ANGLE.astype(np.float32),
        paths=np.concatenate(ROWS).astype(np.int32),
        ptr=np.cumsum([0, *map(len, ROWS)]).astype(np.int32),
    )
    check(load_borlange_trips())


def lines(table):
    return "".join("   ".join(f"{number:.7e}" for number in row) + "\n" for row in table).encode()


def test_download(serve, monkeypatch):
    """The source goes through places first, then through trips."""
    observations = [(i + 1, j + 1, row[j]) for j in range(5) for i, row in enumerate(ROWS) if j < len(row)]
    contents = {
        "INCIDENCE": np.column_stack([INCIDENCE, np.ones(len(INCIDENCE))]),
        "TIME": TIME,
        "ANGLE": ANGLE,
        "OBSERVATIONS": observations,
    }
    for name, table in contents.items():
        monkeypatch.setattr(borlange_trips, name, serve(getattr(borlange_trips, name), lines(table)))
    check(load_borlange_trips())


def test_missing_file(tmp_path, monkeypatch):
    monkeypatch.setenv("PYRO_STRUCTURED_DATA", str(tmp_path))
    message = "paths/borlange_gps.npz: .* PYRO_STRUCTURED_DATA .* maitien86/RecursiveLogit.* at commit 43ce934f36"
    with pytest.raises(FileNotFoundError, match=message):
        load_borlange_trips()


@pytest.fixture(scope="module")
def trips():
    if "PYRO_STRUCTURED_DATA" not in os.environ:
        pytest.skip("needs the data")
    return load_borlange_trips()


def test_true_trips(trips):
    """All the 37,167 steps of the 1,832 trips are along edges; no trip comes to a node twice."""
    assert trips.edges.shape == (21452, 2) and trips.num_nodes == 7754
    assert np.unique(trips.edges, axis=0).shape == trips.edges.shape
    assert trips.features.sum(0)[1:].tolist() == [4304, 7100, 20196]
    assert len(trips.paths) == len(trips.origins) == len(trips.destinations) == 1832
    assert sum(map(len, trips.paths)) == 37167
    assert set(trips.destinations.tolist()) == set(range(7288, 7754))
    for path, origin, destination in zip(trips.paths, trips.origins, trips.destinations, strict=True):
        tails, heads = trips.edges[path].T
        assert (tails[0], heads[-1]) == (origin, destination)
        assert (tails[1:] == heads[:-1]).all()
        assert len(set(tails.tolist()) | {int(destination)}) == len(path) + 1


def test_true_values(trips):
    chosen = [0, 700, 1831]
    origins, destinations = (torch.from_numpy(ends[chosen]) for ends in (trips.origins, trips.destinations))
    problem = ShortestPath(torch.from_numpy(trips.edges), trips.num_nodes, origins, destinations)
    values = torch.from_numpy(trips.path_values(chosen))
    assert problem.is_feasible(values).all()
    times = torch.from_numpy(trips.features[:, 0])
    shortest = problem.solve(times)
    assert ((shortest * times).sum(-1) <= (values * times).sum(-1) + 1e-9).all()


def log_likelihood(trips, coefficients):
    """Of the trips under the recursive logit model: one linear system for all destinations."""
    utilities = trips.features @ coefficients
    tails, heads = trips.edges.T
    weights = sparse.csc_matrix((np.exp(utilities), (tails, heads)), (trips.num_nodes, trips.num_nodes))
    inner, ends = weights[:7288, :7288], weights[:7288, 7288:]
    expected = splu(sparse.identity(7288, format="csc") - inner).solve(ends.toarray())
    observed = sum(utilities[path].sum() for path in trips.paths)
    return observed - np.log(expected[trips.origins, trips.destinations - 7288]).sum()


def test_published_estimates(trips):
    """The coefficients of Fosgerau, Frejinger and Karlström: a hundredth more or less is less likely."""
    published = np.array([-2.494, -0.933, -4.459, -0.411])
    largest = log_likelihood(trips, published)
    assert largest == pytest.approx(-6303, abs=1)
    for step in 0.01 * np.eye(4):
        assert log_likelihood(trips, published + step) < largest
        assert log_likelihood(trips, published - step) < largest
