"""Archives of public repositories, downloaded once."""

__all__ = ["PublicArchive"]

import io
import zipfile
from dataclasses import dataclass
from hashlib import sha256

from pyro_structured.datasets.public_file import PublicFile

# Of all files together, unpacked.
MOST_BYTES = 2**28


@dataclass(frozen=True)
class PublicArchive(PublicFile):
    """All files of a public GitHub repository at one commit, as one archive.

    Archives of one commit may be compressed in different ways, so the digest is that of names and contents.

    :param str path: Name of the archive in the cache.
    :param str sha256: Hexadecimal SHA-256 digest of the names of all files in order, each with its size and content.
    """

    @property
    def url(self) -> str:
        """Address of the archive."""
        return f"https://github.com/{self.repository}/archive/{self.commit}.zip"

    def digest(self, content: bytes) -> str:
        """Hexadecimal SHA-256 digest of names and contents of all files; that of the bytes if they are no archive."""
        try:
            files = _unpack(content)
        except (zipfile.BadZipFile, ValueError):
            return super().digest(content)
        total = sha256()
        for name in sorted(files):
            total.update(f"{name}\n{len(files[name])}\n".encode() + files[name])
        return total.hexdigest()

    def read_files(self, folder: str) -> dict[str, bytes]:
        """Contents of the files in a folder of the repository, by name, in order.

        :param str folder: The folder's path.
        :raises ValueError: if the downloaded archive has other contents.
        :raises ConnectionError: if it cannot be downloaded.
        """
        files = _unpack(self.read())
        return {name.removeprefix(f"{folder}/"): files[name] for name in sorted(files) if name.startswith(f"{folder}/")}


def _unpack(content: bytes) -> dict[str, bytes]:
    """Contents of files by their paths, without the folder around all of them."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = [member for member in archive.infolist() if not member.is_dir()]
        if sum(member.file_size for member in members) > MOST_BYTES:
            raise ValueError(f"archive: expected at most {MOST_BYTES} bytes, got more")
        return {member.filename.partition("/")[2]: archive.read(member) for member in members}
