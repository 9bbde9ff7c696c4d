"""Trips of cars through a town."""

__all__ = ["BorlangeTrips", "load_borlange_trips"]

import io
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import sparse

from pyro_structured.datasets.local_archive import damaged_archive, read_archive
from pyro_structured.datasets.public_file import PublicFile
from pyro_structured.foundation.ops.data_file import ArrayKind

REPOSITORY = "maitien86/RecursiveLogit.Classical.V2"
COMMIT = "43ce934f3616ebd908c5be025cf2570115f31251"
INCIDENCE = PublicFile(
    REPOSITORY,
    COMMIT,
    "Input/linkIncidence.txt",
    "edf74e6de66f8227ee55cb024aa1107689e7d894062018eebea034252abc991f",
)
TIME = PublicFile(
    REPOSITORY,
    COMMIT,
    "Input/ATTRIBUTEestimatedtime.txt",
    "8fa6bee68933af81c15c7508dce83514c8648e5a330c7ff4278925c11a2c30d8",
)
ANGLE = PublicFile(
    REPOSITORY,
    COMMIT,
    "Input/ATTRIBUTEturnangles.txt",
    "28cbfc175de86a5e69d8acfd090410c04501d3f6ca9f42b72ab0ce3816a364c4",
)
OBSERVATIONS = PublicFile(
    REPOSITORY,
    COMMIT,
    "Input/observationsForEstimBAI.txt",
    "5b2c774572693a35c7c725c894653ef12483d9dbd408563268952e21fcbc817e",
)

ARCHIVE = "paths/borlange_gps.npz"
# There are 7,754 nodes.
MOST_NODES = 2**15
KINDS = {
    "incidence": ArrayKind("iu", ("edges", 2), 1, MOST_NODES),
    "time": ArrayKind("f", ("times", 3), 0),
    "angle": ArrayKind("f", ("angles", 3)),
    "paths": ArrayKind("iu", ("places",), 1, MOST_NODES),
    "ptr": ArrayKind("iu", ("ends",), 0),
}
FEATURE_NAMES = ("travel_time", "left_turn", "u_turn", "link_constant")
# Turns to the left have negative angles, in radians.
LEFT_TURN = -np.pi / 6
U_TURN = 3.1


class BorlangeTrips(NamedTuple):
    """Observed paths in a network whose nodes are road links, so that turns have costs.

    An edge leads from a road link to one that a car can enter next. The nodes from 0 to 7287 are road links. The other
    466 are destinations: ends of trips, which nothing leaves. Every trip is a path for
    :class:`~pyro_structured.structures.ShortestPath` from its first link to its destination, without repeated nodes.

    :param numpy.ndarray edges: Tail and head of every edge, int64, shape ``(21452, 2)``.
    :param numpy.ndarray features: Features of the edges, at least 0, float64, shape ``(21452, 4)``: the time on the
        entered link in minutes; whether the turn is to the left by more than 30 degrees; whether it is a u-turn, by
        more than 3.1 radians; and one. All are zero if the edge enters a destination.
    :param tuple feature_names: Names of the features.
    :param numpy.ndarray origins: First node of every trip, int64, shape ``(1832,)``.
    :param numpy.ndarray destinations: Last node of every trip, int64, shape ``(1832,)``.
    :param tuple paths: Indices of every trip's edges on the way, int64, shapes ``(length,)``.
    """

    edges: np.ndarray
    features: np.ndarray
    feature_names: tuple[str, ...]
    origins: np.ndarray
    destinations: np.ndarray
    paths: tuple[np.ndarray, ...]

    @property
    def num_nodes(self) -> int:
        """Number of nodes: road links and destinations."""
        return int(self.edges.max()) + 1

    def path_values(self, trips: Sequence[int]) -> np.ndarray:
        """Edges of trips' paths, as values of ``ShortestPath``.

        All trips take 39 MB.

        :param trips: Indices of trips.
        :return: 0 or 1, uint8, shape ``(len(trips), 21452)``.
        """
        values = np.zeros((len(trips), len(self.edges)), dtype=np.uint8)
        for row, trip in zip(values, trips, strict=True):
            row[self.paths[trip]] = 1
        return values


