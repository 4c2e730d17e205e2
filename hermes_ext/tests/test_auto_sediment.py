"""Tests of auto_sediment.py: real files in a temporary folder, a small store in memory."""
import contextlib
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import unittest
from types import SimpleNamespace
from unittest import mock

HERE = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(HERE)]

import auto_sediment as au  # noqa: E402
import hermes_lite  # noqa: E402


class Killed(BaseException):
    """Stands for kill -9: nothing handles it."""


class Store:
    """What auto_sediment needs of HermesLite; texts and facts are kept for the test to look at."""
    root, busy = "here", False
    systems = SimpleNamespace(acting=lambda surface: contextlib.nullcontext())

    def __init__(self):
        self.texts, self.sources, self.notes, self.held, self.saves = [], [], [], {}, 0
        self.times = []
        self.dies_after = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    @contextlib.contextmanager
    def exclusive(self, name):
        if self.busy:
            raise hermes_lite.Locked(name)
        yield

    def state(self, name):
        return json.loads(json.dumps(self.held.get(name, {})))

    def save_state(self, name, value):
        self.saves += 1
        self.held[name] = json.loads(json.dumps(value))

    def digest(self, text, *, max_facts):
        facts = [line[4:] for line in text.split("\n") if "fact" in line]
        rows = [{"content": fact, "category": "general", "importance": 5} for fact in facts]
        return SimpleNamespace(facts=rows[:max_facts], results=[], degraded=None, refused=(),
                               more=len(rows) > max_facts, text=text)

    def keep_facts(self, found, *, source, verified, agent, created_at):
        self.texts.append(found.text)
        self.sources.append(source)
        self.times.append(created_at)
        for row in found.facts:
            fact = row["content"]
            found.results.append({"id": fact, "created": fact not in self.notes})
            self.notes += [fact] if fact not in self.notes else []
        if self.dies_after is not None and len(self.texts) > self.dies_after:
            raise Killed
        return found


def line(event):
    return json.dumps(event, ensure_ascii=False).encode() + b"\n"


def header(name="s1", **more):
    return line({"type": "session", "version": 4, "id": name, "createdAt": 1795990402879,
                 "isSeeded": False, "delegationDepth": 0, **more})


def user(seq, text, **more):
    return line({"type": "user/message", "seq": seq, "time": 1795990400000 + seq,
                 "data": {"content": [{"type": "text", "text": text}], "source": {"kind": "user"}},
                 "surfaceOp": "append", **more})


def assistant(seq, text):
    blocks = [{"type": "reasoning", "text": "fact: hidden"}, {"type": "text", "text": text},
              {"type": "tool-call", "id": "c", "name": "bash", "arguments": "{}"},
              {"type": "image", "data": "QUJD" * 50}]
    return line({"type": "assistant/message", "seq": seq, "time": 1795990400000 + seq,
                 "data": {"turn": 1, "message": {"role": "assistant", "content": blocks}}})


def frame(data):
    """One zstd frame of one raw block: magic, single segment with a 4-byte size, block header."""
    block = (1 | len(data) << 3).to_bytes(3, "little")
    return b"\x28\xb5\x2f\xfd\xa0" + len(data).to_bytes(4, "little") + block + data


class Logs(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder, self.store = pathlib.Path(folder.name), Store()
        env = mock.patch.dict(os.environ, {"DSH_HOME": str(self.folder)})
        env.start()
        self.addCleanup(env.stop)

    def log(self, *parts, name="a.jsonl"):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"".join(parts))
        return path

    def texts(self, *parts):
        return [message.text for message in au.read_session(self.log(*parts)).messages]

    def run_main(self, *args):
        """Run main as a new process would, save for the store; return (code, stdout, stderr)."""
        out, err = io.StringIO(), io.StringIO()
        with (mock.patch.object(hermes_lite, "HermesLite", lambda root: self.store),
              mock.patch.object(hermes_lite, "take_over_edits"),
              contextlib.redirect_stdout(out), contextlib.redirect_stderr(err)):
            code = au.main([str(arg) for arg in args])
        return code, out.getvalue(), err.getvalue()

    def apply(self, *paths):
        return self.run_main(*[part for path in paths for part in ("--session", path)], "--apply")


