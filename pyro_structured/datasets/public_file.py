"""Files of public repositories, downloaded once."""

__all__ = ["PublicFile"]

import os
import tempfile
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote
from urllib.request import urlopen

from tqdm import tqdm

from pyro_structured.datasets.local_archive import VARIABLE

CHUNK_BYTES = 2**16
TIMEOUT_SECONDS = 60


@dataclass(frozen=True)
class PublicFile:
    """A file of a public GitHub repository at one commit, whose content is checked.

    :param str repository: Owner and name.
    :param str commit: Full hash of the commit.
    :param str path: The file's place in the repository.
    :param str sha256: Hexadecimal SHA-256 digest of the content.
    """

    repository: str
    commit: str
    path: str
    sha256: str

    def __str__(self) -> str:
        return f"{self.path} of the GitHub repository {self.repository} at commit {self.commit}"

    @property
    def url(self) -> str:
        """Address of the content."""
        return f"https://raw.githubusercontent.com/{self.repository}/{self.commit}/{quote(self.path)}"

    def digest(self, content: bytes) -> str:
        """Hexadecimal SHA-256 digest of the content."""
        return sha256(content).hexdigest()

    def fetch(self) -> Path:
        """Path of an intact copy in the cache, which is downloaded if it is missing.

        The cache is the folder ``pyro_structured`` below ``XDG_CACHE_HOME``, or else below ``~/.cache``.

        :raises ValueError: if the downloaded content has another digest. It is not kept.
        :raises ConnectionError: if it cannot be downloaded.
        :raises OSError: if the cache cannot be written.
        """
        root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        cached = Path(root, "pyro_structured", self.repository, self.commit, self.path)
        if cached.is_file() and self.digest(cached.read_bytes()) == self.sha256:
            return cached
        content = self._download()
        digest = self.digest(content)
        if digest != self.sha256:
            raise ValueError(f"{self.url}: expected content with the SHA-256 digest {self.sha256}, got {digest}")
        try:
            cached.parent.mkdir(parents=True, exist_ok=True)
            # Renaming is atomic: another process sees the whole file or none.
            with tempfile.TemporaryDirectory(dir=cached.parent) as folder:
                unfinished = Path(folder) / cached.name
                unfinished.write_bytes(content)
                unfinished.replace(cached)
        except OSError as error:
            raise OSError(
                f"{cached}: expected a cache that can be written, below the folder that the environment variable "
                f"XDG_CACHE_HOME names, got: {error}"
            ) from error
        return cached

    def read(self) -> bytes:
        """The content, as :meth:`fetch` finds it."""
        return self.fetch().read_bytes()

    def _download(self) -> bytes:
        content = bytearray()
        try:
            with urlopen(self.url, timeout=TIMEOUT_SECONDS) as response:
                length = response.headers["Content-Length"]
                total = None if length is None else int(length)
                with tqdm(total=total, desc=Path(self.path).name, unit="B", unit_scale=True) as bar:
                    while chunk := response.read(CHUNK_BYTES):
                        content += chunk
                        bar.update(len(chunk))
        except OSError as error:
            raise ConnectionError(
                f"{self.url}: the download failed ({error}); a local folder can take its place, which the environment "
                f"variable {VARIABLE} names"
            ) from error
        return bytes(content)
