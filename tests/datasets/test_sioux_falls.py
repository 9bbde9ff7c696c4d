"""Local files and downloads of a small network; the true one, if the data are there."""

import gzip
import os

import numpy as np
import pytest

from pyro_structured.datasets import SiouxFalls, load_sioux_falls, sioux_falls

CONTENTS = {
    "NETWORK": """<NUMBER OF NODES> 2\t
<ORIGINAL HEADER>~ \tInit node \t;
<END OF METADATA>\t


~\tinit_node\tterm_node\tcapacity\tlength\tfree_flow_time\tb\tpower\tspeed\ttoll\tlink_type\t;
\t1\t2\t25.5\t6\t7\t0.15\t4\t0\t0\t1\t;
\t2\t1\t8\t5\t3\t0.15\t4\t0\t0\t1\t;
""",
    "NODES": "Node\tX\tY\t;\n1\t-96.5\t43.25\t;\n2\t-97\t44\t;\n",
    "FLOW": "From \tTo \tVolume \tCost \n1 \t2 \t44.5 \t6.75 \n2 \t1 \t3 \t4 \n",
    "TRIPS": """<NUMBER OF ZONES> 2
<TOTAL OD FLOW> 30.5
<END OF METADATA>

Origin \t1\x20
    1 :      0.0;     2 :    10.5;\x20

Origin \t2\x20
    1 :    20.0;     2 :    0.0;\x20
""",
}
EXPECTED = {
    "edges": [[0, 1], [1, 0]],
    "capacities": [25.5, 8.0],
    "lengths": [6.0, 5.0],
    "free_flow_times": [7.0, 3.0],
    "flows": [44.5, 3.0],
    "times": [6.75, 4.0],
    "trips": [[0.0, 10.5], [20.0, 0.0]],
    "coordinates": [[-96.5, 43.25], [-97.0, 44.0]],
}


def check(found):
    assert isinstance(found, SiouxFalls)
    assert {name: array.tolist() for name, array in found._asdict().items()} == EXPECTED
    assert [array.dtype for array in found] == [np.int64] + 7 * [np.float64]


def test_local_files(tmp_path, monkeypatch):
    monkeypatch.setenv("PYRO_STRUCTURED_DATA", str(tmp_path))
    (tmp_path / "paths").mkdir()
    for name, end in (("NETWORK", "net"), ("NODES", "node"), ("FLOW", "flow"), ("TRIPS", "trips")):
        content = gzip.compress(CONTENTS[name].encode())
        (tmp_path / "paths" / f"SiouxFalls_{end}.tntp.gz").write_bytes(content)
    check(load_sioux_falls())


def test_download(serve, monkeypatch):
    for name, text in CONTENTS.items():
        monkeypatch.setattr(sioux_falls, name, serve(getattr(sioux_falls, name), text.encode()))
    check(load_sioux_falls())


def test_missing_file(tmp_path, monkeypatch):
    monkeypatch.setenv("PYRO_STRUCTURED_DATA", str(tmp_path))
    message = (
        "paths/SiouxFalls_net.tntp.gz: .* PYRO_STRUCTURED_DATA .* bstabler/TransportationNetworks at commit d1639b4ef2"
    )
    with pytest.raises(FileNotFoundError, match=message):
        load_sioux_falls()


@pytest.mark.skipif("PYRO_STRUCTURED_DATA" not in os.environ, reason="needs the data")
def test_true_network():
    """The flows bring every vehicle to its destination, and take the times that they take."""
    found = load_sioux_falls()
    assert found.edges.shape == (76, 2) and np.unique(found.edges).tolist() == list(range(24))
    assert found.trips.shape == (24, 24) and found.trips.sum() == 360600 and not found.trips.diagonal().any()
    assert found.coordinates.shape == (24, 2)
    np.testing.assert_array_equal(found.lengths, found.free_flow_times)
    ratios = found.flows / found.capacities
    np.testing.assert_allclose(found.times, found.free_flow_times * (1 + 0.15 * ratios**4), rtol=1e-12)
    tails, heads = found.edges.T
    surplus = np.bincount(tails, found.flows) - np.bincount(heads, found.flows)
    np.testing.assert_allclose(surplus, found.trips.sum(1) - found.trips.sum(0), atol=1e-6)