class Reading(Logs):
    def test_user_and_assistant_text_is_taken_and_nothing_else(self):
        said = {"content": [{"type": "text", "text": "no"}]}
        session = au.read_session(self.log(
            header(parentSession="p", delegationDepth=1),
            user(1, "问题"), assistant(2, "回答"),
            line({"type": "user/message", "seq": 3,
                  "data": {**said, "source": {"kind": "skill"}}}),
            user(4, "no", surfaceOp={"op": "replace", "start": 1, "end": 2}),
            line({"type": "assistant/attempt", "seq": 5, "data": {"message": said}}),
            line({"type": "assistant/chunk", "seq": 6, "data": said}),
            line({"type": "system/message", "seq": 7, "data": {"message": said}}),
            line({"type": "tool/result", "seq": 8, "data": {"message": said}})))
        self.assertEqual([(m.role, m.text, m.seq, m.time) for m in session.messages],
                         [("user", "问题", 1, 1795990400001), ("assistant", "回答", 2, 1795990400002)])
        self.assertEqual((session.id, session.parent, session.nested, session.torn),
                         ("s1", "p", True, False))

    def test_content_may_be_a_string_a_list_a_block_null_or_inline(self):
        contents = ["a", ["b", {"type": "text", "text": "c"}], {"type": "text", "text": "d"}, None,
                    [], 7, [{"type": "text", "text": None}]]
        rows = [line({"type": "user/message", "data": {"content": one}}) for one in contents]
        inline = line({"type": "assistant/message", "data": {"content": "e"}})
        odd = [line({"type": ["x"], "data": 1}), line({"type": "user/message", "data": None})]
        self.assertEqual(self.texts(header(), *rows, inline, *odd), ["a", "b\nc", "d", "e"])

    def test_without_seq_the_line_number_serves(self):
        row = line({"type": "user/message", "data": {"content": "x"}})
        session = au.read_session(self.log(header(), row, b"\n", row))
        self.assertEqual([message.seq for message in session.messages], [2, 4])

    def test_a_bad_line_costs_that_line_and_is_counted(self):
        session = au.read_session(self.log(
            header(), user(1, "a"), b'{"type":"user/mess\n', b"[1]\n", b"\n", b"\xff\xfe\xfd\n",
            b"[" * 100000 + b"\n", user(2, "b")))
        self.assertEqual([message.text for message in session.messages], ["a", "b"])
        self.assertEqual(session.skipped["unreadable"], 4)
        self.assertFalse(session.torn)

    def test_an_unfinished_last_line_is_left_and_a_complete_one_taken(self):
        whole = user(2, "汉字")
        for cut in range(1, len(whole) - 1):
            session = au.read_session(self.log(header(), user(1, "a"), whole[:cut]))
            self.assertEqual((len(session.messages), session.torn), (1, True), cut)
            self.assertEqual(session.skipped["unreadable"], 0)
        self.assertEqual(self.texts(header(), user(1, "a"), whole[:-1]), ["a", "汉字"])

    def test_a_line_above_the_limit_is_counted_and_not_held(self):
        with mock.patch.multiple(au, MAX_LINE=1000, CHUNK=64):
            session = au.read_session(self.log(header(), user(1, "x" * 2000), user(2, "b")))
            torn = au.read_session(self.log(header(), user(1, "x" * 2000)[:-1]))
        self.assertEqual([message.text for message in session.messages], ["b"])
        self.assertEqual((session.skipped["too long"], session.torn), (1, False))
        self.assertEqual((torn.skipped["too long"], torn.torn), (0, True))

    def test_foreign_encodings(self):
        text = (header() + user(1, "我们决定使用数据库")).decode()
        for name, data in {"bom": text.encode("utf-8-sig"), "utf16": text.encode("utf-16"),
                           "be": b"\xfe\xff" + text.encode("utf-16-be"),
                           "crlf": text.replace("\n", "\r\n").encode(),
                           "gbk": text.encode("gbk"), "nul": b"\0" * 9 + text.encode()}.items():
            with self.subTest(name), mock.patch.object(au, "CHUNK", 7):
                session = au.read_session(self.log(data))
                self.assertEqual([message.text for message in session.messages],
                                 ["我们决定使用数据库"])
                self.assertEqual(session.id, "s1")

    def test_wrong_bytes_do_not_become_wrong_characters(self):
        broken = user(1, "我们决定使用数据库").replace("定".encode(), b"\xe5\xae")
        latin = user(2, "für Größe über").decode().encode("latin-1")
        short = user(3, "X").replace(b"X", b"\xe4\xb8\xe4\xb8\xaa\xe6\x84\x89")
        session = au.read_session(self.log(header(), broken, latin, short, user(4, "b")))
        self.assertEqual([message.text for message in session.messages], ["b"])
        self.assertEqual(session.skipped["unreadable"], 3)

    def test_half_an_emoji_does_not_stop_the_log(self):
        half = b'{"type":"user/message","seq":1,"data":{"content":"a \\ud83d b \\ud83d\\ude00"}}\n'
        self.assertEqual(self.texts(header(), half), ["a \ufffd b \U0001f600"])

    def test_a_header_id_that_is_no_name_is_hashed(self):
        for given in ("../../x", "a\x1b[31m", "x" * 500, {"a": 1}):
            found = au.read_session(self.log(header(given), user(1, "a"))).id
            self.assertRegex(found, r"^sha256-[0-9a-f]{16}$")
        ids = {au.read_session(self.log(user(1, "a"), more)).id for more in (b"", user(2, "b"))}
        self.assertEqual(len(ids), 1)


