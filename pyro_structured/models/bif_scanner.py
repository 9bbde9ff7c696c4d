"""Words and punctuation of the Bayesian Interchange Format."""

__all__ = ["BifScanner", "is_word"]

import math
import re
from pathlib import Path

BLANKS = re.compile(r"(?:\s|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
WORD = r'(?:(?!//|/\*)[^\s{}()\[\],;|"])+'
TOKEN = re.compile(rf'"[^"]*"|[{{}}()\[\],;|]|{WORD}')
PROPERTY = re.compile(r'property\b(?:"[^"\n]*"|[^;])*?;')


def is_word(name: str) -> bool:
    """Whether a name needs no quotes."""
    return re.fullmatch(WORD, name) is not None


class BifScanner:
    """Reads a text from its beginning; comments are passed over.

    :param Path path: Where the text is from, for errors.
    :param str text: The text.
    """

    def __init__(self, path: Path, text: str) -> None:
        self._path, self._text, self._place = path, text, 0

    def error(self, expected: str) -> ValueError:
        """What to raise if something else comes next."""
        line = self._text.count("\n", 0, self._place) + 1
        token = TOKEN.match(self._text, self._place)
        got = token.group() if token else self._text[self._place : self._place + 20] or "the end"
        return ValueError(f"{self._path}: expected {expected} in line {line}, got {got!r}")

    def peek(self) -> str:
        """The next word, name with its quotes, or punctuation; empty at the end."""
        blanks = BLANKS.match(self._text, self._place)
        self._place = blanks.end() if blanks else self._place
        token = TOKEN.match(self._text, self._place)
        if token is None and self._place < len(self._text):
            raise self.error("quotes and comments that end")
        return token.group() if token else ""

    def take(self, *expected: str) -> str:
        """Passes over one of some words."""
        token = self.peek()
        if token not in expected:
            raise self.error(" or ".join(map(repr, expected)))
        self._place += len(token)
        return token

    def skip_properties(self) -> None:
        """Passes over properties, which hold any text up to a semicolon."""
        while self.peek() == "property":
            found = PROPERTY.match(self._text, self._place)
            if found is None:
                raise self.error("a property that ends with a semicolon")
            self._place = found.end()

    def name(self, what: str) -> str:
        """A name in quotes, or words."""
        words: list[str] = []
        while is_word(token := self.peek()) or (token.startswith('"') and not words):
            self._place += len(token)
            if token.startswith('"'):
                return token[1:-1]
            words.append(token)
        if not words:
            raise self.error(what)
        return " ".join(words)

    def names(self, what: str) -> list[str]:
        """Names with commas between them."""
        found = [self.name(what)]
        while self.peek() == ",":
            self.take(",")
            found.append(self.name(what))
        return found

    def probabilities(self, what: str) -> list[float]:
        """Numbers, with commas between them or without, and the semicolon after them."""
        found = []
        while (token := self.peek()) != ";":
            if token != ",":
                found.append(self._probability(token, what))
            self._place += len(token)
        self.take(";")
        return found

    def _probability(self, token: str, what: str) -> float:
        try:
            number = float(token)
        except ValueError:
            number = math.nan
        if not 0 <= number < math.inf:
            raise self.error(f"numbers of at least 0, and a semicolon after them, for {what}")
        return number
