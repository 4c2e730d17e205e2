#!/usr/bin/env python3
"""Measure what association adds to recall, on questions whose answers lie in several texts.

usage: brain_recall.py --data DIR [--out FILE.jsonl] [--work DIR] [--b 0] [--tune]
       brain_recall.py --smoke

DIR holds locomo.corpus.jsonl and locomo.queries.jsonl. Asked are the questions of category 1
(several turns answer together: multi-hop) and 3 (the answer is inferred: open-domain). Each
conversation is a store; its texts are written by `remember`, with the brain switched on. Concepts:

    texts       what the product itself takes from the texts: names and versions
    classes     as well the links of classes.txt, which was written without looking at the questions
    tagged      as well a tag on each text for each member that it names, as an agent might give

`--tune` looks for the best weights on TUNED; the other conversations are reported apart from them.
A figure is the part of the marked texts among the first 5 or 10. Where answers are drawn by
chance, it is the mean over SEEDS.
"""
from __future__ import annotations

import argparse
import functools
import itertools
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from unittest import mock

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from recall_quality import Group, Question, locomo, mean  # noqa: E402

from hermes_ext.brain import associate as association  # noqa: E402
from hermes_ext.brain.associate import Scores, associate  # noqa: E402
from hermes_ext.brain.concepts import ConceptGraph, concept_key  # noqa: E402
from hermes_ext.brain.extension import abstracting  # noqa: E402
from hermes_ext.brain.note import CONCEPT  # noqa: E402
from hermes_lite import Config, HermesLite, tokenize_terms  # noqa: E402

__all__ = ["main", "read_classes"]

CATEGORIES = ("multi-hop", "open-domain")
TUNED = ("conv-26", "conv-30", "conv-41")
KINDS = ("texts", "classes", "tagged")
SEEDS = range(2)
CUTS = (5, 10)
NOTHING = Scores(shared=0, one_link=0, member=0)
SHIPPED = Scores()
ARMS: dict[str, Scores] = {
    "associative, all steps": SHIPPED,
    "  likeness alone": NOTHING,
    "  + shared concept": replace(NOTHING, shared=SHIPPED.shared),
    "  + one link": replace(NOTHING, one_link=SHIPPED.one_link),
    "  + members of classes": replace(NOTHING, member=SHIPPED.member),
    "  without shared concept": replace(SHIPPED, shared=0),
    "  without one link": replace(SHIPPED, one_link=0),
    "  without members": replace(SHIPPED, member=0),
    "  with common concepts, too": replace(SHIPPED, common=50),
    "  shared 0.1, one link 0.05": replace(SHIPPED, shared=0.1, one_link=0.05),
    "  members of classes 0.25 alone": replace(NOTHING, member=0.25),
}
GRID = [Scores(shared, one_link, member) for shared, one_link, member in itertools.product(
    (0, 0.1, 0.3), (0, 0.15), (0, 0.25, 0.5, 0.75, 1))]
Asked = Callable[[str], dict[int, list[str]]]          # question -> {cut: ids}


# -- stores ---------------------------------------------------------------------