class Compressed(Logs):
    def with_each_reader(self):
        """Yield once with the zstd program, once with a package, where they are there."""
        if au.shutil.which("zstd"):
            yield "program"
        packages = ("compression.zstd", "backports.zstd", "zstandard")
        if any(self.has(name) for name in packages):
            with mock.patch.object(au.shutil, "which", lambda name: None):
                yield "package"

    @staticmethod
    def has(name):
        try:
            return bool(__import__(name))
        except ImportError:
            return False

    def test_many_frames_are_read_whatever_the_name(self):
        parts = [header(), user(1, "a"), user(2, "b"), user(3, "c" * 5000)]
        data = b"\x50\x2a\x4d\x18\x02\0\0\0hi" + b"".join(map(frame, parts))
        for _ in self.with_each_reader():
            session = au.read_session(self.log(data, name="any.name"))
            self.assertEqual([message.text[0] for message in session.messages], ["a", "b", "c"])
            self.assertFalse(session.torn)

    def test_a_cut_frame_keeps_what_is_before_it_and_says_so(self):
        data = b"".join(map(frame, [header(), user(1, "a"), user(2, "b" * 500)]))
        for _ in self.with_each_reader():
            for cut in (2, 200, 500, len(frame(user(2, "b" * 500))) - 6):
                session = au.read_session(self.log(data[:-cut]))
                self.assertEqual([message.text for message in session.messages], ["a"])
                self.assertTrue(session.torn)

    def test_a_damaged_frame_is_said_and_is_13_and_what_comes_before_is_taken(self):
        start = b"".join(map(frame, [header(), user(1, "fact a")]))
        for _ in self.with_each_reader():
            self.store = Store()
            for number, bad in enumerate((b"no frame at all, and long", b"\xff" * 40)):
                log = self.log(start + bad, name=f"{number}.zstd")
                code, _, err = self.apply(log)
                self.assertEqual((code, self.store.notes), (13, ["fact a"]))
                self.assertIn("it is damaged", err)
            code, _, err = self.apply(self.log(frame(b"x")[:4] + b"\xff" * 40, name="x.zstd"))
            self.assertEqual((code, len(err.splitlines())), (13, 1))

    def test_without_a_decompressor_one_log_costs_only_itself(self):
        plain = self.log(header(), user(1, "fact a"))
        packed = self.log(frame(header()), name="b.zstd")
        with (mock.patch.object(au.shutil, "which", lambda name: None),
              mock.patch.object(au.importlib, "import_module", side_effect=ImportError)):
            code, _, err = self.apply(packed, plain)
        self.assertEqual((code, self.store.notes), (1, ["fact a"]))
        self.assertIn("b.zstd", err)

    def test_without_a_decompressor_the_remedies_are_named(self):
        path = self.log(frame(header()))
        with (mock.patch.object(au.shutil, "which", lambda name: None),
              mock.patch.object(au.importlib, "import_module", side_effect=ImportError)):
            code, _, err = self.apply(path)
        self.assertEqual(code, 1)
        self.assertIn("apt install zstd", err)
        self.assertIn("pip install", err)


