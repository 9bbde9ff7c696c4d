"""A folder in place of the network."""

from dataclasses import replace
from hashlib import sha256

import pytest

from pyro_structured.datasets.public_file import PublicFile


@pytest.fixture
def serve(tmp_path, monkeypatch):
    """Puts content at the path of a public file, which it returns with the content's digest."""
    monkeypatch.delenv("PYRO_STRUCTURED_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(PublicFile, "url", property(lambda file: (tmp_path / file.path).as_uri()))

    def put(file, content):
        (tmp_path / file.path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file.path).write_bytes(content)
        return replace(file, sha256=sha256(content).hexdigest())

    return put
