"""Anchors: the contract numbers, dates, addresses and to-dos in a text, as typed values.

    hermes_lite.py remember "客户张三的合同编号是CT2024-0876"
    hermes_lite.py recall 张三的合同号            that memory first, and no look-alike before it
    hermes_lite.py anchors                        every value, its type and how many hold it
    hermes_lite.py anchors CT2024-0876            the memories that hold it
    hermes_lite.py anchors --type action_item     what is to be done, and what is done

Switched on in config.yaml; without it only the command `anchors` works, on the texts as they are:

    systems:
      anchors:
        merge: restated                 # or always
        patterns:                       # your own: pattern -> type; group 1, where there is one,
          'TICKET-\\d+': ticket         # is the value

Types: contract_id, invoice_id, order_id, reference (a number of that form without its name),
deadline, date, email, url, ip_port, phone, amount, version, status, action_item. A value has one
form: 2024年8月15日 and 15.08.2024 are the date 2024-08-15, 8月15日 is --08-15, 5万元 is CNY 50000.
They are found in the redacted text, so what redaction hid is no anchor either.

What is stored, in meta["anchors"]: {type: [value, …]}, and a row {value, status …} where there is
more to say: an action_item has the `status` open or done, a status that follows another one under
the same number has `from`. `note` holds
    under      the id of the first memory with the same number, address or the like
    said       how often it was said, and `first`, when it was said first

Restated. A text with the same anchors that says nothing else (the words that only name a type, a
wish to remember, articles and punctuation do not count) is merged into the memory that is there:
its created_at becomes now, `said` goes up. One fact more, another word, a negation, another
agent: it is a memory of its own. "邮件已发", "email sent" or "- [x] …" closes the open action
item that holds all its words, of whatever agent, when it is the only one; the status becomes
done. `merge: always` takes the same anchors alone for the same memory and so loses what the
newer text says beside them; a text with a value that is not in the older one stays apart even
then.

Recall. A number, address or phone number in the query puts the memories that hold exactly this
one first (`why` says "exact"), and leaves out those that hold another number instead; one of which
the asked is a part stays where nothing else is found. A query
that names a type and whose it is ("张三的合同号", "Alice's phone number") puts first what has such
an anchor and all the other words.

Not done: a time of day is no anchor; 01/02/2024 is kept as it is written, because nobody can
tell its month; a text that closes an item and says more closes nothing.
"""
from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date, timedelta
from decimal import Decimal
from typing import NamedTuple

from hermes_lite import (ConfigError, Draft, HermesLite, Hit, Memory, Operation, Param, UsageError,
                         display_text, excerpt, facts, is_same_agent, iso, parse_time)

__all__ = ["Anchors", "OPERATIONS", "extract", "says", "system", "values_of"]

TYPES = ("contract_id", "invoice_id", "order_id", "reference", "deadline", "date", "email", "url",
         "ip_port", "phone", "amount", "version", "status", "action_item")

Values = dict[tuple[str, str], dict[str, str]]       # (type, value) -> the rest of its row

_CODE = r"([A-Za-z]{0,8}[-_/]?\d[A-Za-z0-9]*(?:[-_/][A-Za-z0-9]+)*)"
_IS = r"(?:\s|是|为|改为|叫|ist|is|lautet|[:：=#])*"
_MONTHS = ("jan(?:uary|uar)?|feb(?:ruary|ruar)?|mar(?:ch)?|märz|apr(?:il)?|may|mai|jun[ei]?"
           "|jul[yi]?|aug(?:ust)?|sep(?:t(?:ember)?)?|o[ck]t(?:ober)?|nov(?:ember)?"
           "|de[cz](?:ember)?")
_YEAR = r"(?:19|20)\d\d"
_DATE = (rf"(?:{_YEAR}\s*年\s*\d{{1,2}}\s*月\s*\d{{1,2}}\s*[日号]?|\d{{1,2}}\s*月\s*\d{{1,2}}\s*[日号]"
         rf"|{_YEAR}(?P<s>[-/.])\d{{1,2}}(?P=s)\d{{1,2}}(?!\d)"
         rf"|\d{{1,2}}\.\s?\d{{1,2}}\.\s?{_YEAR}|\d{{1,2}}/\d{{1,2}}/{_YEAR}"
         rf"|\d{{1,2}}(?:st|nd|rd|th|\.)?\s(?:{_MONTHS})\b\.?(?:,?\s{_YEAR})?"
         rf"|\b(?:{_MONTHS})\b\.?\s\d{{1,2}}(?:st|nd|rd|th)?\b(?:,?\s{_YEAR})?)")