class Pieces(unittest.TestCase):
    def messages(self, *texts):
        return [au.Message("user", text, seq) for seq, text in enumerate(texts)]

    def test_cuts_fall_between_messages_and_nothing_is_dropped(self):
        texts = [f"{n} " + "x" * (n * 7 % 90) for n in range(200)]
        found = list(au.pieces(self.messages(*texts), 100))
        self.assertTrue(all(len(piece.text) <= 100 for piece in found))
        self.assertEqual("\n".join(piece.text for piece in found),
                         "\n".join("用户: " + text for text in texts))
        self.assertEqual([m.seq for piece in found for m in piece.done], list(range(200)))
        self.assertTrue(all(p.first == p.done[0].seq and p.last == p.done[-1].seq for p in found))

    def test_a_text_of_exactly_the_limit_is_not_cut(self):
        self.assertEqual(len(list(au.pieces(self.messages("x" * 96), 100))), 1)
        self.assertEqual(len(list(au.pieces(self.messages("x" * 97), 100))), 2)
        self.assertEqual(len(list(au.pieces(self.messages("x" * 45, "y" * 46), 100))), 1)
        self.assertEqual(len(list(au.pieces(self.messages("x" * 46, "y" * 46), 100))), 2)

    def test_a_long_message_is_cut_at_sentences_and_only_its_end_counts_as_done(self):
        text = "".join(f"第{n}句话说明一个事实。" for n in range(40))
        found = list(au.pieces(self.messages("a", text, "b"), 100))
        self.assertTrue(all(len(piece.text) <= 100 for piece in found))
        self.assertTrue(all(piece.text.endswith("。") for piece in found[1:-1]))
        self.assertEqual("".join(piece.text[4:] for piece in found[1:-1]), text)
        self.assertEqual([[m.seq for m in piece.done] for piece in found if piece.done],
                         [[0], [1], [2]])

    def test_paragraphs_go_before_sentences_and_a_run_without_borders_is_cut_hard(self):
        text = "a. " * 20 + "\n\n" + "b. " * 10 + "z" * 300
        found = [piece.text for piece in au.pieces(self.messages(text), 100)]
        self.assertTrue(found[0].endswith("\n\n"))
        self.assertEqual("".join(part[4:] for part in found), text)
        found = [piece.text for piece in au.pieces(self.messages("a.\n\n" + "b. " * 60), 100)]
        self.assertGreater(len(found[0]), 50)

    def test_a_long_message_is_redacted_before_it_is_cut(self):
        secret = "sk-" + "Ab3" * 20
        found = list(au.pieces(self.messages("x" * 60 + secret), 80,
                               clean=lambda text: re.sub("sk-[A-Za-z0-9]{8,}", "[gone]", text)))
        self.assertNotIn("Ab3", "".join(piece.text for piece in found))

    def test_a_limit_without_room_is_refused(self):
        self.assertRaises(ValueError, list, au.pieces([], 3))


