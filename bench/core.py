#!/usr/bin/env python3
"""Measure the core beside plain baselines, on one machine, in one run.

usage: core.py [--sizes 1000,10000] [--singles 200] [--colds 7] [--out FILE.json]

Made here: different memories of about 120 characters, half Chinese, a third English, the rest
German, with Zipf frequencies and a fixed seed. Measured: one write and one question in a running
process, a batch, one command as a process of its own, the memory of that process, bytes on disk.
The baselines do the same work with less: json.load of the same index.json, a JSON file written
again for each memory, SQLite FTS5, grep and ripgrep over the same Markdown files. The results are
a table on standard output and a JSON file. A ratio says more than a figure: machines differ.
"""
from __future__ import annotations

import argparse
import compileall
import itertools
import json
import os
import platform
import random
import re
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = ["Notes", "main", "measure"]
HOME = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(HOME))

# Filled by Notes.text: {n} a name, {t} a thing, {v} a verb, {w} a word of the text, {i} an
# identifier, {d} a date, {q} a quantity.
TEMPLATES = {
    "zh": ("{n}说{t}的{w}要在{d}之前{v}", "我们决定用{i}来{v}{t}，因为{w}比{w}更{w}", "{t}的{w}是{q}",
           "{d}{n}和{n}讨论了{t}的{w}", "以后{v}{t}时先看{w}，再{v}{w}", "{n}喜欢{w}的{w}，不喜欢{w}",
           "{i}在{d}出过一次{w}问题，原因是{t}没有{v}", "项目{i}的下一步是{v}{w}和{w}",
           "{w}会议改到{d}，由{n}主持", "部署{t}之前必须{v}{w}，大约需要{q}"),
    "en": ("{n} wants the {t} {w} to {v} before {d}", "we chose {i} for the {t} because {w} {w}",
           "the {t} takes about {q} when the {w} is {w}", "on {d} {n} and {n} talked about {w}",
           "always {v} the {t} first, then {v} the {w}", "{n} prefers {w} {w} over {w}",
           "{i} failed on {d}: the {t} did not {v}", "next step of {i}: {v} the {w} and the {w}",
           "the {w} meeting moved to {d}, {n} leads it", "never {v} {i} without a {w}"),
    "de": ("{n} möchte die {t} bis {d} {v}", "für {t} nehmen wir {i}, weil {w} {w} ist",
           "die {t} braucht etwa {q}, wenn {w} fehlt", "am {d} sprachen {n} und {n} über {w}",
           "{i} fiel am {d} aus, {t} ließ sich nicht {v}", "vor der {w} immer zuerst {t} {v}"),
}
WORDS = {
    "zh": {"t": "数据库 网关 缓存 接口 日志 服务器 前端 后端 测试环境 监控 报表 合同 预算 客户 仓库 模型 索引 "
                "队列 证书 备份 域名 订单 支付 搜索 推荐 权限 配置 文档 周报 流水线 镜像 容器 集群 脚本".split(),
           "v": "升级 检查 迁移 重启 备份 清理 记录 压缩 删除 更新 发布 验证 回滚 评审 加密 同步 拆分 合并 "
                "测试 安装 归档 通知 审批 修复 扩容".split(),
           "w": "性能 速度 稳定性 价格 版本 格式 颜色 字体 延迟 容量 温度 天气 咖啡 早餐 旅行 音乐 电影 跑步 "
                "羽毛球 摄影 阅读 英语 编程 家庭 孩子 医生 健康 睡眠 火车 机票 酒店 餐厅 海边 山路 花园 "
                "简单 复杂 安静 明亮 便宜 可靠 灵活 完整 清楚 准时 夜间 上午 下午 周末 春天 冬天 城市 农村 图书馆 "
                "博物馆 电视 手机 键盘 显示器 耳机 椅子 桌子 窗户 钥匙 雨伞 自行车 地铁 邮件 电话 密集 稀疏 "
                "错误 警告 结果 计划 目标 原因 方法 步骤 顺序 数量 质量 风险 机会 问题 答案 规则 习惯 经验".split()},
    "en": {"t": "database gateway cache interface server frontend backend staging monitor report "
                "contract budget customer warehouse model index queue certificate backup domain "
                "invoice payment search pipeline image container cluster script".split(),
           "v": "upgrade check migrate restart archive clean record compress delete update "
                "publish verify review encrypt sync split merge test install notify approve "
                "repair".split(),
           "w": "speed stability price version format colour font latency capacity weather coffee "
                "breakfast travel music film running badminton photography reading english family "
                "children doctor health sleep train flight hotel restaurant beach mountain garden "
                "simple complex quiet bright cheap reliable flexible complete clear nightly "
                "morning weekend spring winter city library museum phone keyboard monitor "
                "headset chair window umbrella bicycle subway mail error warning result plan "
                "goal reason method order amount quality risk chance question rule habit".split()},
    "de": {"t": "Datenbank Schnittstelle Sicherung Warteschlange Rechnung Zahlung Suche Anlage "
                "Verwaltung Umgebung Auswertung Lieferung Abteilung Leitung Prüfung".split(),
           "v": "prüfen erneuern umziehen neustarten sichern aufräumen löschen "
                "veröffentlichen testen verschlüsseln zusammenführen freigeben".split(),
           "w": "Geschwindigkeit Preis Version Farbe Wetter Kaffee Reise Musik Familie Arzt "
                "Gesundheit Bahn Hotel Strand Garten einfach ruhig billig sicher Morgen "
                "Wochenende Winter Stadt Bibliothek Telefon Tastatur Fenster Fehler Plan Ziel "
                "Grund Menge Risiko Frage Regel Gewohnheit".split()},
}
# Beside the words above, which are few, two in three {w} are made of these: a vocabulary of
# some thousand words a language, as real notes have.
HANZI = ("天地人山水火木金土日月星云风雨雷电花草树林江河湖海春夏秋冬东南西北上下左右前后高低"
         "长短大小多少新旧快慢轻重冷热红黄蓝绿黑白灰紫心手口目耳足身头面发衣食住行车船飞机门"
         "窗桌灯书笔纸墨琴棋诗画歌舞酒茶饭菜")