def load_borlange_trips() -> BorlangeTrips:
    """Loads 1,832 trips of cars in Borlänge, Sweden, recorded by GPS, in a network of 7,288 road links.

    They are read from the local folder, if there is one; or else 4.9 MB are downloaded from the GitHub repository
    maitien86/RecursiveLogit.Classical.V2, which states no licence, checked and cached. Two turns into link 7287 have no
    published angle and count as straight.

    The turns are coded as the recursive logit model needs them for the published estimates: with these features, its
    coefficients of largest likelihood are -2.494, -0.933, -4.459 and -0.411, in the order of the features.

    :return: The network and the trips.
    :raises ValueError: if a file is damaged: a download has another checksum, or local arrays are others.
    :raises FileNotFoundError: if the local folder lacks ``paths/borlange_gps.npz``.
    :raises ConnectionError: if a download fails.

    **References**

    Fosgerau, Frejinger, Karlström (2013): A link based network route choice model with unrestricted choice set.
    Transportation Research Part B.

    Example::

        >>> data = load_borlange_trips()  # doctest: +SKIP
        >>> first = torch.from_numpy(data.path_values([0]))  # doctest: +SKIP
        >>> ends = int(data.origins[0]), int(data.destinations[0])  # doctest: +SKIP
        >>> problem = ShortestPath(torch.from_numpy(data.edges), data.num_nodes, *ends)  # doctest: +SKIP
        >>> problem.is_feasible(first)  # doctest: +SKIP
        tensor([True])
    """
    archive = read_archive(ARCHIVE, OBSERVATIONS, KINDS)
    if archive is not None:
        return _from_archive(archive)
    incidence, time, angle, observations = (
        np.loadtxt(io.BytesIO(file.read())) for file in (INCIDENCE, TIME, ANGLE, OBSERVATIONS)
    )
    # Each line has a trip, a place in its row and a link.
    trip, place, link = observations.astype(np.int64).T
    order = np.lexsort((place, trip))
    rows = np.split(link[order], np.flatnonzero(np.diff(trip[order])) + 1)
    return _trips(incidence[:, :2], time, angle, rows)


def _from_archive(archive: dict[str, np.ndarray]) -> BorlangeTrips:
    """Checks that the arrays refer to each other."""
    incidence, paths, ends = (archive[name].astype(np.int64) for name in ("incidence", "paths", "ptr"))
    time, angle = archive["time"], archive["angle"]
    for name, triples in (("time", time), ("angle", angle)):
        if not ((triples[:, :2] >= 1) & (triples[:, :2] <= incidence.max())).all():
            raise damaged_archive(ARCHIVE, f"nodes from 1 to {incidence.max()}, as in 'incidence', in {name!r}")
    if ends[0] != 0 or ends[-1] != len(paths) or (np.diff(ends) < 3).any():
        raise damaged_archive(ARCHIVE, "ends in 'ptr' of paths with at least three nodes each, one after the other")
    # A path has its destination, the links on the way, and the destination.
    inside = np.ones(len(paths) - 1, dtype=bool)
    inside[np.concatenate([ends[:-1], ends[1:-1] - 1])] = False
    known, used = (tails * (MOST_NODES + 1) + heads for tails, heads in (incidence.T, (paths[:-1], paths[1:])))
    if not np.isin(used[inside], known).all() or (paths[ends[:-1]] != paths[ends[1:] - 1]).any():
        raise damaged_archive(ARCHIVE, "paths from and to their destinations along the edges of 'incidence'")
    if len(np.unique(known)) < len(known):
        raise damaged_archive(ARCHIVE, "different edges in 'incidence'")
    return _trips(incidence, time, angle, np.split(paths, ends[1:-1]))


def _trips(incidence: np.ndarray, time: np.ndarray, angle: np.ndarray, rows: list[np.ndarray]) -> BorlangeTrips:
    """Rows start with their destination and end with it, after the links on the way; links are counted from 1."""
    edges = incidence.astype(np.int64) - 1
    tails, heads = edges.T
    num_nodes = int(heads.max()) + 1
    times, angles = (_matrix(triples, num_nodes)[tails, heads].A1 for triples in (time, angle))
    is_link = heads <= tails.max()
    u_turn = abs(angles) > U_TURN
    features = np.stack([times, (angles < LEFT_TURN) & ~u_turn, u_turn, is_link], axis=-1).astype(np.float64)
    number = _matrix(np.column_stack([edges + 1, np.arange(len(edges))]), num_nodes)
    tails, heads = (np.concatenate([row[part] for row in rows]) - 1 for part in (slice(1, -1), slice(2, None)))
    paths = tuple(np.split(number[tails, heads].A1, np.cumsum([len(row) - 2 for row in rows[:-1]], dtype=int)))
    origins, destinations = np.array([(row[1], row[0]) for row in rows], dtype=np.int64).T - 1
    return BorlangeTrips(edges, features, FEATURE_NAMES, origins, destinations, paths)


def _matrix(triples: np.ndarray, num_nodes: int) -> sparse.csr_matrix:
    """Edges and values, from rows of a tail, a head and a value, where nodes are counted from 1."""
    tails, heads = triples[:, :2].astype(np.int64).T - 1
    return sparse.csr_matrix((triples[:, 2], (tails, heads)), (num_nodes, num_nodes))
