"""A question in the words of the store: spellings, compounds and synonyms, as one ranked list.

    Muenchen, München       ae, oe, ue and the umlauts are one spelling; ß is ss everywhere
    Datenbankverbindung     finds Datenbank, and Datenbank finds Datenbankverbindung
    db, database, 数据库    one of `systems.lanes.synonyms` finds the others

A word of the question is replaced where the store has another one for it, and the question is
asked again so: `retrieve` returns what holds a replacement and is likely enough an answer. Where
nothing is replaced, nothing is asked and the recall is what it is without lanes. Where the store
knows every word that was replaced, what the question finds as it stands is left out of the list:
so other words add answers and do not move those that are there.

A compound is cut at a word that the store knows: of one that it does not know, the longest
beginning; of one that it knows, only where both parts are known words too. A word that the store
knows is taken for a compound, or for the beginning of one, only in a question of at most three
words: a longer one has enough of them. (XQuAD, German and English: a longer question is answered
worse otherwise.)
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from hermes_lite import (HermesLite, IdFilter, Store, estimate_confidence, is_gram, normalise,
                         query_terms, tokenize_terms)

__all__ = ["SYNONYMS", "Wording"]

SYNONYMS: tuple[tuple[str, ...], ...] = (
    ("datenbank", "database", "db", "数据库"), ("passwort", "kennwort", "password", "密码"),
    ("rechner", "computer", "电脑"), ("besprechung", "meeting", "termin", "会议"),
    ("rechnung", "invoice", "发票"), ("vertrag", "contract", "合同"),
    ("kunde", "customer", "client", "客户"), ("fehler", "error", "bug", "错误"),
    ("sprache", "language", "语言"), ("urlaub", "holiday", "vacation", "休假"))

_WORDS, _LONGER = 12, 8        # words of a question that are looked at, longer words for each
_FEW_WORDS = 3                 # of a question, whose words are compounds though they are known
_LEAST_WORD = 5                # letters of a word that has other spellings
_LEAST_COMPOUND = 8            # letters of a compound,
_LEAST_PART, _LEAST_REST = 4, 3          # of its beginning, and of the word that follows,
_LEAST_UNKNOWN = 5             # of each where the store does not know that word: not Port-ugal
_DEPTH, _HITS = 200, 20
_TO_LETTERS = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue"})
_JOINTS = ("", "s", "es", "n", "en")     # between the parts of a German compound
# What makes another word of one, but no compound: acceptable, Freundschaft.
_ENDINGS = frozenset("""able ably ance ances ation ational ations ative ement ements ence fully
    ible ical ically isation ises ition ization ized izing lessly less ment ments ness ously sion
    tion tions ward wards wise heit heiten keit keiten lich liche lichen isch ische ischen ung
    ungen schaft schaften ieren iert""".split())


class Wording:
    """Asks a question in other words; *groups* are words that mean the same."""

    def __init__(self, groups: Iterable[Sequence[str]] = SYNONYMS) -> None:
        self._synonyms: dict[str, dict[str, None]] = {}
        for group in groups:
            words = dict.fromkeys(map(normalise, group))
            for word in words:
                others = self._synonyms.setdefault(_stem(word), {})
                others.update((other, None) for other in words if other != word)
        self._grams = [word for word in self._synonyms if is_gram(word[0])]

    def retrieve(self, memory: HermesLite, query: str,
                 hidden: Iterable[str] = ()) -> dict[str, float]:
        """Return the ids of what answers *query* in other words, best first, with how likely."""
        store = memory.store
        replaced = self.replacements(store, query)
        others = list(dict.fromkeys(word for words, _ in replaced.values() for word in words))
        if not others:
            return {}
        left_out = set(hidden)
        if not any(is_new for _, is_new in replaced.values()):
            left_out.update(memory_id for memory_id, _ in store.search.words(query, _HITS))
        known = store.search.words(" ".join(others), _DEPTH, accept=lambda i: i not in left_out)
        holding = frozenset(memory_id for memory_id, _ in known)
        question = _in_other_words(query, replaced)
        ranked = store.search.words(question, _HITS,
                                    accept=IdFilter(holding.__contains__, holding))
        if not ranked:
            return {}
        ideal, best = store.search.ideal_score(question), ranked[0][1]
        least = memory.config["retrieval"]["min_confidence"]
        likely = {memory_id: estimate_confidence(score, ideal, best)
                  for memory_id, score in ranked}
        return {memory_id: each for memory_id, each in likely.items() if each >= least}

    def replacements(self, store: Store, query: str) -> dict[str, tuple[list[str], bool]]:
        """Return for words of *query* those of the store that can stand in their place.

        With each goes whether the store does not know the word of the query.
        """
        words = [word for word in dict.fromkeys(query_terms(tokenize_terms(query)))
                 if len(word) > 1 and word.isalpha() and not is_gram(word)][:_WORDS]
        said = normalise(query)
        grams = [gram for gram in self._grams if gram in said]
        meant = {word: [*self._synonyms.get(_stem(word), ()), *_spellings(word)]
                 for word in [*words, *grams]}
        asked = [*meant, *(other for others in meant.values() for other in others)]
        known = store.search.known_words(asked)
        found = {}
        for word, others in meant.items():
            others = [other for other in others if other in known]
            if word not in grams and (word not in known or len(words) <= _FEW_WORDS):
                others = [*(others or _parts(store, word, word in known)),
                          *_longer(store, word, word in known)]
            if others:
                found[word] = list(dict.fromkeys(others)), word not in known
        return found


def _stem(word: str) -> str:
    """Return a word in the form that all its endings share; a Chinese one as it is."""
    return word if is_gram(word[0]) else tokenize_terms(word, stem=True)[-1]


def _spellings(word: str) -> Iterator[str]:
    """Yield the other spellings of a word with an umlaut, or with two letters in its place."""
    if len(word) >= _LEAST_WORD:
        letters = word.translate(_TO_LETTERS)
        plain = word
        for two, one in (("ae", "a"), ("oe", "o"), ("ue", "u")):
            plain = plain.replace(two, one)
        yield from (other for other in dict.fromkeys((letters, plain)) if other != word)


def _parts(store: Store, word: str, is_known: bool) -> list[str]:
    """Return the parts of a compound that the store knows, its beginning first."""
    if len(word) < _LEAST_COMPOUND:
        return []
    cuts = range(len(word) - _LEAST_REST, _LEAST_PART - 1, -1)      # the longest beginning first
    known = store.search.known_words([part for at in cuts for part in (word[:at], word[at:])])
    for start, rest in ((word[:at], word[at:]) for at in cuts):
        if start not in known or _is_stop_word(start):
            continue
        end = next((end for end in _without_joint(rest) if end in known), None)
        if end is not None:
            return [start, end]
        is_long = min(len(start), len(rest)) >= _LEAST_UNKNOWN
        if is_long and not is_known and rest not in _ENDINGS:
            return [start]
    return []


def _without_joint(rest: str) -> list[str]:
    """Return what follows the beginning of a compound as the words that it may be."""
    words = [rest.removeprefix(joint) for joint in _JOINTS if rest.startswith(joint)]
    return [word for word in words if len(word) >= _LEAST_REST]


def _is_stop_word(word: str) -> bool:
    return word not in query_terms([word, "0"])


def _longer(store: Store, word: str, is_known: bool) -> list[str]:
    """Return the compounds of the store that begin with a word."""
    stem = _stem(word)
    if len(stem) < _LEAST_PART:
        return []
    longer = [each for each in store.search.words_beginning(word)
              if len(each) >= len(stem) + _LEAST_REST
              and each[len(stem):] not in _ENDINGS][:4 * _LONGER]
    ends = {each: _without_joint(each[len(stem):]) for each in longer}
    known = store.search.known_words([word for each in longer for word in (each, *ends[each])])
    return [each for each in longer if each in known
            and (not is_known or not known.keys().isdisjoint(ends[each]))][:_LONGER]


def _in_other_words(query: str, replaced: Mapping[str, tuple[Sequence[str], bool]]) -> str:
    """Return a question with the words that the store has in place of others."""
    said = normalise(query)
    for gram in (word for word in replaced if is_gram(word[0])):
        said = said.replace(gram, f" {' '.join(replaced[gram][0])} ")
    words = query_terms(tokenize_terms(said, grams=2))
    return " ".join(other for word in words if len(word) > 1 or not is_gram(word)
                    for other in (replaced[word][0] if word in replaced else [word]))