class TakenOnce(Logs):
    BASE = (header(), user(5, "fact one"), assistant(6, "fact two"), user(9, "fact three"))

    def test_a_second_run_adds_nothing_and_a_grown_log_only_the_new_part(self):
        path = self.log(*self.BASE)
        self.apply(path)
        self.assertEqual(self.store.sources, ["dsh:s1#5-9"])
        self.apply(path)
        self.assertEqual((len(self.store.texts), self.store.saves), (1, 1))
        self.assertEqual(len(self.store.held["sediment"]["sessions"]["s1"]["marks"]), 3)
        self.log(*self.BASE, assistant(11, "fact four"), user(12, "fact one"))
        self.apply(path)
        self.assertEqual(self.store.texts[1:], ["助手: fact four\n用户: fact one"])
        self.assertEqual(self.store.sources[1:], ["dsh:s1#11-12"])

    def test_the_unfinished_line_is_taken_once_when_it_is_complete(self):
        new = user(12, "fact 汉字")
        path = self.log(*self.BASE, new[:-14])
        self.assertIn("still being written", self.apply(path)[2])
        self.log(*self.BASE, new, user(13, "fact five"))
        self.apply(path)
        self.apply(path)
        self.assertEqual(self.store.texts[1:], ["用户: fact 汉字\n用户: fact five"])

    def test_path_name_compression_and_line_ends_do_not_matter(self):
        self.apply(self.log(*self.BASE))
        crlf = b"".join(self.BASE).replace(b"\n", b"\r\n")
        blank = b"\n\n".join(self.BASE)
        self.apply(self.log(*map(frame, self.BASE), name="x/b"), self.log(crlf, name="c"),
                   self.log(blank, name="d"))
        self.assertEqual(len(self.store.texts), 1)

    def test_other_bookkeeping_does_not_matter(self):
        rows = [line({"type": "user/message", "data": {"content": text}}) for text in "abcd"]
        self.apply(self.log(header(), *rows[:3]))
        more = [row.replace(b"{", b'{"uuid":"x",', 1) for row in rows]
        self.apply(self.log(header(), line({"type": "note"}), *more))
        self.assertEqual(self.store.texts, ["用户: a\n用户: b\n用户: c", "用户: d"])

    def test_another_log_under_the_same_id_is_read_anew(self):
        path = self.log(*self.BASE)
        self.apply(path)
        self.log(header(), user(1, "fact new"))
        self.apply(path)
        self.apply(path)
        self.assertEqual(self.store.texts[1:], ["用户: fact new"])
        self.log(*self.BASE[:3])        # the old one, shorter
        self.apply(path)
        self.assertEqual(len(self.store.texts), 2)

    def test_a_session_above_the_kept_marks_stays_known_and_can_still_be_replaced(self):
        rows = [user(seq, f"fact {seq}") for seq in range(30)]
        with mock.patch.object(au, "KEPT", 10):
            path = self.log(header(), *rows)
            self.apply(path)
            self.apply(path)
            self.assertEqual(len(self.store.texts), 1)
            self.assertEqual(len(self.store.held["sediment"]["sessions"]["s1"]["marks"]), 10)
            self.log(header(), user(0, "fact other"))
            self.apply(path)
        self.assertEqual(self.store.texts[1:], ["用户: fact other"])

    def test_a_fork_gives_only_what_its_parent_does_not_hold_in_either_order(self):
        parent = self.log(*self.BASE, user(10, "fact of the parent"), name="p")
        fork = self.log(header("s2", parentSession="s1"), *self.BASE[1:],
                        user(10, "fact of the child"), user(11, "fact one"), name="f")
        for order in ((parent, fork), (fork, parent)):
            self.store = Store()
            for path in order + order:
                self.apply(path)
            self.assertEqual(len(self.store.texts), 2)
            self.assertEqual(len(re.findall("fact one", " ".join(self.store.texts))), 2)

    def test_one_common_message_is_enough_where_the_parent_is_named(self):
        self.apply(self.log(header("p"), user(1, "fact a"), user(2, "fact b"), name="p"))
        self.apply(self.log(header("f", parentSession="p"), user(1, "fact a"), user(2, "c"),
                            name="f"))
        self.apply(self.log(header("g", parentSession="p"), user(1, "fact a"), name="g"))
        self.assertEqual(self.store.texts[1:], ["用户: c"])
        self.assertEqual(self.store.held["sediment"]["sessions"]["g"],
                         {"last": 1, "marks": [au.Message("user", "fact a", 1).mark],
                          "parent": "p"})

    def test_a_copy_under_a_new_id_is_known_by_its_first_two_messages(self):
        self.apply(self.log(*self.BASE))
        self.apply(self.log(header("s9"), *self.BASE[1:], user(20, "fact nine"), name="b"))
        self.apply(self.log(header("s8"), user(1, "fact one"), name="c"))   # said again
        self.assertEqual(self.store.texts[1:], ["用户: fact nine", "用户: fact one"])

    def test_every_fact_is_taken_however_many_are_asked_for_at_once(self):
        facts = [f"fact {number}" for number in range(20)]
        log = self.log(header(), user(1, "\n".join(facts)), *(
            user(number, f"fact of its own {number}") for number in range(2, 32)))
        code, out, _ = self.run_main("--session", log, "--apply", "--max-facts", "3")
        self.assertEqual((code, len(self.store.notes)), (0, 50))
        self.assertIn("facts 50, stored 50, known 0", out)

    def test_a_memory_has_the_time_of_its_session(self):
        hour = 3_600_000
        log = self.log(header(createdAt=1_700_000_000_000),
                       user(1, "fact one", time=1_700_000_000_000),
                       user(2, "fact two", time=1_700_000_000_000 + hour),
                       user(3, "fact three", time=1_700_000_000_000 + 30 * hour),
                       user(4, "fact four", time=None))
        self.apply(log)
        self.assertEqual(self.store.times, ["2023-11-14T23:13:20+00:00",
                                            "2023-11-16T04:13:20+00:00"])
        self.apply(self.log(header("s2", createdAt=None), line(
            {"type": "user/message", "data": {"content": "fact five"}}), name="b.jsonl"))
        self.assertIsNone(self.store.times[-1])
        self.apply(self.log(header("s3"), user(1, "fact six", time=99_000_000_000_000),
                            name="c.jsonl"))
        self.assertIsNone(self.store.times[-1], "a clock that is wrong")

    def test_a_kill_after_storing_repeats_one_piece_and_doubles_nothing(self):
        rows = [user(seq, f"fact {seq} " + "x" * 80) for seq in range(6)]
        path = self.log(header(), *rows)
        self.store.dies_after = 2
        with self.assertRaises(Killed):
            self.run_main("--session", path, "--apply", "--max-chars", "100")
        self.store.dies_after = None
        self.run_main("--session", path, "--apply", "--max-chars", "100")
        self.assertEqual(len(self.store.texts), 7)
        self.assertEqual(len(self.store.notes), 6)

    def test_a_kill_inside_a_cut_message_does_not_lose_its_end(self):
        path = self.log(header(), user(1, "".join(f"fact {n}. " for n in range(60))))
        self.store.dies_after = 1
        with self.assertRaises(Killed):
            self.run_main("--session", path, "--apply", "--max-chars", "100")
        self.store.dies_after = None
        self.run_main("--session", path, "--apply", "--max-chars", "100")
        self.assertIn("fact 59.", self.store.texts[-1])

    def test_no_word_is_in_the_state_and_a_damaged_state_does_not_stop(self):
        path = self.log(*self.BASE)
        self.apply(path)
        self.assertNotIn("fact", json.dumps(self.store.held))
        for damage in ([1], {"s1": 3}, {"s1": {"last": "x", "marks": 1}},
                       {"s1": {"last": 9, "marks": [[], None], "parent": ["x"]}}):
            self.store.held["sediment"] = {"sessions": damage}
            self.assertEqual(self.apply(path)[0], 0)

    def test_a_dry_run_shows_the_same_and_stores_nothing(self):
        path = self.log(*self.BASE)
        fork = self.log(header("s2", parentSession="s1"), *self.BASE[1:], name="f")
        code, out, _ = self.run_main("--session", path, "--session", fork)
        self.assertEqual((code, self.store.saves, self.store.texts), (0, 0, []))
        self.assertEqual(out.count("fact one"), 1)