SYLLABLES = "ka lo mi ren tas vor del pim sun bar nok ti gra fel hus zan wit mor qu ely".split()


class Notes:
    """Different memories without end; the same seed gives the same ones."""

    def __init__(self, seed: int = 7) -> None:
        self.rng = random.Random(seed)
        self.names = ["".join(p).capitalize() for p in itertools.product(SYLLABLES, repeat=3)]
        self.hanzi = [a + b for a in "王李张刘陈杨赵黄周吴徐孙胡朱高林何郭马罗"
                      for b in "伟芳娜敏静丽强磊军洋勇艳杰涛明超霞平刚桂英华玉兰飞"]
        self.made = {"zh": [a + b for a in HANZI for b in HANZI[::3]],
                     "en": ["".join(p) for p in itertools.product(SYLLABLES, repeat=3)][::2],
                     "de": ["".join(p).capitalize() + "ung" for p in
                            itertools.product(SYLLABLES, repeat=2)]}
        for words in (self.names, self.hanzi, *self.made.values()):
            self.rng.shuffle(words)
        self.seen: set[str] = set()

    def zipf(self, words: list[str]) -> str:
        """Draw a word; the r-th of the list comes about 1/r as often as the first."""
        return words[int(len(words) ** self.rng.random()) - 1]

    def slot(self, lang: str, kind: str) -> str:
        """Return what stands for {kind} in a template."""
        draw = self.rng.randrange
        if kind == "n":
            return self.zipf(self.hanzi if lang == "zh" else self.names)
        if kind == "i":
            return self.rng.choice((f"{self.zipf(self.names).lower()}-{draw(90) + 10}",
                                    f"{self.zipf(self.names)} v{draw(9)}.{draw(20)}",
                                    f"{self.zipf(self.names).lower()}_{draw(30)}.py"))
        if kind == "d":
            month, day = draw(12) + 1, draw(28) + 1
            return f"{month}月{day}日" if lang == "zh" else f"2026-{month:02}-{day:02}"
        if kind == "q":
            return f"{draw(900) + 3} {self.rng.choice(('ms', 'MB', '%', 'h', 'GB'))}"
        if kind == "w" and self.rng.random() < 0.67:
            return self.zipf(self.made[lang])
        words = WORDS[lang][kind]
        return words[draw(len(words))] if self.rng.random() < 0.5 else self.zipf(words)

    def clause(self, lang: str) -> str:
        parts = self.rng.choice(TEMPLATES[lang]).split("{")
        return parts[0] + "".join(self.slot(lang, part[0]) + part[2:] for part in parts[1:])

    def text(self) -> str:
        """Return about 120 characters in one language, and never the same again."""
        lang = self.rng.choices(("zh", "en", "de"), (0.5, 0.35, 0.15))[0]
        mark, size = ("。" if lang == "zh" else ". "), self.rng.gauss(120, 30)
        text = self.clause(lang)
        while len(text) < size - 20 or text in self.seen:
            text += mark + self.clause(lang)
        self.seen.add(text)
        return text

    def query(self, text: str) -> str:
        """Return 3 to 5 words of a text, as a person would look for it."""
        words = [part for word in re.findall(r"[\w.-]{2,}", text)
                 for part in re.findall(r"[\u4e00-\u9fff]{2,4}|[!-\u2e7f]{4,}", word)]
        return " ".join(self.rng.sample(words, min(len(words), self.rng.randint(3, 5))))