_NUMBER = r"\d+(?:[.,]\d+)*"
_CURRENCY = {"¥": "CNY", "元": "CNY", "块钱": "CNY", "人民币": "CNY", "rmb": "CNY", "cny": "CNY",
             "$": "USD", "usd": "USD", "美元": "USD", "dollar": "USD", "dollars": "USD",
             "€": "EUR", "eur": "EUR", "euro": "EUR", "euros": "EUR", "欧元": "EUR",
             "£": "GBP", "gbp": "GBP", "英镑": "GBP", "pounds": "GBP"}
_MONEY = "|".join(sorted(map(re.escape, _CURRENCY), key=len, reverse=True))
_SCALES = {"万": 10**4, "亿": 10**8, "千": 1000, "thousand": 1000, "million": 10**6, "mio": 10**6,
           "k": 1000, "m": 10**6}
_SCALE = rf"(?:\s?(?:{'|'.join(_SCALES)})(?![A-Za-z])\.?)?"
_LABELS = {        # the words that name a type: in front of a value, and in a question for it
    "contract_id": r"合同(?:编号|号码|编码|号)?|contract(?:\s(?:number|no\.?|id|code))*"
                   r"|Vertrags?(?:nummer|nr\.?)?",
    "invoice_id": r"发票(?:编号|号码|号)?|invoice(?:\s(?:number|no\.?|id))*"
                  r"|Rechnung(?:s?nummer|s?nr\.?)?",
    "order_id": r"订单(?:编号|号码|号)?|(?:purchase\s)?order(?:\s(?:number|no\.?|id))*"
                r"|(?:Bestell|Auftrags)(?:nummer|nr\.?)",
    "deadline": r"截止(?:日期|时间|日)?|期限|最迟|到期(?:日期?|时间)?|deadline|due(?:\sdate)?"
                r"|Frist|fällig|Abgabetermin|spätestens",
    "phone": r"电话(?:号码|号)?|手机(?:号码|号)?|(?:tele)?phone(?:\snumber)?|mobile(?:\snumber)?"
             r"|Telefon(?:nummer)?|Handy(?:nummer)?|tel\.?",
    "email": r"邮箱(?:地址)?|电子邮件(?:地址)?|e-?mail(?:\saddress)?|E-?Mail-?Adresse",
    "url": r"网址|链接|url|link|website|Webseite", "ip_port": r"ip(?:\saddress|地址|-Adresse)?",
    "version": r"版本(?:号)?|version(?:\snumber)?|Versionsnummer",
    "status": r"状态|status|state|Stand", "amount": r"金额|总价|amount|price|Betrag|Preis",
    "date": r"日期|date|Datum"}
