"""Downloads from a folder in place of the network."""

from hashlib import sha256

import pytest

from pyro_structured.datasets import public_file
from pyro_structured.datasets.public_file import PublicFile

CONTENT = bytes(range(256)) * 1000
PATH = "pyro_structured/someone/something/0123abc/data/file.bin"


@pytest.fixture
def served(tmp_path, monkeypatch):
    """The file that the source serves; an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "served.bin"
    path.write_bytes(CONTENT)
    monkeypatch.setattr(PublicFile, "url", path.as_uri())
    return path


def make_file(content=CONTENT):
    return PublicFile("someone/something", "0123abc", "data/file.bin", sha256(content).hexdigest())


def test_url():
    assert make_file().url == "https://raw.githubusercontent.com/someone/something/0123abc/data/file.bin"
    assert str(make_file()) == "data/file.bin of the GitHub repository someone/something at commit 0123abc"


def test_url_of_spaces():
    file = PublicFile("someone/something", "0123abc", "some data/file 1.bin", "")
    assert file.url == "https://raw.githubusercontent.com/someone/something/0123abc/some%20data/file%201.bin"


def test_download_is_cached(served, tmp_path, capsys):
    assert make_file().read() == CONTENT
    assert "file.bin: 100%" in capsys.readouterr().err
    served.unlink()
    assert make_file().read() == CONTENT
    assert [path for path in (tmp_path / "cache").rglob("*") if not path.is_dir()] == [tmp_path / "cache" / PATH]
    assert list((tmp_path / "cache" / PATH).parent.iterdir()) == [tmp_path / "cache" / PATH]


def test_default_cache(served, tmp_path, monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(public_file.Path, "home", lambda: tmp_path)
    make_file().read()
    assert (tmp_path / ".cache" / PATH).read_bytes() == CONTENT


def test_damaged_copy_is_replaced(served, tmp_path):
    make_file().read()
    (tmp_path / "cache" / PATH).write_bytes(CONTENT[:-1])
    assert make_file().read() == CONTENT
    assert (tmp_path / "cache" / PATH).read_bytes() == CONTENT


def test_wrong_checksum(served, tmp_path):
    """Nothing is kept, so that the next call downloads again."""
    with pytest.raises(ValueError, match="served.bin: expected content with the SHA-256 digest [0-9a-f]{64}, got "):
        make_file(b"other").read()
    assert not (tmp_path / "cache").exists()
    assert make_file().read() == CONTENT


def test_cache_that_cannot_be_written(served, tmp_path):
    (tmp_path / "cache").write_text("a file where a folder should be")
    message = (
        f"{tmp_path / 'cache' / PATH}: expected a cache that can be written, .* XDG_CACHE_HOME names, got: .*Not a d"
    )
    with pytest.raises(OSError, match=message):
        make_file().read()


def test_failed_download(served, tmp_path):
    served.unlink()
    with pytest.raises(ConnectionError, match="served.bin: the download failed .* PYRO_STRUCTURED_DATA names"):
        make_file().read()
    assert not (tmp_path / "cache").exists()
