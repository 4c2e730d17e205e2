"""Operations called by name with JSON: schema, lenient arguments, scopes and errors."""
from __future__ import annotations

import json
import unittest

import hermes_lite
from hermes_ext import calls
from hermes_ext.tests.base import Case
from hermes_lite import Refused, UsageError

READER = calls.Caller("http", "reader", frozenset({"read"}))
WRITER = calls.Caller("http", "writer", frozenset({"write"}))
ADMIN = calls.Caller("http", "boss", frozenset({"admin"}))


class Calls(Case):
    def run_as(self, caller, name, **arguments):
        return calls.call(self.open(), self.known[name], arguments, caller).result

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.known = calls.operations()

    def test_every_operation_is_offered_but_the_local_ones(self):
        self.assertLessEqual({"remember", "recall", "brain cycle", "approve", "score"},
                             set(self.known))
        for name in ("init", "migrate", "encrypt", "restore", "repair", "config", "shell"):
            self.assertNotIn(name, self.known)

    def test_every_schema_is_json_and_says_what_is_required(self):
        for name, operation in self.known.items():
            with self.subTest(name):
                schema = json.loads(json.dumps(calls.input_schema(operation)))
                self.assertEqual(schema["type"], "object")
                self.assertNotIn("standard input", json.dumps(schema["properties"].get("text")))
        self.assertEqual(calls.input_schema(self.known["show"])["required"], ["id"])
        self.assertIn("yes", calls.input_schema(self.known["prune"])["properties"])

    def test_a_number_a_switch_and_a_list_are_read_as_models_write_them(self):
        operation = self.known["remember"]
        for given, wanted in (("5", 5), (5.0, 5), ("5.0", 5), (-1, 1), (10 ** 9, 10), (None, 5)):
            read = calls.read_arguments(operation, {"text": "x", "importance": given})
            self.assertEqual(read["importance"], wanted, given)
        for given in (5.7, "ten", float("nan"), True, {}, "1e999"):
            with self.assertRaisesRegex(UsageError, "importance"):
                calls.read_arguments(operation, {"text": "x", "importance": given})
        for given in ("red, blue", '["red","blue"]', ["red,blue"], "#red #blue", "red，blue"):
            read = calls.read_arguments(operation, {"text": "x", "tags": given})
            self.assertEqual([tag.lstrip("#") for tag in read["tags"]], ["red", "blue"], given)
        with self.assertRaisesRegex(UsageError, "tags"):
            calls.read_arguments(operation, {"text": "x", "tags": {}})
        self.assertIs(calls.read_arguments(self.known["list"], {"unverified": "true"})["unverified"],
                      True)
        self.assertEqual(calls.read_arguments(self.known["verify"], {"id": "abcd"})["id"], ["abcd"])

    def test_an_unknown_argument_is_named_with_the_nearest(self):
        with self.assertRaisesRegex(UsageError, "'quary'.*did you mean 'query'"):
            calls.read_arguments(self.known["recall"], {"quary": "x"})
        with self.assertRaisesRegex(UsageError, "no object"):
            calls.read_arguments(self.known["recall"], ["x"])
        with self.assertRaisesRegex(UsageError, "id is missing"):
            calls.read_arguments(self.known["show"], {})

    def test_scopes_hold_for_operations_files_and_confirmations(self):
        for caller, name, arguments in (
                (READER, "remember", {"text": "the port is 5433"}),
                (WRITER, "prune", {"yes": True}), (WRITER, "backup", {}),
                (WRITER, "remember", {"text": "x", "verified": True}),
                (WRITER, "digest", {"file": "notes.txt"}),
                (WRITER, "remember", {"batch": "notes.txt"}),
                (WRITER, "verify", {"all": True})):
            with self.subTest(name), self.assertRaises(Refused) as caught:
                self.run_as(caller, name, **arguments)
            self.assertEqual(caught.exception.reason_code, "needs_scope")
        self.assertEqual(self.run_as(ADMIN, "prune", dry_run=True)["dry_run"], True)
        with self.assertRaises(Refused) as caught:
            self.run_as(ADMIN, "prune")
        self.assertEqual(caught.exception.reason_code, "needs_yes")

    def test_what_is_written_carries_the_name_of_the_caller(self):
        made = self.run_as(WRITER, "remember", text="the port is 5433")
        row = self.run_as(READER, "show", id=made["id"][-4:])
        self.assertEqual(row["agent"], "writer")
        with self.assertRaises(Refused) as caught:
            self.run_as(WRITER, "remember", text="the port is 5434", agent="boss")
        self.assertEqual(caught.exception.reason_code, "other_agent")
        self.assertEqual(self.run_as(READER, "recall", query="port")["hits"][0]["memory"]["id"],
                         made["id"])
        self.assertIn("kept_until", self.run_as(READER, "list")[0])

    def test_only_a_person_brings_back_what_was_forgotten(self):
        text = "the harbour master is Olga"
        self.run_as(WRITER, "forget", id=self.run_as(WRITER, "remember", text=text)["id"])
        other = self.run_as(WRITER, "remember", text="the ferry leaves at nine")["id"]
        for name, arguments in (("remember", {}), ("edit", {"id": other})):
            with self.assertRaises(Refused) as caught:
                self.run_as(WRITER, name, text=text, **arguments)
            self.assertEqual(caught.exception.reason_code, "forgotten")
        reviewer = calls.Caller("http", "page", frozenset({"write", "review"}))
        self.assertTrue(self.run_as(reviewer, "edit", id=other, text=text)["changed"])

    def test_nothing_reads_standard_input_or_opens_an_editor(self):
        made = self.run_as(WRITER, "remember", text="-- the port is 5433")
        with self.assertRaisesRegex(UsageError, "give the new text"):
            self.run_as(WRITER, "edit", id=made["id"])
        self.assertEqual(self.run_as(WRITER, "edit", id=made["id"], text="-")["after"], "-")

    def test_an_error_says_its_name_and_hides_what_it_must(self):
        secret = "sk-" + "Ab1" * 12
        told = calls.error_of(UsageError(f"the text {secret} is wrong"), "r1")["error"]
        self.assertEqual((told["name"], told["exit_code"], told["request"]), ("usage", 2, "r1"))
        self.assertNotIn(secret, told["message"])
        told = calls.error_of(RuntimeError(secret))["error"]
        self.assertEqual(told["name"], "internal")
        self.assertNotIn(secret, told["message"])
        names = {calls.error_name(kind("x")) for kind in (
            hermes_lite.NotFound, hermes_lite.Locked, hermes_lite.StorageError,
            hermes_lite.DamagedData, hermes_lite.ConfigError, Refused)}
        self.assertEqual(names, {"not_found", "locked", "storage", "damaged", "config", "refused"})


if __name__ == "__main__":
    unittest.main()