_SUFFIX = r"(?:-[a-z][a-z0-9.]*)?"
_END = r"(?=$|[。；;\n!！]|\.(?:\s|$))"
_PATTERNS = (      # in this order; what one has taken, a later one does not see
    ("url", r"((?:https?://|www\.)[^\s<>\"'`，。；、（）「」《》)\]]+)"),
    ("email", r"(?<![\w.+-])([\w.+-]+@[\w-]+(?:\.[\w-]+)+)"),
    ("ip_port", r"(?<![A-Za-z0-9.])(\d{1,3}(?:\.\d{1,3}){3}(?::\d{1,5})?)(?![\w.]*\d)"),
    *((kind, rf"(?:(?<![A-Za-z])(?:{_LABELS[kind]})){_IS}{_CODE}")
      for kind in ("contract_id", "invoice_id", "order_id")),
    ("contract_id", r"(?<![A-Za-z0-9])((?:CT|HT|CON)-?\d{4}-\d+(?:-\w+)*)"),
    ("invoice_id", r"(?<![A-Za-z0-9])((?:INV?|RE)-?\d{4}-\d+(?:-\w+)*)"),
    ("reference", r"(?<![A-Za-z0-9])((?:[A-Z]{2,8}|[A-Z]-)-?\d{4}-\d+(?:-\w+)*)"),
    ("deadline", rf"(?:{_LABELS['deadline']})(?:\s|是|为|到|于|在|on|by|is|am|ist|bis|zum|[:：=])*"
                 rf"(?P<value>{_DATE})"),
    ("deadline", rf"(?P<value>{_DATE})\s*(?:之?前|截止|到期)"),
    ("date", rf"(?<![\d.])(?P<value>{_DATE})"),
    ("version", rf"(?:(?<![A-Za-z])(?:{_LABELS['version']})){_IS}"
                rf"(v?\d+(?:\.\d+)*{_SUFFIX})"),
    ("version", rf"(?<![A-Za-z0-9.])(v\d+(?:\.\d+)*{_SUFFIX}|\d+\.\d+\.\d+)(?![\w.]*\d)"),
    ("amount", rf"(?<![A-Za-z0-9.])(?<!\d\s)((?:{_MONEY})\s?{_NUMBER}{_SCALE})"),
    ("amount", rf"(?<![A-Za-z0-9.])({_NUMBER}{_SCALE}\s?(?:{_MONEY})(?![A-Za-z]))"),
    ("phone", rf"(?:(?<![A-Za-z])(?:{_LABELS['phone']}))(?:[^。；;.!?\n\d]{{0,30}}?"
              rf"\s?(?:is|ist|是|为|:))?{_IS}(\+?\d[\d ()/-]{{3,20}}\d)"),
    ("phone", r"(?<![A-Za-z0-9+.])(\+\d{1,3}[\d ()/-]{5,18}\d|1[3-9]\d{9}|0\d{2,3}-\d{7,8})"
              r"(?![\w-])"),
    ("status", r"(?:(?<![A-Za-z])(?:状态|status|state))\s*"
               r"(?:[:：=]|(?:从\w{1,20}?)?(?:变为|改为|变成)|是|为|is|ist)\s*"
               r"((?:(?:in|on|not|to)\s)?[A-Za-z]\w*|[\u4e00-\u9fff]{1,6})"),
    ("action_item", rf"(?:(?<![A-Za-z])(?:TODO|to-?do|action items?|待办(?:事项)?|行动项|Aufgabe)"
                    rf"\s*[:：]\s*|^\s*[-*]\s\[[ xX]\]\s*|记得(?:要)?|别忘了?|^\s*需要|remember\sto\s"
                    rf"|don['’]t\sforget\sto\s)(.{{2,200}}?){_END}"))
_CODES = ("contract_id", "invoice_id", "order_id", "reference")
_RAREST = 8                 # words of a text that a search asks for
_NAMING = (*_CODES, "email", "url", "phone", "ip_port")       # a value names one thing
_WISH = (r"(?:请)?(?:记住|记下|注意)(?:这个|这点|一下|了)?|remember(?:\sthis|\sthat)?|note(?:\sthat)?"
         r"|merk\sdir(?:\sdas)?|客户|先生|女士|customer|client|Kunde|Herr|Frau|Mrs?\.?")
_ASKING = (r"多少|什么|哪个|哪里|几号|怎么|吗|呢|请问|告诉我|what(?:['’]s)?|which|when|where"
           r"|whose|how much|tell me|give me|was|wie|wann|welche[rs]?|lautet|please|号|number"
           r"|address|Nummer|do|does")


@functools.cache
def _rx(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE | re.MULTILINE)


# -- values -------------------------------------------------------------------

class _Match(NamedTuple):
    """One anchor, where it stands in the NFKC text, and what else is known of it."""
    kind: str
    value: str
    span: tuple[int, int]
    row: Mapping[str, str]


def extract(text: str, patterns: Mapping[str, str] | None = None) -> Values:
    """Return the anchors of *text* in order of type; *patterns* (pattern -> type) come first."""
    found: Values = {}
    for kind, value, _, row in _found(text, patterns or {}):
        found.setdefault((kind, value), dict(row))
    return found


def _found(text: str, patterns: Mapping[str, str]) -> tuple[_Match, ...]:
    """Return every anchor of a text, in order of type.

    The last texts are kept: one write asks for its own several times.
    """
    return _scanned(text, tuple(patterns.items()))


