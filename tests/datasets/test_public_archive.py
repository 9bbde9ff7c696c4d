"""Archives from a server on this machine."""

import io
import threading
import zipfile
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from PIL import Image

from pyro_structured.datasets import horses, load_horses
from pyro_structured.datasets.public_archive import PublicArchive

FILES = {"code.py": b"print()", "pictures/b 2.jpg": b"second", "pictures/a.jpg": b"first", "masks/a.jpg": b""}


def packed(files, compression=zipfile.ZIP_DEFLATED):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", compression) as archive:
        archive.writestr("something-0123abc/", b"")
        for name, text in files.items():
            archive.writestr(f"something-0123abc/{name}", text)
    return content.getvalue()


@pytest.fixture
def server(tmp_path, monkeypatch):
    """Serves what is put into its attribute ``content``; an empty cache."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            server.paths.append(self.path)
            self.send_response(200)
            self.send_header("Content-Length", str(len(server.content)))
            self.end_headers()
            self.wfile.write(server.content)

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.paths, server.content = [], packed(FILES)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.delenv("PYRO_STRUCTURED_DATA", raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    address = f"http://127.0.0.1:{server.server_port}/archive.zip"
    monkeypatch.setattr(PublicArchive, "url", address)
    yield server
    server.shutdown()
    server.server_close()


def make_archive(files=FILES):
    archive = PublicArchive("someone/something", "0123abc", "archive.zip", "")
    return replace(archive, sha256=archive.digest(packed(files)))


def test_url():
    assert make_archive().url == "https://github.com/someone/something/archive/0123abc.zip"


def test_files_are_downloaded_once(server):
    for _ in range(2):
        assert make_archive().read_files("pictures") == {"a.jpg": b"first", "b 2.jpg": b"second"}
    assert server.paths == ["/archive.zip"]


def test_compression_makes_no_difference(server):
    server.content = packed(dict(reversed(FILES.items())), zipfile.ZIP_STORED)
    assert list(make_archive().read_files("pictures")) == ["a.jpg", "b 2.jpg"]


@pytest.mark.parametrize(
    "content", [b"<html>", b"", packed(FILES)[:-30], packed(FILES | {"code.py": b"import os"})], ids=range(4)
)
def test_other_contents_are_refused(server, tmp_path, content):
    server.content = content
    with pytest.raises(ValueError, match="archive.zip: expected content with the SHA-256 digest [0-9a-f]{64}, got "):
        make_archive().read_files("pictures")
    assert not (tmp_path / "cache").exists()


def test_huge_archives_are_not_unpacked(server, monkeypatch):
    expected = make_archive()
    monkeypatch.setattr("pyro_structured.datasets.public_archive.MOST_BYTES", 10)
    with pytest.raises(ValueError, match="expected content with the SHA-256 digest"):
        expected.read_files("pictures")


def encoded(picture, kind="PNG"):
    content = io.BytesIO()
    Image.fromarray(picture).save(content, kind)
    return content.getvalue()


def test_horses(server, monkeypatch):
    """Constant pictures stay what they are, and masks are decided by the larger part of a pixel."""
    colors = np.array([[200, 100, 50], [0, 255, 7]], np.uint8)
    blocks = np.random.default_rng(0).random((2, 64, 64)) < 0.5
    files = {"README.md": b"horses"}
    for number, (color, mask) in enumerate(zip(colors, blocks, strict=True)):
        files[f"weizmann_horse_db/rgb/horse{number}.jpg"] = encoded(np.broadcast_to(color, (70, 90, 3)).copy())
        # Noise like that of compression makes no difference.
        gray = np.where(mask, 245, 10).astype(np.uint8)
        files[f"weizmann_horse_db/figure_ground/horse{number}.jpg"] = encoded(gray)
    server.content = packed(files)
    monkeypatch.setattr(horses, "ARCHIVE", make_archive(files))
    pictures, masks = load_horses()
    assert pictures.dtype == masks.dtype == np.uint8
    assert (pictures == colors[:, None, None]).all() and pictures.shape == (2, 32, 32, 3)
    shares = blocks.reshape(2, 32, 2, 32, 2).mean((2, 4))
    np.testing.assert_array_equal(masks, shares >= 0.5)


def test_horses_without_pillow(server, monkeypatch):
    monkeypatch.setattr(horses, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"Pillow is not installed; .*'pyro-structured\[plot\]' installs it"):
        load_horses()
    assert not server.paths