def timed(call: Callable[[], object]) -> float:
    """Return the milliseconds of one call."""
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e3


def spread(times: list[float]) -> dict[str, float]:
    """Return p50 and p95 of milliseconds."""
    ordered = sorted(times)
    return {"p50_ms": round(statistics.median(ordered), 3),
            "p95_ms": round(ordered[int(len(ordered) * 0.95)], 3)}


# Run by a small process of its own: the peak of a child starts at the size of its parent.
LAUNCH = """
import os, sys, time
start = time.perf_counter()
child = os.fork()
if not child:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.execvp(sys.argv[1], sys.argv[1:])
status, usage = os.wait4(child, 0)[1:]
print((time.perf_counter() - start) * 1e3, usage.ru_maxrss * 1024, status)
"""


def process(words: list[str], env: dict[str, str] | None = None, *,
            least: int = 0) -> tuple[float, int]:
    """Run a command to its end; return (milliseconds, peak resident bytes).

    An exit code above *least* is an error of this script.
    """
    done = subprocess.run([sys.executable, "-S", "-c", LAUNCH, *words], capture_output=True,
                          text=True, env={**os.environ, **(env or {})}, check=True)
    elapsed, peak, status = done.stdout.split()
    if os.waitstatus_to_exitcode(int(status)) > least:
        raise SystemExit(f"{words}: {done.stderr}")
    return float(elapsed), int(peak)


def on_disk(root: Path) -> dict[str, dict[str, int]]:
    """Return bytes by part of the data root: as written, and as blocks of the file system."""
    sizes: dict[str, dict[str, int]] = {}
    for path in root.rglob("*"):
        if path.is_file():
            part = path.relative_to(root).parts[0]
            status = path.stat()
            for name in (part, "total"):
                row = sizes.setdefault(name, {"bytes": 0, "du": 0, "files": 0})
                row["bytes"] += status.st_size
                row["du"] += status.st_blocks * 512
                row["files"] += 1
    return sizes


def measure_core(root: Path, notes: Notes, size: int, singles: int) -> dict[str, object]:
    """Fill a store of *size* memories in batches, then write and ask one by one."""
    import hermes_lite
    start = time.perf_counter()
    with hermes_lite.HermesLite(root) as memory:
        opened = (time.perf_counter() - start) * 1e3
        texts, merged, conflicts = [notes.text() for _ in range(size)], 0, 0
        start = time.perf_counter()
        for at in range(0, size, 1000):
            with memory.batch():
                for text in texts[at:at + 1000]:
                    result = memory.remember(text)
                    merged += result.merged
                    conflicts += len(result.conflicts)
        rate = size / (time.perf_counter() - start)
        written = [timed(lambda: memory.remember(notes.text())) for _ in range(singles)]
        queries = [notes.query(notes.rng.choice(texts)) for _ in range(singles)]
        asked = [timed(lambda q=query: memory.recall(q)) for query in queries]
        after = [notes.rng.choice(texts) for _ in range(50)]
        found = sum(any(hit.content == text for hit in memory.recall(notes.query(text), top_k=5))
                    for text in after)
        closed = timed(memory.close)
    return {"open_ms": round(opened, 2), "batch_per_s": round(rate), "merged": merged,
            "conflicts": conflicts, "remember": spread(written), "recall": spread(asked),
            "close_ms": round(closed, 1), "answered_of_50": found,
            "queries": queries, "disk": on_disk(root)}


