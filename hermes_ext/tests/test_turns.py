"""What a turn is given: other wordings of a question, and the block for a prompt; on both stores."""
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from hermes_ext.lanes.wording import Wording
from hermes_ext.tests.base import setUpModule
from hermes_ext.tests.test_lanes import LanesCase, on_archive
from hermes_lite import ConfigError

__all__ = ["setUpModule"]


class OtherWords(LanesCase):
    """A recall finds what is spelled otherwise, is part of a compound, or means the same."""
    texts = ("Die Datenbank läuft auf Port 5432", "Anna wohnt in München", "Viele Grüße von Olga",
             "Der Straßenbelag wird im Mai erneuert", "周会改到周三, 数据库在上海",
             "We import goods from Lyon", "Die Projektfrist endet im Juni")
    settings = {"rebound": {"facts": 1_000}}

    def found(self, query):
        return [hit.content for hit in self.memory.recall(query)]

    def filled(self):
        self.memory = self.open()
        for text in self.texts:
            self.memory.remember(text)
        return self.memory

    def test_a_question_finds_other_spellings_compounds_and_synonyms(self):
        self.filled()
        for query, text in (
                ("Wo ist die Datenbankverbindung?", 0), ("Datenbankverbindung", 0),
                ("wer wohnt in Muenchen", 1), ("MÜNCHEN", 1), ("Gruesse", 2), ("Grüsse", 2),
                ("Straße", 3), ("strassenbelag", 3), ("Projekt", 6), ("database port", 0),
                ("db port", 0), ("Datenbank 上海", 4), ("数据库 port", 0)):
            with self.subTest(query):
                self.assertIn(self.texts[text], self.found(query))

    def test_what_is_found_by_other_words_has_a_confidence(self):
        hit = self.filled().recall("Datenbankverbindung")[0]
        self.assertGreater(hit.confidence, 0.3)
        self.assertIn("lanes", hit.why["retrievers"])

    def test_what_only_looks_like_a_compound_finds_nothing(self):
        self.filled()
        for query in ("important things", "welcher Kunde?", "Portugal", "!!!"):
            with self.subTest(query):
                self.assertEqual(self.found(query), [])

    def test_a_question_in_the_words_of_the_store_is_not_asked_again(self):
        memory = self.filled()
        for query in ("Wo wohnt Anna?", "import goods", "周三", "5432"):
            with self.subTest(query):
                self.assertEqual(Wording().retrieve(memory, query), {})

    def test_a_known_compound_finds_its_parts_only_where_both_are_words(self):
        memory = self.filled()
        for text in ("Datenbankverbindung geprüft", "Die Verbindung war stabil",
                     "The important meeting is on Friday"):
            memory.remember(text)
        self.assertIn(self.texts[0], self.found("Datenbankverbindung"))
        self.assertNotIn(self.texts[5], self.found("important meeting"))

    def test_synonyms_of_config_yaml_are_added(self):
        self.settings = {**self.settings, "synonyms": [["Hafenmeister", "Olga"]]}
        self.filled()
        self.assertEqual(self.found("Hafenmeister"), [self.texts[2]])
        self.assertIn(self.texts[0], self.found("database port"))

    def test_wrong_settings_are_named(self):
        for settings, said in (({"synonyms": "db"}, "synonyms"), ({"synonyms": [["a b"]]}, "a b"),
                               ({"synonyms": [[5]]}, "synonyms"), ({"synonyms": [[""]]}, "synon"),
                               ({"inject": {"evidence": -1}}, "inject.evidence"),
                               ({"inject": {"evidnce": 1}}, "evidence")):
            with self.subTest(settings), self.assertRaises(ConfigError) as caught:
                self.settings = settings
                self.open()
            self.assertIn(said, str(caught.exception))


OtherWordsOnArchive = on_archive(OtherWords)


if __name__ == "__main__":
    unittest.main()