class Choosing(Logs):
    def put(self, place, *parts, at=None):
        path = self.log(*parts, name="sessions/" + place)
        if at:
            os.utime(path, (at, at))
        return path

    def test_the_highest_generation_of_a_folder_wins(self):
        for name in ("session.jsonl", "session.v4.jsonl.zstd", "session.v10.jsonl", "session.lock",
                     "session.v0.jsonl", "session.v11.jsonl.tmp"):
            self.put("w/s/" + name, header())
        other = self.put("_no-cwd/t/session.jsonl.zstd", header())
        self.assertEqual(au.find_sessions(self.folder),
                         [other, self.folder / "sessions/w/s/session.v10.jsonl"])

    def test_latest_goes_by_the_time_in_the_log_and_past_subagents(self):
        self.put("w/a/session.jsonl", header("a"), user(50, "fact a"), at=1000)
        self.put("w/b/session.jsonl", header("b"), user(40, "fact b"), at=2 ** 31)
        self.put("w/c/session.jsonl", header("c", delegationDepth=1), user(90, "fact c"))
        self.put("w/d/session.jsonl", header("d", origin="subagent"), user(91, "fact d"))
        self.put("w/e/session.jsonl", b"\xff\xff\n", at=2 ** 31)
        for args in ((), ("--latest",)):
            self.assertTrue(self.run_main(*args)[1].startswith("a: new messages 1, facts 1"))

    @unittest.skipUnless(os.name == "posix" and os.geteuid(), "root reads everything")
    def test_latest_passes_an_unreadable_log_and_says_so(self):
        self.put("w/a/session.jsonl", header("a"))
        self.put("w/b/session.jsonl", header("b"), user(1, "b")).chmod(0)
        code, out, err = self.run_main()
        self.assertIn("Permission denied", err)
        self.assertTrue(out.startswith("a:"))

    def test_all_takes_each_and_one_unreadable_log_costs_only_itself(self):
        self.put("w/a/session.jsonl", header("a"), user(1, "fact a"))
        self.put("w/b/session.jsonl", b"\0\0\0\0")
        self.put("w/c/session.jsonl", header("c"), user(1, "fact c"))
        code, out, err = self.run_main("--all", "--apply", "--json")
        self.assertEqual((code, self.store.notes), (13, ["fact a", "fact c"]))
        self.assertIn("w/b/session.jsonl", err)
        shown = json.loads(out)
        self.assertEqual([one.get("session") for one in shown["sessions"]], ["a", None, "c"])
        self.assertTrue(shown["applied"])

    def test_nothing_found_is_10_and_one_sentence(self):
        for args in ((), ("--session", self.folder / "none"), ("--session", self.folder),
                     ("--all", "--sessions-root", self.folder / "none")):
            code, out, err = self.run_main(*args)
            self.assertEqual((code, out, err.count("\n")), (10, "", 1))

    def test_a_blank_dsh_home_counts_as_unset(self):
        with mock.patch.dict(os.environ, {"DSH_HOME": "  ", "HOME": str(self.folder)}):
            self.log(header("h"), name=".dsh/sessions/w/s/session.jsonl")
            self.assertTrue(self.run_main()[1].startswith("h:"))

    def test_an_empty_log_and_a_tool_session_give_nothing_and_no_error(self):
        tools = self.log(header(), line({"type": "tool/result", "seq": 1, "data": {}}), name="t")
        for path in (self.log(name="e"), tools, self.log(b'{"type":"ses', name="w")):
            code, out, _ = self.apply(path)
            self.assertEqual((code, self.store.texts, out), (0, [], ""))

    def test_what_cannot_be_read_is_said_where_nothing_was_new_too(self):
        foreign = self.log(line({"type": "user", "message": {"content": "fact"}}), name="f")
        code, _, err = self.apply(foreign)
        self.assertEqual((code, err.count("\n")), (13, 1))
        self.assertIn("no line of it is an event of DSH", err)
        lost = self.log(header(), b"{broken\n", b"broken}\n", name="l")
        self.assertIn("2 lines lost, unreadable", self.apply(lost)[2])
        self.assertEqual(self.apply(lost)[2], "", "it was said")
        lost = self.log(header(), b"{broken\n", b"broken}\n", b"more\n", name="l")
        self.assertIn("3 lines lost", self.apply(lost)[2])
        cut = self.log(frame(header())[:30], name="c")
        code, out, err = self.apply(cut)
        self.assertEqual((code, out), (0, ""))
        self.assertIn("nothing of it can be read yet", err)

    def test_a_newer_log_that_latest_cannot_read_is_named(self):
        self.put("w/a/session.jsonl", header("a"), user(50, "fact a"))
        self.put("w/b/session.jsonl", b"\xff\xff\n", at=2 ** 32)
        self.put("w/c/session.jsonl", b"\xff\xff\n", at=1000)
        code, out, err = self.run_main("--latest", "--apply")
        self.assertEqual((code, self.store.notes), (0, ["fact a"]))
        self.assertIn("w/b/session.jsonl is newer", err)
        self.assertNotIn("w/c", err)

    def test_another_run_at_work_is_0_and_one_line(self):
        self.store.busy = True
        code, out, err = self.apply(self.log(*TakenOnce.BASE))
        self.assertEqual((code, out, err.count("\n"), self.store.texts), (0, "", 1, []))

    def test_a_failing_store_ends_the_run_with_its_code(self):
        for kind in (hermes_lite.StorageError, hermes_lite.Locked):
            with mock.patch.object(Store, "digest", side_effect=kind("full")):
                self.assertEqual(self.apply(self.log(*TakenOnce.BASE))[0], kind.exit_code)
        self.assertEqual(self.store.held.get("sediment"), None)

    def test_wrong_options_are_2(self):
        for args in (["--max-chars", "5"], ["--max-facts", "0"], ["--apply", "--dry-run"],
                     ["--all", "--latest"]):
            with self.assertRaises(SystemExit) as stop, contextlib.redirect_stderr(io.StringIO()):
                au.main(args)
            self.assertEqual(stop.exception.code, 2)