def measure_cold(root: Path, notes: Notes, queries: list[str], colds: int) -> dict[str, object]:
    """Time whole processes, taking turns with json.load so that both see the same machine."""
    installed = Path(tempfile.mkdtemp(prefix="installed"))
    shutil.copy(HOME / "hermes_lite.py", installed)
    compileall.compile_dir(installed, quiet=1)       # as pip does
    index = root / "index.json"
    script, module = [str(HOME / "hermes_lite.py")], ["-m", "hermes_lite"]
    env = {"PYTHONPATH": str(installed)}
    runs = {"json_load": lambda n: ["-c", f"import json; json.load(open({str(index)!r}))"],
            "python_alone": lambda n: ["-c", "pass"],
            "recall_script": lambda n: [*script, "--root", str(root), "recall", queries[n]],
            "recall_module": lambda n: [*module, "--root", str(root), "recall", queries[n]],
            "remember_script": lambda n: [*script, "--root", str(root), "remember", notes.text()],
            "remember_module": lambda n: [*module, "--root", str(root), "remember", notes.text()],
            "version_module": lambda n: [*module, "--root", str(root), "version"]}
    times: dict[str, list[float]] = {name: [] for name in runs}
    peaks: dict[str, int] = {}
    for n in range(-1, colds):                       # the first round warms caches and .pyc
        for name, words in runs.items():
            took, peak = process([sys.executable, *words(n)], env)
            if n >= 0:
                times[name].append(took)
                peaks[name] = max(peak, peaks.get(name, 0))
    shutil.rmtree(installed)
    base = statistics.median(times["json_load"])
    return {name: {"ms": round(statistics.median(row), 1), "rss_mb": round(peaks[name] / 1e6, 1),
                   "x_json_load": round(statistics.median(row) / base, 2)}
            for name, row in times.items()}


def measure_json(folder: Path, notes: Notes, size: int) -> dict[str, object]:
    """A list of objects in one file, written whole and synced for each new memory."""
    path, rows = folder / "plain.json", [{"id": n, "text": notes.text()} for n in range(size)]

    def write() -> None:
        rows.append({"id": len(rows), "text": notes.text()})
        temporary = path.with_suffix(".tmp")
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(rows, file, ensure_ascii=False)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)

    return {"write": spread([timed(write) for _ in range(30)])}


def measure_fts5(folder: Path, notes: Notes, size: int, tokenizer: str) -> dict[str, object]:
    """One table, one commit a memory with the default (full) sync, bm25() order."""
    base = sqlite3.connect(folder / f"{tokenizer}.db")
    base.execute(f"create virtual table notes using fts5(text, tokenize='{tokenizer}')")
    texts = [notes.text() for _ in range(size)]
    start = time.perf_counter()
    with base:
        base.executemany("insert into notes values (?)", ((text,) for text in texts))
    rate = size / (time.perf_counter() - start)

    def write() -> None:
        with base:
            base.execute("insert into notes values (?)", (notes.text(),))

    def ask(query: str) -> None:
        words = " OR ".join(f'"{word}"' for word in query.replace('"', "").split())
        base.execute("select rowid, bm25(notes) from notes where notes match ? "
                     "order by bm25(notes) limit 5", (words,)).fetchall()

    written = [timed(write) for _ in range(100)]
    asked = [timed(lambda q=notes.query(notes.rng.choice(texts)): ask(q)) for _ in range(200)]
    base.close()
    return {"write": spread(written), "query": spread(asked), "bulk_per_s": round(rate),
            "bytes": (folder / f"{tokenizer}.db").stat().st_size}


def measure_grep(root: Path, queries: list[str]) -> dict[str, object]:
    """List the Markdown files that hold a word of the query, with grep and ripgrep."""
    found: dict[str, object] = {}
    for name, words in (("grep", ["grep", "-rliF"]), ("rg", ["rg", "-liF"])):
        if shutil.which(name):
            rows = [process([*words, *(p for w in query.split() for p in ("-e", w)),
                             str(root / "store")], least=1)[0] for query in queries[:20]]
            found[name] = spread(rows)
    return found


