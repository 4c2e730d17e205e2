"""Memories made up for measuring: different, mixed in language, the same for the same seed.

About 120 characters each, half Chinese, a third English, the rest German. Words are drawn with
Zipf frequencies out of some thousands a language, so that the lists of an index are as long as
those of real notes.
"""
from __future__ import annotations

import itertools
import random
import re

__all__ = ["Notes"]

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