class Bare(Logs):
    def test_it_runs_in_an_empty_environment_and_writes_utf8(self):
        path = self.log(header("s1"), user(1, "我们决定使用 PostgreSQL 16"))
        core = pathlib.Path(hermes_lite.__file__).parent
        done = subprocess.run(
            [sys.executable, HERE / "auto_sediment.py", "--session", path, "--json",
             "--root", self.folder / "data"], capture_output=True, cwd="/",
            env={"PYTHONPATH": str(core), "LC_ALL": "C", "PYTHONUTF8": "0"})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout.decode("utf-8"))["sessions"][0]["messages"], 1)


class RealCore(unittest.TestCase):
    """The script and the real store, each command its own process in an empty environment."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.home = pathlib.Path(folder.name)
        self.log = self.home / "sessions" / "--ws--" / "session-1" / "session.v4.jsonl.zstd"
        self.log.parent.mkdir(parents=True)

    def run_it(self, script, *words):
        done = subprocess.run(
            [sys.executable, HERE / script, *words], capture_output=True, cwd="/",
            env={"DSH_HOME": str(self.home), "HERMES_LITE_ROOT": str(self.home / "data")})
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.decode("utf-8")

    def sediment(self):
        report = json.loads(self.run_it("auto_sediment.py", "--latest", "--apply", "--json"))
        return [result for session in report["sessions"] for result in session["results"]]

    def test_a_session_is_found_by_another_process_and_taken_once(self):
        secret = os.urandom(9).hex()
        first = [header("s-" + os.urandom(16).hex()),
                 user(1, "我们决定使用 PostgreSQL 16，端口是 5433。"),
                 assistant(2, "好的。"), user(3, f"记住：数据库密码是 {secret}。I prefer tabs.")]
        self.log.write_bytes(b"".join(map(frame, first)))
        taken = self.sediment()
        self.assertGreaterEqual(len(taken), 2)
        hits = json.loads(self.run_it("hermes_lite.py", "recall", "PostgreSQL 端口", "--json"))
        self.assertIn("PostgreSQL 16", hits["hits"][0]["memory"]["content"])
        self.assertRegex(hits["hits"][0]["memory"]["source"], "^dsh:s-[0-9a-f]{32}#1-3$")
        self.assertEqual(self.sediment(), [])
        with open(self.log, "ab") as log:
            log.write(frame(user(4, "Remember that the staging port is 8081")))
        self.assertEqual([result["created"] for result in self.sediment()], [True])
        taken_on = {row["created_at"] for row in json.loads(self.run_it(
            "hermes_lite.py", "list", "--json"))}
        self.assertEqual({when[:10] for when in taken_on}, {time.strftime(
            "%Y-%m-%d", time.gmtime(min(1795990400, time.time())))})
        for path in self.home.glob("data/**/*"):
            self.assertFalse(path.is_file() and secret.encode() in path.read_bytes(), path)


if __name__ == "__main__":
    unittest.main()