def measure(size: int, singles: int, colds: int) -> dict[str, object]:
    """Measure everything at one size, each with its own texts of the same kind."""
    folder = Path(tempfile.mkdtemp(prefix="bench"))
    try:
        notes = Notes()
        core = measure_core(folder / "root", notes, size, singles)
        queries = core.pop("queries")
        cold = measure_cold(folder / "root", notes, queries, colds)
        core["index_json_bytes"] = (folder / "root/index.json").stat().st_size
        return {"size": size, "core": core, "cold": cold,
                "json_rewrite": measure_json(folder, Notes(8), size),
                "fts5_unicode61": measure_fts5(folder, Notes(9), size, "unicode61"),
                "fts5_trigram": measure_fts5(folder, Notes(9), size, "trigram"),
                "grep": measure_grep(folder / "root", queries)}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def table(results: list[dict]) -> Iterator[str]:
    """Return the lines of the Markdown table: a row a figure, a column a size."""
    def two(row: dict) -> str:
        return f"{row['p50_ms']:.2f} / {row['p95_ms']:.2f}"

    def cold(name: str) -> Callable[[dict], str]:
        return lambda r: "{ms:.0f} ms, {x_json_load:.1f} x, {rss_mb:.0f} MB".format(
            **r["cold"][name])

    def disk(name: str) -> Callable[[dict], str]:
        return lambda r: "{:.1f} / {:.1f}".format(*(
            r["core"]["disk"].get(name, {"bytes": 0, "du": 0})[k] / 1e6 for k in ("bytes", "du")))

    rows: list[tuple[str, Callable[[dict], str]]] = [
        ("remember p50 / p95 ms", lambda r: two(r["core"]["remember"])),
        ("recall p50 / p95 ms", lambda r: two(r["core"]["recall"])),
        ("batch, memories a second", lambda r: f"{r['core']['batch_per_s']:,}"),
        ("found at 5 of 50", lambda r: str(r["core"]["answered_of_50"])),
        ("close after it, ms", lambda r: f"{r['core']['close_ms']:.0f}"),
        *((f"cold {name.replace('_', ', as a ')}", cold(name)) for name in (
            "recall_module", "recall_script", "remember_module", "remember_script")),
        ("cold version (no store)", cold("version_module")),
        ("cold json.load(index.json)", cold("json_load")),
        ("cold python -c pass", cold("python_alone")),
        *((f"disk {name}: written / du MB", disk(name)) for name in (
            "index.json", "store", ".search", "vectors.json", "graph.json", "total")),
        ("JSON file rewritten: write ms", lambda r: two(r["json_rewrite"]["write"])),
        *((f"FTS5 {kind}: write ms; query ms; MB", lambda r, k=kind: "; ".join((
            two(r[f"fts5_{k}"]["write"]), two(r[f"fts5_{k}"]["query"]),
            f"{r[f'fts5_{k}']['bytes'] / 1e6:.1f}"))) for kind in ("unicode61", "trigram")),
        *((f"{tool} over store/*.md: ms", lambda r, t=tool: two(r["grep"][t])
           if t in r["grep"] else "not installed") for tool in ("grep", "rg")),
    ]
    yield "| | " + " | ".join(f"{r['size']:,}" for r in results) + " |"
    yield "|---" * (len(results) + 1) + "|"
    for label, cell in rows:
        yield f"| {label} | " + " | ".join(cell(result) for result in results) + " |"


def main() -> int:
    """Measure, write the JSON file, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sizes", default="1000,10000")
    parser.add_argument("--singles", type=int, default=200, help="writes and questions one by one")
    parser.add_argument("--colds", type=int, default=7, help="processes of each kind")
    parser.add_argument("--out", type=Path, default=HOME / "bench/results/core.json")
    options = parser.parse_args()
    os.environ.update(HERMES_VECTOR_BACKEND="local", HERMES_RERANK="off")
    results = [measure(int(size), options.singles, options.colds)
               for size in options.sizes.split(",")]
    about = {"python": platform.python_version(), "machine": platform.machine(),
             "cores": os.cpu_count(), "sqlite": sqlite3.sqlite_version}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"about": about, "results": results}, indent=1) + "\n")
    print("\n".join(table(results)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
