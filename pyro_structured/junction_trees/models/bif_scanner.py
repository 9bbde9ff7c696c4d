"""Words and punctuation of the Bayesian Interchange Format."""

__all__ = ["BifScanner", "is_word"]

import math
import re
from pathlib import Path

# Each of these takes time in proportion to what it matches, and no memory: where a text does not fit, there is one way
# to find out. A repeated group would keep every repetition.
BLANK = re.compile(r"\s+|//[^\n]*|/\*.*?\*/", re.DOTALL)
WORD = re.compile(r'(?!//|/\*)[^\s{}()\[\],;|"]+?(?=//|/\*|[\s{}()\[\],;|"]|\Z)')
TOKEN = re.compile(rf'"[^"]*"|[{{}}()\[\],;|]|{WORD.pattern}')
# What stands in properties: quotes that do not end in their line are no quotes.
PROPERTY_PART = re.compile(r'[^;"]+|"[^"\n]*"|"')
NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
LONGEST_QUOTATION = 60


def is_word(name: str) -> bool:
    """Whether a name needs no quotes."""
    found = WORD.match(name)
    return found is not None and found.end() == len(name)


class BifScanner:
    """Reads a text from its beginning, in time in proportion to its length; comments are passed over.

    :param Path path: Where the text is from, for errors.
    :param str text: The text.
    :ivar int place: How much was read.
    """

    def __init__(self, path: Path, text: str) -> None:
        self._path, self._text, self.place = path, text, 0
        self._token: str | None = None

    def line(self, place: int) -> int:
        """The number of a place's line, counted from 1."""
        return self._text.count("\n", 0, place) + 1

    def error(self, expected: str) -> ValueError:
        """What to raise if something else comes next."""
        token = TOKEN.match(self._text, self.place)
        got = token.group() if token else self._text[self.place : self.place + 20] or "the end"
        got = got if len(got) <= LONGEST_QUOTATION else got[:LONGEST_QUOTATION] + "..."
        return ValueError(f"{self._path}: expected {expected} in line {self.line(self.place)}, got {got!r}")

    def wrong(self, message: str, place: int | None = None) -> ValueError:
        """What to raise about something that was read, at the present place or from another one on."""
        return ValueError(
            f"{self._path}: expected {message} (line {self.line(self.place if place is None else place)})"
        )

    def peek(self) -> str:
        """The next word, name with its quotes, or punctuation; empty at the end."""
        if self._token is None:
            while blank := BLANK.match(self._text, self.place):
                self.place = blank.end()
            token = TOKEN.match(self._text, self.place)
            if token is None and self.place < len(self._text):
                raise self.error("quotes and comments that end")
            self._token = token.group() if token else ""
        return self._token

    def _pass(self, length: int) -> None:
        self.place += length
        self._token = None

    def take(self, *expected: str) -> str:
        """Passes over one of some words."""
        token = self.peek()
        if token not in expected:
            raise self.error(" or ".join(map(repr, expected)))
        self._pass(len(token))
        return token

    def skip_properties(self) -> None:
        """Passes over properties, which hold any text up to a semicolon."""
        while (token := self.peek()) == "property":
            start = self.place
            self._pass(len(token))
            while part := PROPERTY_PART.match(self._text, self.place):
                self.place = part.end()
            if self.place == len(self._text):
                self.place = start
                raise self.error("a property that ends with a semicolon")
            self.take(";")

    def name(self, what: str) -> str:
        """A name in quotes, or words."""
        words: list[str] = []
        while is_word(token := self.peek()) or (token.startswith('"') and not words):
            self._pass(len(token))
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
            self._pass(len(token))
        self.take(";")
        return found

    def _probability(self, token: str, what: str) -> float:
        number = float(token) if NUMBER.fullmatch(token) else math.nan
        if not 0 <= number < math.inf:
            raise self.error(f"numbers of at least 0, and a semicolon after them, for {what}")
        return number