def read_classes(path: Path = HERE / "classes.txt") -> list[tuple[list[str], list[str]]]:
    """Return (names, members) of each line."""
    found = []
    for line in path.read_text("utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            names, members = (part.split(",") for part in line.split(":"))
            found.append(([name.strip() for name in names],
                          [member.strip() for member in members]))
    return found


def tags_of(text: str, members: dict[str, str]) -> list[str]:
    """Return the members whose name stands in a text; *members* are {stem: name}."""
    found = dict.fromkeys(members[stem] for stem in tokenize_terms(text, stem=True)
                          if stem in members)
    return [concept_key(name) for name in found][:20]


def open_store(root: Path, **retrieval: float) -> HermesLite:
    """Open a store with the shipped settings and those given; nothing grows hot by being asked."""
    settings = {"systems": {"brain": {}},
                "retrieval": {"hot_threshold": 1_000_000_000, **retrieval}}
    return HermesLite(root, config=Config(settings, environ={"HERMES_VECTOR_BACKEND": "local",
                                                             "HERMES_RERANK": "off"}))


def link_all(memory: HermesLite, classes: list[tuple[list[str], list[str]]]) -> None:
    """Write the records that `concept link MEMBER is_a NAME` would, each at once.

    One command a link reads all records again each time: 1,800 links take minutes.
    """
    links: dict[str, list[list[str]]] = {}
    for names, members in classes:
        for member, name in itertools.product(members, names):
            links.setdefault(name, [])
            if member != name:
                links.setdefault(member, []).append(["is_a", name])
    with abstracting():
        for name, targets in links.items():
            memory.remember(name, tags=[CONCEPT, f"concept/{concept_key(name)}"],
                            meta={"pinned": True, "brain": {"concept": name, "links": targets}})


def write(group: Group, kind: str, root: Path) -> dict[str, list[str]]:
    """Make the store of a conversation; return {memory id: [ids of its texts]}."""
    kept = root / "bench_ids.json"
    if kept.exists():
        return json.loads(kept.read_text())
    root.mkdir(parents=True)
    classes = read_classes() if kind != "texts" else []
    members = {}
    if kind == "tagged":
        for _, names in classes:
            stems = ((tokenize_terms(name, stem=True), name) for name in names)
            members.update({found[0]: name for found, name in stems if len(found) == 1})
    ids: dict[str, list[str]] = {}
    with open_store(root) as memory, memory.batch():
        for name, text, source in group.texts:
            made = memory.remember(text, source=source, tags=tags_of(text, members))
            ids.setdefault(made.id, []).append(name)
        link_all(memory, classes)
    kept.write_text(json.dumps(ids))
    return ids


# -- figures --------------------------------------------------------------------

def plain(memory: HermesLite) -> Asked:
    def ask(query: str) -> dict[int, list[str]]:
        ids = [hit.id for hit in memory.recall(query, top_k=max(CUTS))]
        return {cut: ids[:cut] for cut in CUTS}
    return ask


def associating(memory: HermesLite, scores: Scores, seed: int | None = None) -> Asked:
    """Ask by association; without a seed nothing is drawn, and one answer serves each cut."""
    def ids(query: str, k: int, **how: object) -> list[str]:
        return [hit.id for hit in associate(memory, query, top_k=k, scores=scores, **how)]

    def ask(query: str) -> dict[int, list[str]]:
        if seed is not None:
            return {cut: ids(query, cut, temperature=0.3, seed=seed) for cut in CUTS}
        found = ids(query, max(CUTS), temperature=0)
        return {cut: found[:cut] for cut in CUTS}
    return ask


def found_part(question: Question, ranking: Iterable[str], ids: dict[str, list[str]]) -> float:
    """Return the part of the marked texts that a ranking holds."""
    found = {name for memory_id in ranking for name in ids.get(memory_id, ())}
    return len(found & set(question.gold)) / len(set(question.gold))


def rows_of(group: Group, asks: dict[str, list[Asked]], ids: dict[str, list[str]]
            ) -> Iterator[dict]:
    """Yield a row for each question and arm; an arm with several ways to ask is their mean."""
    for question in group.questions:
        if question.category not in CATEGORIES or not question.gold:
            continue
        for arm, ways in asks.items():
            row = {"group": group.name, "category": question.category, "id": question.id,
                   "arm": arm}
            rankings = [way(question.text) for way in ways]
            for cut in CUTS:
                row[f"@{cut}"] = mean([found_part(question, ranking[cut], ids)
                                       for ranking in rankings])
            yield row


def measure(groups: list[Group], kind: str, work: Path,
            asks_of: Callable[[HermesLite], dict[str, list[Asked]]],
            **retrieval: float) -> list[dict]:
    """Return the rows of all questions to all stores; *retrieval* are settings that differ."""
    found = []
    for group in groups:
        root = work / kind / group.name
        ids = write(group, kind, root)
        graphs = functools.cache(ConceptGraph)
        with open_store(root, **retrieval) as memory, mock.patch.object(association, "ConceptGraph", graphs):
            # No record changes while questions are asked: each is read once, not each time.
            memory.store.get = functools.cache(memory.store.get)
            found += rows_of(group, asks_of(memory), ids)
        print(f"{kind}: {group.name}", file=sys.stderr)
    return [{**row, "concepts": kind} for row in found]


def arms_of(memory: HermesLite) -> dict[str, list[Asked]]:
    asks = {"recall": [plain(memory)]}
    asks |= {arm: [associating(memory, scores)] for arm, scores in ARMS.items()}
    asks["  all steps, last drawn (0.3)"] = [associating(memory, SHIPPED, seed)
                                             for seed in SEEDS]
    return asks


def grid_of(memory: HermesLite) -> dict[str, list[Asked]]:
    return {name_of(scores): [associating(memory, scores)] for scores in GRID}


def name_of(scores: Scores) -> str:
    return f"shared {scores.shared}, one link {scores.one_link}, member {scores.member}"


def figure(rows: list[dict], arm: str, cut: int, *, tuned: bool | None = None,
           category: str | None = None) -> float:
    return mean([row[f"@{cut}"] for row in rows if row["arm"] == arm
                 and (tuned is None or (row["group"] in TUNED) == tuned)
                 and (category is None or row["category"] == category)])


def table(rows: list[dict], kind: str) -> Iterator[str]:
    """Yield the lines of a table in Markdown: both halves, and both categories of all."""
    rows = [row for row in rows if row["concepts"] == kind]
    yield (f"| concepts: {kind} | tuned half @5 / @10 | other half | all, multi-hop | "
           "all, open-domain |")
    yield "|---|---|---|---|---|"
    for arm in dict.fromkeys(row["arm"] for row in rows):
        cells = [" / ".join(f"{figure(rows, arm, cut, **part):.3f}" for cut in CUTS)
                 for part in ({"tuned": True}, {"tuned": False},
                              *({"category": each} for each in CATEGORIES))]
        yield f"| {arm.replace('  ', '– ')} | {' | '.join(cells)} |"


def changed(rows: list[dict], kind: str, arm: str, cut: int) -> tuple[int, int]:
    """Return how many questions an arm answers better, and how many worse, than recall."""
    of = {name: {row["id"]: row[f"@{cut}"] for row in rows
                 if row["concepts"] == kind and row["arm"] == name} for name in (arm, "recall")}
    pairs = [(of[arm][each], of["recall"][each]) for each in of["recall"]]
    return sum(a > b for a, b in pairs), sum(a < b for a, b in pairs)


# -- runs -----------------------------------------------------------------------

def tune(groups: list[Group], work: Path) -> dict[str, str]:
    """Return the weights that are best on the tuned half, of each kind of concepts."""
    best = {}
    for kind in KINDS:
        rows = measure([group for group in groups if group.name in TUNED], kind, work, grid_of)
        arms = dict.fromkeys(row["arm"] for row in rows)
        ranked = sorted(arms, key=lambda arm: -figure(rows, arm, 5) - figure(rows, arm, 10))
        best[kind] = ranked[0]
        print(f"\n{kind}, tuned half @5 / @10:")
        for arm in (*ranked[:5], name_of(SHIPPED)):
            print(f"  {figure(rows, arm, 5):.3f} / {figure(rows, arm, 10):.3f}  {arm}")
    return best


def smoke() -> int:
    """A question about drinks finds tea by its class, and by recall it does not."""
    group = Group("made", "made", [("tea", "Oolong tea arrived from Taiwan", None),
                                   ("ferry", "The ferry leaves at nine", None)],
                  [Question("q", "which drinks are there", ["tea"], CATEGORIES[0])])
    with tempfile.TemporaryDirectory() as folder:
        rows = measure([group], "classes", Path(folder), arms_of)
    found = {row["arm"]: row["@5"] for row in rows}
    good = found["recall"] == 0.0 and found["associative, all steps"] == 1.0
    print("ok" if good else f"failed: {found}")
    return 0 if good else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--work", type=Path, help="keeps the stores, so that a second run only asks")
    parser.add_argument("--out", type=Path, help="a row for each question and arm")
    parser.add_argument("--tune", action="store_true", help="look for the best weights")
    parser.add_argument("--smoke", action="store_true", help="some seconds, without data")
    parser.add_argument("--b", type=float, help="retrieval.bm25_b, where it is not the shipped one")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    args = parser.parse_args()
    if args.smoke:
        return smoke()
    if not args.data:
        parser.error("give --data DIR, or --smoke")
    work = args.work or Path(tempfile.mkdtemp())
    try:
        groups = locomo(args.data)
        if args.tune:
            tune(groups, work)
            return 0
        retrieval = {} if args.b is None else {"bm25_b": args.b}
        rows = [row for kind in args.kinds
                for row in measure(groups, kind, work, arms_of, **retrieval)]
    finally:
        if not args.work:
            shutil.rmtree(work, ignore_errors=True)
    for kind in args.kinds:
        print("\n".join(table(rows, kind)))
        for cut in CUTS:
            more, less = changed(rows, kind, "associative, all steps", cut)
            print(f"all steps against recall @{cut}: better {more}, worse {less}")
        print()
    if args.out:
        args.out.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