@functools.lru_cache(maxsize=32)
def _scanned(text: str, patterns: tuple[tuple[str, str], ...]) -> tuple[_Match, ...]:
    text, found = unicodedata.normalize("NFKC", text), []
    taken = bytearray(len(text))
    own = ((kind, pattern) for pattern, kind in patterns)
    for kind, pattern in (*own, *_PATTERNS):
        for match in _rx(pattern).finditer(text):
            group = "value" if "value" in match.re.groupindex else min(1, match.re.groups)
            span = match.span(group)
            is_item = kind == "action_item"
            if match[group] is None or not is_item and taken.find(1, *span) >= 0:
                continue
            value = _FORMS.get(kind, _plain)(match[group])
            named = _named(kind, text[max(0, span[0] - 40):span[0]])
            if value:
                state = {"status": "done" if "[x]" in match[0].lower() else "open"}
                found.append(_Match(named, value, span, state if is_item else {}))
                if not is_item:
                    taken[slice(*span)] = b"\1" * (span[1] - span[0])
    return tuple(found)


_BARE = {"reference": ("contract_id", "invoice_id", "order_id"), "date": ("deadline",)}


def _named(kind: str, before: str) -> str:
    """Return the type of a number or date that stands bare: what its clause names last."""
    clause = re.split(r"[。；;!?！？\n]|[.,，]\s?", before)[-1]
    named = [(match.end(), name) for name in _BARE.get(kind, ())
             for match in _rx(rf"(?<![A-Za-z])(?:{_LABELS[name]})(?![A-Za-z])").finditer(clause)]
    return max(named)[1] if named else kind


def _plain(raw: str) -> str:
    return " ".join(raw.split()).strip(" .,;:，。")


def _code(raw: str) -> str:
    """Return a number in capitals; "42", a bare year and "B2" are none."""
    is_one = re.fullmatch(r"(?!(?:19|20)\d\d$)\d{4,}|(?=.*[A-Za-z_/-])(?=.*\d)"
                          r"(?:.*\d.*\d.*|.*-.*)", raw)
    return raw.upper() if is_one else ""


def _url(raw: str) -> str:
    raw = raw.rstrip(".,;:!?")
    scheme, mark, rest = raw.partition("://") if "://" in raw else ("http", "://", raw)
    host, slash, path = rest.partition("/")
    return f"{scheme.lower()}{mark}{host.lower()}{slash}{path}"


def _ip(raw: str) -> str:
    host, colon, port = raw.partition(":")
    is_one = all(int(part) < 256 for part in host.split(".")) and int(port or 1) < 65536
    return raw if is_one else ""


def _phone(raw: str) -> str:
    digits = re.sub(r"\D", "", raw)
    return ("+" if raw.startswith("+") else "") + digits if 5 <= len(digits) <= 15 else ""


def _day(raw: str) -> str:
    """Return YYYY-MM-DD, --MM-DD without a year, or an ambiguous one as it stands; "" if none."""
    if raw.startswith("may "):                     # a verb
        return ""
    low = raw.lower()
    numbers = [int(part) for part in re.findall(r"\d+", low)]
    month = re.search(rf"(?:{_MONTHS})", low)
    if month:
        name = month[0][:3].translate(str.maketrans("äkz", "rcc"))
        name = {"mai": "may", "mrr": "mar"}.get(name, name)
        index = 1 + "jan feb mar apr may jun jul aug sep oct nov dec".split().index(name)
        year, day = (numbers + [0])[1], numbers[0]
    elif len(numbers) == 2:
        year, index, day = 0, *numbers
    elif "/" in low and numbers[0] < 1000:
        return raw
    else:
        year, index, day = numbers if numbers[0] > 1000 else numbers[::-1]
    try:
        made = date(year or 2000, index, day).isoformat()
    except ValueError:
        return ""
    return made if year else f"-{made[4:]}"


