"""Keyword indexes under one handle, for speed.py: ours and those of the field.

Each gets the same terms from `tokenize_terms` (FTS5 and tantivy: joined by blanks) and, where it
can be told, k1 = 1.5 and b = 0.75. `build` makes the index of all texts, whose keys are their
places; `search` returns the keys of the best ten, best first; `add` and `remove` change it, where
an engine has them. A query is timed from text to ten keys. An engine whose package
is not installed raises ImportError when it is built.
"""
from __future__ import annotations

import sqlite3

from hermes_lite import BM25Index, tokenize_terms

__all__ = ["ENGINES"]


class Ours:
    """As it stands in the core, in memory."""
    name = "BM25Index"

    def build(self, texts: list[str]) -> None:
        self.index = BM25Index()
        for key, text in enumerate(texts):
            self.index.add(str(key), text)

    def search(self, query: str) -> list[str]:
        return [key for key, _ in self.index.search(query, 10)]

    def add(self, key: int, text: str) -> None:
        self.index.add(str(key), text)

    def remove(self, key: int) -> None:
        self.index.remove(str(key))


class Loaded(Ours):
    """The index as a process finds it on disk."""
    name = "BM25Index, loaded"

    def build(self, texts: list[str]) -> None:
        super().build(texts)
        self.index = BM25Index.load(self.index.dump())


class RankBM25:
    """Can neither add nor remove; scores every text for every query."""
    name, slow = "rank_bm25", True

    def build(self, texts: list[str]) -> None:
        from rank_bm25 import BM25Okapi
        self.index = BM25Okapi([tokenize_terms(text) for text in texts])

    def search(self, query: str) -> list[str]:
        scores = self.index.get_scores(tokenize_terms(query))
        best = scores.argpartition(-10)[-10:]
        return [str(key) for key in best[(-scores[best]).argsort()]]


class BM25s:
    """Can neither add nor remove; numpy backend."""
    name = "bm25s (numpy)"

    def build(self, texts: list[str]) -> None:
        import bm25s
        self.index = bm25s.BM25(method="lucene", k1=1.5, b=0.75, backend="numpy")
        self.index.index([tokenize_terms(text) for text in texts], show_progress=False)

    def search(self, query: str) -> list[str]:
        known = self.index.vocab_dict
        terms = [term for term in tokenize_terms(query) if term in known]
        if not terms:
            return []
        keys, _ = self.index.retrieve([terms], k=10, show_progress=False, n_threads=0)
        return [str(key) for key in keys[0]]


class FTS5:
    """In memory; each change is committed."""
    name = "SQLite FTS5"

    def build(self, texts: list[str]) -> None:
        self.base = sqlite3.connect(":memory:")
        self.base.execute("create virtual table notes using fts5(text, tokenize = \"unicode61 "
                          "remove_diacritics 0 tokenchars '-_.@:/+&''#'\")")
        with self.base:
            self.base.executemany("insert into notes(rowid, text) values (?, ?)", (
                (key, " ".join(tokenize_terms(text))) for key, text in enumerate(texts)))

    def search(self, query: str) -> list[str]:
        words = " OR ".join('"%s"' % term.replace('"', '""')
                            for term in dict.fromkeys(tokenize_terms(query)))
        return [str(key) for key, in self.base.execute(
            "select rowid from notes where notes match ? order by rank limit 10", (words,))]

    def add(self, key: int, text: str) -> None:
        with self.base:
            self.base.execute("insert into notes(rowid, text) values (?, ?)",
                              (key, " ".join(tokenize_terms(text))))

    def remove(self, key: int) -> None:
        with self.base:
            self.base.execute("delete from notes where rowid = ?", (key,))


class Tantivy:
    """In memory; each change is committed, so that it can be found."""
    name = "tantivy"

    def build(self, texts: list[str]) -> None:
        import tantivy
        self.tantivy = tantivy
        schema = tantivy.SchemaBuilder()
        schema.add_text_field("text", tokenizer_name="whitespace")
        schema.add_text_field("key", stored=True, tokenizer_name="raw")
        self.index = tantivy.Index(schema.build())
        self.writer = self.index.writer(100_000_000, 1)
        for key, text in enumerate(texts):
            self._put(key, text)
        self._commit()

    def _put(self, key: int, text: str) -> None:
        self.writer.add_document(self.tantivy.Document(
            text=" ".join(tokenize_terms(text)), key=str(key)))

    def _commit(self) -> None:
        self.writer.commit()
        self.index.reload()

    def search(self, query: str) -> list[str]:
        made, should = self.tantivy.Query, self.tantivy.Occur.Should
        terms = [(should, made.term_query(self.index.schema, "text", term))
                 for term in dict.fromkeys(tokenize_terms(query))]
        searcher = self.index.searcher()
        return [searcher.doc(place)["key"][0]
                for _, place in searcher.search(made.boolean_query(terms), 10).hits]

    def add(self, key: int, text: str) -> None:
        self._put(key, text)
        self._commit()

    def remove(self, key: int) -> None:
        self.writer.delete_documents_by_term("key", str(key))
        self._commit()


ENGINES = (Ours, Loaded, BM25s, RankBM25, FTS5, Tantivy)
