"""BM25 scores of a large archive: arrays of numpy add up what loops of Python take long for.

Optional: where numpy is not installed, or the lists of a query are short, the core's MaxScore
answers. Both give the same ranking and the same scores, to the last bit.
"""
from __future__ import annotations

import functools
import heapq
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hermes_lite import QueryTerm, TermScorer

__all__ = ["ArrayScorer"]

# Postings of all terms of a query from which numpy is faster than MaxScore; far more where numpy
# is not imported yet, which takes a process about 0.1 s.
MANY_POSTINGS = 20_000
WORTH_AN_IMPORT = 300_000


class ArrayScorer(TermScorer):
    """A TermScorer that ranks the queries with long lists by numpy."""

    def rank_best(self, terms: Sequence[QueryTerm], k: int,
                  factors: Mapping[int, float]) -> list[tuple[float, int]]:
        """Rank the *k* best documents: add up every list whole, then pick."""
        numpy = _numpy(sum(term.postings.size for term in terms))
        if numpy is None:
            return super().rank_best(terms, k, factors)
        lengths = numpy.asarray(self.postings.lengths())
        longest = int(lengths.max())
        by_length = self.shares()

        @functools.cache
        def shares(count: int) -> Any:
            """Return what a term counts that a document has *count* times, by its length."""
            row = by_length[count]
            return numpy.array([row[length] for length in range(longest + 1)])

        scores = numpy.zeros(len(lengths))
        for term in terms:
            docs = numpy.asarray(term.postings.docs)
            scores[docs] += term.weight * _shares_of(term, docs, lengths, shares)
        for doc, factor in factors.items():
            scores[doc] *= factor
        best = max(0, len(scores) - k)
        kth = float(numpy.partition(scores, best)[best])
        found = numpy.flatnonzero(scores >= kth if kth > 0 else scores > 0)
        return heapq.nlargest(k, zip(scores[found].tolist(), found.tolist()))


def _shares_of(term: QueryTerm, docs: Any, lengths: Any, shares: Callable[[int], Any]) -> Any:
    """Return what a term counts in each document of its list, as an array beside the list."""
    import numpy
    added = shares(1)[lengths[docs]]
    repeats = term.postings.repeats
    repeated = numpy.fromiter(repeats.keys(), docs.dtype, len(repeats))
    counts = numpy.fromiter(repeats.values(), docs.dtype, len(repeats))
    places = numpy.searchsorted(docs, repeated)
    for count in numpy.unique(counts).tolist():
        is_count = counts == count
        added[places[is_count]] = shares(count)[lengths[repeated[is_count]]]
    return added


def _numpy(postings: int) -> Any:
    """Return the package numpy where it is worth it for so many postings, else None."""
    if postings <= (MANY_POSTINGS if "numpy" in sys.modules else WORTH_AN_IMPORT):
        return None
    try:
        import numpy
    except ImportError:
        return None
    return numpy