def _amount(raw: str) -> str:
    """Return "CNY 50000"; 1.000 may be a thousand or one, so it is kept as it is written."""
    low = raw.lower()
    money = _CURRENCY[max((sign for sign in _CURRENCY if sign in low), key=len)]
    number, scale = re.search(rf"({_NUMBER})\s?({'|'.join(_SCALES)})?", low).groups()
    size = _SCALES.get(scale, 1)
    if re.fullmatch(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?", number):
        number = number.replace(",", "")
    elif re.fullmatch(r"\d{1,3}(?:\.\d{3})+,\d{1,2}|\d+,\d{1,2}", number):
        number = number.replace(".", "").replace(",", ".")
    if not re.fullmatch(r"\d+(?:\.\d{1,2})?|\d+\.\d{4,}", number):
        return f"{money} {number}" + (f" x {size}" if size > 1 else "")
    return f"{money} {(Decimal(number) * size).normalize():f}"


_FORMS = {**dict.fromkeys(_CODES, _code), "url": _url, "ip_port": _ip, "phone": _phone,
          "date": _day, "deadline": _day, "amount": _amount, "email": str.lower,
          "version": lambda raw: raw.lower().removeprefix("v"), "status": str.lower}


# -- what a text says ---------------------------------------------------------

def says(text: str, patterns: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Return what *text* says beside naming its anchors: canonical words in their order.

    Two texts with the same `extract` and the same `says` state the same.
    """
    found = [row for row in _found(text, patterns or {})
             if row[0] not in ("action_item", "status")]
    text = unicodedata.normalize("NFKC", text)
    kinds = {kind for kind, *_ in found}
    alone = len({value for _, value, *_ in found}) == 1
    for _, value, (start, end), _ in sorted(found, key=lambda row: -row[2][0]):
        text = f"{text[:start]} {'' if alone else value} {text[end:]}"
    for kind in sorted(kinds & set(_LABELS)):
        text = _rx(rf"(?<![A-Za-z])(?:{_LABELS[kind]})(?![A-Za-z])").sub(" ", text)
    return facts(_rx(rf"(?<![A-Za-z])(?:{_WISH})(?![A-Za-z])").sub(" ", text))


_DONE = (r"已经?|完成了?|搞定了?|办好了?|做完了?|了$|\b(?:done|completed|finished|was|were|is|are|has"
         r"|have|been|erledigt|fertig|wurde|ist|hat|haben)\b|\[x\]|[✓✔✅]")
_IS_DONE = (r"已|完成|搞定|办好|做完|\b(?:done|completed|finished|sent|paid|called|booked|written|bought"
            r"|made|told|signed|uploaded|delivered|erledigt|fertig|gesendet|geschickt|bezahlt)\b"
            r"|\[x\]|[✓✔✅]")
_NOT_DONE = (r"[?？]|吗|没|未|不|要|应该|必须|如果|\b(?:not|never|will|must|should|if|when|todo|nicht"
             r"|noch|wird|soll|muss)\b|n['’]t\b|\[ \]")
_VERBS = {"sent": "send", "paid": "pay", "wrote": "write", "written": "write", "bought": "buy",
          "made": "make", "told": "tell", "met": "meet", "gave": "give", "given": "give",
          "gesendet": "send", "senden": "send", "geschickt": "schick", "schicken": "schick"}


def _closing(text: str) -> tuple[str, ...]:
    """Return the words of a text that reports something as done; () when it does not."""
    if len(text) > 200 or not _rx(_IS_DONE).search(text) or _rx(_NOT_DONE).search(text):
        return ()
    words = tuple(map(_stem, facts(_rx(_DONE).sub(" ", text))))
    return words if len(words) > 1 else ()


def _stem(word: str) -> str:
    return _VERBS.get(word, word.removesuffix("ed") if len(word) > 4 else word)


# -- the system ---------------------------------------------------------------

class Anchors:
    """The Extension; *merge* is "restated" or "always", *patterns* maps patterns to types."""
    name = "anchors"

    def __init__(self, memory: HermesLite, merge: str = "restated",
                 patterns: Mapping[str, str] | None = None) -> None:
        if merge not in ("restated", "always"):
            raise ConfigError(f"systems.anchors.merge is {merge!r}; use restated or always")
        self.memory = memory
        self.merge = merge
        self.patterns = _checked(patterns or {})
        self._last: tuple[str, _Asked] | None = None
        self._seen: dict[str, list[str]] = {}      # text -> what a search of this write found

    def values(self, memory: Memory) -> Values:
        """Return the anchors that a memory holds; see `values_of`."""
        return values_of(memory, self.patterns)

    def _near(self, *texts: str, most: int = 50) -> Iterator[Memory]:
        """Yield the memories that share the most of the rarest words of *texts*, by one search.

        Eight words and *most* memories for each of the texts.
        """
        text = " ".join(texts)
        if text not in self._seen:
            found = self.memory.store.search.words(
                text, most * len(texts), rarest=_RAREST * len(texts))
            self._seen[text] = [memory_id for memory_id, _ in found]
        yield from filter(None, map(self.memory.store.get, self._seen[text]))

    def find_equivalent(self, draft: Draft) -> str | None:
        """Return the oldest memory that says the same of the same anchors, or the item closed."""
        self._seen = {}
        item = self._closed(draft.content)
        if item is not None:
            return item.id
        found = set(extract(draft.content, self.patterns))
        if not found:
            return None
        assertions = says(draft.content, self.patterns)
        values = _named_values(found)
        near = self._near(*values) if values else (       # a restatement has all of those words
            self._near(self._shared(draft.content), most=10 if self.merge == "restated" else 50))
        same = [old for old in near if is_same_agent(old.agent, draft.agent)
                and self._is_same(found, assertions, old)]
        return min(same, key=_age).id if same else None

    def _shared(self, text: str) -> str:
        """Return the part of a text that a restatement of it must have as well.

        Where only the values count, that is their words; otherwise the words beside them, since a
        date may be written in another form.
        """
        text = unicodedata.normalize("NFKC", text)
        spans = sorted({span for _, _, span, _ in _found(text, self.patterns)})
        values = " ".join(text[start:end] for start, end in spans)
        if self.merge == "always":
            return values
        for start, end in reversed(spans):
            text = f"{text[:start]} {text[end:]}"
        return text if facts(text) else values

    def _is_same(self, found: set[tuple[str, str]], assertions: tuple[str, ...],
                 old: Memory) -> bool:
        """Tell whether an old memory has the same anchors and asserts the same of them."""
        theirs = set(self.values(old))
        if self.merge == "always":
            return found <= theirs
        return found == theirs and assertions == says(old.content, self.patterns)

    def _closed(self, text: str) -> Memory | None:
        """Return the one action item that *text* reports as done; an open one goes first."""
        words = set(_closing(text))
        if not words:
            return None
        found: dict[str, list[Memory]] = {"open": [], "done": []}
        for memory in self._near(text):
            for (kind, value), row in self.values(memory).items():
                if kind == "action_item" and words <= set(map(_stem, facts(value))):
                    found["done" if row.get("status") == "done" else "open"].append(memory)
        return next((rows[0] for rows in found.values() if len(rows) == 1), None) if (
            len(found["open"]) < 2) else None

    def storing(self, memory: Memory, old: Memory | None, draft: Draft) -> Memory:
        """Write the anchors of a new memory, or what a restatement changes in an old one."""
        if old is None:
            made = self._new(memory)
            self._seen = {}
            return made
        values, before = self.values(old), parse_time(old.created_at)
        when = draft.created_at or iso(self.memory.clock())
        age = parse_time(when) - before if before and parse_time(when) else timedelta(0)
        if not values or age < timedelta(0):
            return memory
        is_later = bool(age) or draft.created_at is None           # no import of the same record
        values = self._updated(values, draft, when, is_later)
        note = dict(_note(old))
        if is_later:
            count = note.get("said", 1)
            note.update(first=note.get("first", old.created_at),
                        said=(count if isinstance(count, int) else 1) + 1)
            memory = replace(memory, created_at=when)
        return replace(memory, meta={**memory.meta, "anchors": _kept(values, note)})

    def _updated(self, values: Values, draft: Draft, when: str, is_later: bool) -> Values:
        """Return the values with what the newer text says of their status."""
        fresh, words = extract(draft.content, self.patterns), set(_closing(draft.content))
        by = {"by": draft.agent} if draft.agent else {}
        made = {}
        for (kind, value), row in values.items():
            if kind == "action_item" and words and words <= set(map(_stem, facts(value))):
                row = row if row.get("status") == "done" else {
                    "status": "done", "closed": when, **by}
            elif kind == "action_item" and is_later and (kind, value) in fresh:
                row = fresh[kind, value]           # wanted once more
            made[kind, value] = row
        return made

    def _new(self, memory: Memory) -> Memory:
        found, note = extract(memory.content, self.patterns), dict(_note(memory))
        if not found:
            return memory
        known = self.values(memory) if _stored(memory) else {}
        found = {key: {**row, **known.get(key, {})} for key, row in found.items()}
        under, state = self._above(memory, found)
        for (kind, value), row in found.items():
            if kind == "status" and state not in (None, value):
                row.setdefault("from", state)
        note.update({"under": under} if under else {})
        return replace(memory, meta={**memory.meta, "anchors": _kept(found, note)})

    def _above(self, memory: Memory, found: Values) -> tuple[str | None, str | None]:
        """Return the first memory of the same number or address, and the newest status there."""
        values = _named_values(found)
        if not values:
            return None, None
        wanted = {each for kind, value in found if kind in _NAMING for each in _kinds(kind, value)}
        family = {one.id: one for one in self._near(*values)
                  if wanted & self.values(one).keys() and one.id != memory.id}
        rows = sorted(family.values(), key=_age)
        heads = [self.memory.store.get(str(_note(one).get("under", one.id))) or one
                 for one in rows]
        states = [value for one in rows for kind, value in self.values(one) if kind == "status"]
        return (min(heads, key=_age).id if heads else None), (states[-1] if states else None)

    # -- reading ------------------------------------------------------------

    def retrieve(self, query: str) -> list[str]:
        """Return what holds exactly the asked value, or the asked type and all other words."""
        self._seen = {}
        asked = self._asked(query)
        texts = sorted({value for _, value in asked.values}) or [query] * bool(asked.types)
        found = list(self._near(*texts)) if texts else []
        return [one.id for one in found if self._answers(asked, one)]

    def rerank(self, hits: Sequence[Hit], query: str) -> list[Hit]:
        """Put the exact ones first; leave out what holds another number than the one asked for.

        One of which the asked is a part is another only where anything else is found.
        """
        asked = self._asked(query)
        if not asked.values and not asked.types:
            return list(hits)
        first = []
        rest = []
        longer = []
        for hit in hits:
            why = self._answers(asked, hit.memory)
            if why:
                first.append(replace(hit, confidence=1.0, why={**hit.why, "exact": why}))
            elif "containing" in hit.why["retrievers"] or not (
                    asked.values and self._looks_alike(asked.values, hit.memory)):
                rest.append(hit)
            elif any(value in held for _, value in asked.values
                     for _, held in self.values(hit.memory)):
                longer.append(hit)
        return first + rest or longer

    def _asked(self, query: str) -> _Asked:
        """Return what a query asks for; read from its text once."""
        if self._last is None or self._last[0] != query:
            values = {key for key in extract(query, self.patterns)
                      if key[0] in (*_NAMING, *self.patterns.values())}
            self._last = query, _Asked(values, {} if values else _asked_types(query))
        return self._last[1]

    def _answers(self, asked: _Asked, memory: Memory) -> str:
        """Say which anchor makes a memory an exact answer; "" when none does."""
        values = self.values(memory)
        for kind, value in sorted(asked.values):
            if _kinds(kind, value) & values.keys():
                return f"{kind} {value}"
        held = {kind for kind, _ in values}
        for kind, rest in asked.types.items():
            if rest and kind in held and rest <= set(facts(memory.content)):
                return kind
        return ""

    def _looks_alike(self, wanted: set[tuple[str, str]], memory: Memory) -> bool:
        kinds = {kind for kind, _ in wanted}
        kinds |= set(_CODES) if kinds & set(_CODES) else set()
        return any(kind in kinds for kind, _ in self.values(memory)) and bool(
            kinds & {*_CODES, "phone"})


class _Asked(NamedTuple):
    """What a query asks for: values, or where it has none types, each with the other words."""
    values: set[tuple[str, str]]
    types: dict[str, set[str]]


def _asked_types(query: str) -> dict[str, set[str]]:
    """Return the types that a query names, each with the words beside its name."""
    return {kind: set(facts(_rx(_ASKING).sub(" ", _rx(label).sub(" ", query))))
            for kind, label in _LABELS.items()
            if _rx(rf"(?<![A-Za-z])(?:{label})(?![A-Za-z])").search(query)}


def _named_values(values: Iterable[tuple[str, str]]) -> list[str]:
    """Return the values that name one thing, in order: rare words, so quick to find."""
    return sorted({value for kind, value in values if kind in _NAMING})


def _kinds(kind: str, value: str) -> set[tuple[str, str]]:
    """Return the keys that mean the same thing: a number is itself under whichever name."""
    return {(name, value) for name in (_CODES if kind in _CODES else (kind,))}


def values_of(memory: Memory, patterns: Mapping[str, str] | None = None) -> Values:
    """Return the anchors that a memory holds: as stored, else as its text has them.

    For others than this system too: they read what it stores only here.
    """
    found: Values = {}
    for kind, rows in _stored(memory).items():
        for row in rows if isinstance(rows, (list, tuple)) and kind != "note" else ():
            row = dict(row) if isinstance(row, Mapping) else {"value": row}
            value = str(row.pop("value", ""))
            found[kind, value] = {name: str(said) for name, said in row.items()}
    return found or extract(memory.content, patterns)


def _stored(memory: Memory) -> Mapping[str, object]:
    stored = memory.meta.get("anchors")
    return stored if isinstance(stored, Mapping) else {}


def _note(memory: Memory) -> Mapping[str, object]:
    note = _stored(memory).get("note")
    return note if isinstance(note, Mapping) else {}


def _kept(values: Values, note: Mapping[str, object]) -> dict[str, object]:
    """Return what meta["anchors"] holds of it."""
    kept: dict[str, object] = {}
    for (kind, value), row in values.items():
        kept.setdefault(kind, []).append({"value": value, **row} if row else value)
    return {**kept, **({"note": dict(note)} if note else {})}


def _age(memory: Memory) -> tuple[str, str]:
    when = parse_time(memory.created_at)
    return iso(when) if when else "9999", memory.id


def _checked(patterns: object) -> dict[str, str]:
    """Return pattern -> type as given, or ConfigError that names the pattern."""
    if not isinstance(patterns, Mapping):
        raise ConfigError("systems.anchors.patterns needs lines such as 'TICKET-\\d+': ticket")
    for pattern, kind in patterns.items():
        try:
            _rx(str(pattern))
        except re.error as problem:
            raise ConfigError(f"systems.anchors.patterns: {pattern!r} is no regular expression "
                              f"({problem})") from None
        if not isinstance(kind, str) or not re.fullmatch(r"\w+", kind) or kind == "note":
            raise ConfigError(f"systems.anchors.patterns: the type of {pattern!r} is {kind!r}; "
                              "give one word, and not `note`")
    return {str(pattern): kind for pattern, kind in patterns.items()}


def system(memory: HermesLite, **settings: object) -> Anchors:
    """Make the Extension that config.yaml switches on; ConfigError for an unknown setting."""
    unknown = sorted(set(settings) - {"merge", "patterns"})
    if unknown:
        raise ConfigError(f"systems.anchors.{unknown[0]} is unknown; known: merge, patterns")
    return Anchors(memory, **settings)


# -- command ------------------------------------------------------------------

def anchors(memory: HermesLite, value: str | None = None, *,
            type: str | None = None) -> list[dict[str, object]]:
    """Return the memories that hold *value*, or every value with its count, most first.

    UsageError for a *type* that is neither known nor one of your own patterns'.
    """
    own = next((one for one in memory.systems if isinstance(one, Anchors)), Anchors(memory))
    wanted = None if value is None else {v for _, v in extract(value, own.patterns)} | {
        form(value) for form in (_plain, str.upper, str.lower)}
    rows: dict[tuple[str, ...], dict[str, object]] = {}
    told: dict[str, None] = {}
    for one in reversed(memory.matching()):
        for (kind, held), more in own.values(one).items():
            if type not in (None, kind) or wanted is not None and held not in wanted:
                continue
            told[one.id] = None
            if wanted is not None:
                rows[kind, held, one.id] = {"type": kind, "value": held, **more, "id": one.id,
                                            "content": one.content}
            else:
                row = rows.setdefault((kind, held), {"type": kind, "value": held, "memories": 0})
                row.update(more, memories=row["memories"] + 1)
    if not rows and type not in (None, *TYPES, *own.patterns.values()):
        raise UsageError(f"there is no type {memory.redactor.quote(type)}; use one of: "
                         f"{', '.join((*TYPES, *own.patterns.values()))}")
    memory.systems.emit("anchors", told)
    return sorted(rows.values(), key=lambda row: (-row.get("memories", 0), row["type"],
                                                  row["value"], str(row.get("id"))))


def _show(rows: Sequence[Mapping[str, object]]) -> Iterator[str]:
    for row in rows:
        status = f"  {row['status']}" if "status" in row else ""
        tail = f"{row['id']}  {excerpt(row['content'])}" if "id" in row else (
            f"{row['memories']}")
        yield f"{row['type']}  {display_text(row['value'])}{status}  {tail}"


OPERATIONS = (
    Operation("anchors", "list typed values such as contract numbers, and who holds one",
              anchors, (
        Param("value", str, "only the memories that hold this value", positional=True),
        Param("type", str, "only this type, such as contract_id or action_item")), _show),
)
