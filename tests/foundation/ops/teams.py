"""Threads that stand for processes with rows of their own."""

import threading

from pyro_structured.foundation.ops.process_sums import sums_over


class Member:
    """One of some threads that call the same functions in the same order."""

    def __init__(self, rank, size, barrier, said):
        self.rank, self.size, self._barrier, self._said = rank, size, barrier, said

    def summed(self, array):
        return sum(self.gathered(array))

    def gathered(self, value):
        self._said[self.rank] = value
        self._barrier.wait()
        values = list(self._said)
        self._barrier.wait()
        return values


def outcomes_of_threads(job, size):
    """What ``job(rank)`` returns in each of some threads, among which sums are."""
    barrier, said, outcomes = threading.Barrier(size, timeout=60), [None] * size, [None] * size

    def run(rank):
        with sums_over(Member(rank, size, barrier, said)):
            outcomes[rank] = job(rank)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes
