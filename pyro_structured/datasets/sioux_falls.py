"""The road network of Sioux Falls and its traffic."""

__all__ = ["SiouxFalls", "load_sioux_falls"]

import io
import re
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np

from pyro_structured.datasets.local_archive import local_file
from pyro_structured.datasets.public_file import PublicFile
from pyro_structured.foundation.ops.data_file import read_content, reading

REPOSITORY = "bstabler/TransportationNetworks"
COMMIT = "d1639b4ef218c17928ba573e806ddf8ba5e7ae6d"
NETWORK = PublicFile(
    REPOSITORY,
    COMMIT,
    "SiouxFalls/SiouxFalls_net.tntp",
    "ace99b24cec69c273ff0cf3d6d074110177f0cc0ae24b0c7a9f4f4cb5e27635c",
)
NODES = PublicFile(
    REPOSITORY,
    COMMIT,
    "SiouxFalls/SiouxFalls_node.tntp",
    "91c0b954dcfc6f6f08f48de1ce9d245261f5188a33aef76acf3ce1fff0809969",
)
FLOW = PublicFile(
    REPOSITORY,
    COMMIT,
    "SiouxFalls/SiouxFalls_flow.tntp",
    "5d0b83a22ecc3ce79dabb2b2972162b78c5eda571dcb5b3687429d8397654fee",
)
TRIPS = PublicFile(
    REPOSITORY,
    COMMIT,
    "SiouxFalls/SiouxFalls_trips.tntp",
    "56f9566857f3f66730fd5c4232258d7ee3ac2931a476526331afd062f4958de7",
)
# The largest file has 4 kB.
LARGEST_TEXT = 2**20


class SiouxFalls(NamedTuple):
    r"""A road network of 24 nodes and 76 links, and its demand.

    At flow v, a link of free-flow time t and capacity c takes the time :math:`t (1 + 0.15 (v / c)^4)`.

    :param numpy.ndarray edges: Tail and head of every link, int64 from 0 to 23, the published numbers minus one,
        shape ``(76, 2)``.
    :param numpy.ndarray capacities: Vehicles per hour, float64, shape ``(76,)``.
    :param numpy.ndarray lengths: Equal to the free-flow times, as the source has no true lengths, float64, shape
        ``(76,)``.
    :param numpy.ndarray free_flow_times: Times without traffic in hundredths of an hour, which many papers take for
        minutes, float64, shape ``(76,)``.
    :param numpy.ndarray flows: Vehicles per hour in the best known user equilibrium, float64, shape ``(76,)``.
    :param numpy.ndarray times: Times at these flows, in the same unit, float64, shape ``(76,)``.
    :param numpy.ndarray trips: Vehicles per hour from every node, in rows, to every node, a tenth of the daily ones,
        float64, shape ``(24, 24)``.
    :param numpy.ndarray coordinates: Longitude and latitude in degrees, made up to resemble a drawing of the network,
        float64, shape ``(24, 2)``.
    """

    edges: np.ndarray
    capacities: np.ndarray
    lengths: np.ndarray
    free_flow_times: np.ndarray
    flows: np.ndarray
    times: np.ndarray
    trips: np.ndarray
    coordinates: np.ndarray


def load_sioux_falls() -> SiouxFalls:
    """Loads the road network of Sioux Falls, on which traffic assignment is usually tried out.

    It is read from the local folder, if there is one; or else 18 kB are downloaded from the GitHub repository
    bstabler/TransportationNetworks, checked and cached. The data are for academic research only, the repository says.

    :return: The network, its demand and its equilibrium.
    :raises ValueError: if a local file is damaged, or a download has another checksum.
    :raises FileNotFoundError: if the local folder lacks one of the files ``paths/SiouxFalls_*.tntp.gz``.
    :raises ConnectionError: if a download fails.

    **References**

    LeBlanc, Morlok, Pierskalla (1975): An efficient approach to solving the road network equilibrium traffic assignment
    problem. Transportation Research.

    Example::

        >>> network = load_sioux_falls()  # doctest: +SKIP
        >>> network.edges.shape, float(network.trips.sum())  # doctest: +SKIP
        ((76, 2), 360600.0)
    """
    tails, heads, capacities, lengths, free_flow_times = _table(NETWORK, 10, "<END OF METADATA>").T[:5]
    nodes = _table(NODES, 3, "\n")
    # The links come in the same order.
    ends, others, flows, times = _table(FLOW, 4, "\n").T
    path = _path(FLOW)
    with reading(path, "the links of the network, between its nodes"):
        np.testing.assert_array_equal([ends, others], [tails, heads])
        np.testing.assert_array_equal(np.isin([tails, heads], np.arange(1, len(nodes) + 1)), True)
    path = _path(TRIPS)
    with reading(path, f"trips between {len(nodes)} nodes"):
        trips = np.array(re.findall(r":\s*([\d.]+);", _text(path)), float).reshape(len(nodes), len(nodes))
    return SiouxFalls(
        np.stack([tails, heads], axis=1).astype(np.int64) - 1,
        capacities,
        lengths,
        free_flow_times,
        flows,
        times,
        trips,
        nodes[:, 1:],
    )


def _path(file: PublicFile) -> Path:
    return local_file(f"paths/{PurePosixPath(file.path).name}.gz", file) or file.fetch()


def _text(path: Path) -> str:
    return read_content(path, LARGEST_TEXT).decode()


def _table(file: PublicFile, num_columns: int, start: str) -> np.ndarray:
    """The numbers after a mark."""
    path = _path(file)
    with reading(path, f"rows of {num_columns} finite numbers"):
        lines = io.StringIO(_text(path).split(start, 1)[1])
        table: np.ndarray = np.loadtxt(lines, comments=["~", ";"], ndmin=2)
        if table.shape[1:] != (num_columns,) or not np.isfinite(table).all():
            raise ValueError(f"an array of shape {table.shape}")
    return table
