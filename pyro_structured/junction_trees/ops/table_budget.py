"""Limit of the number of table entries."""

__all__ = ["check_table_entries"]

import numpy as np
import pyro.settings

SETTING = "pyro_structured_max_table_entries"
# Passes through a junction tree take 100 to 300 bytes for each entry.
MAX_TABLE_ENTRIES = 2**25


@pyro.settings.register(SETTING, __name__, "MAX_TABLE_ENTRIES")
def _check_setting(entries: object) -> None:
    if isinstance(entries, bool) or not isinstance(entries, (int, np.integer)) or entries < 1:
        raise ValueError(f"{SETTING}: expected an integer of at least 1, got {entries!r}")


def check_table_entries(argument: str, what: str, entries: int) -> None:
    """Raises a NotImplementedError, with the argument's name, if there would be more numbers than the setting allows.

    :param str argument: Name of the argument in the message.
    :param str what: Name of the numbers in the message, with the clique that has most of them.
    :param int entries: Number of entries.

    Example::

        >>> with pyro.settings.context(pyro_structured_max_table_entries=100):
        ...     check_table_entries("tree", "the tables", 128)
        Traceback (most recent call last):
            ...
        NotImplementedError: tree: expected at most 100 numbers (pyro_structured_max_table_entries) in the tables, got \
128; pyro.settings.set(pyro_structured_max_table_entries=...) raises the limit, where there is enough memory
    """
    if entries > MAX_TABLE_ENTRIES:
        raise NotImplementedError(
            f"{argument}: expected at most {MAX_TABLE_ENTRIES} numbers ({SETTING}) in {what}, got {entries}; "
            f"pyro.settings.set({SETTING}=...) raises the limit, where there is enough memory"
        )
