"""The page in a real Chromium, against a real server in a process of its own."""
from __future__ import annotations

import json
import os
import shutil
import unittest
from pathlib import Path
from typing import Any

try:
    from playwright.sync_api import expect, sync_playwright
except ImportError:
    sync_playwright = None

from hermes_ext.tests.base import setUpModule
from hermes_ext.tests.test_server import HAS_SERVER, Served
from hermes_lite import Memory, iso

HOME = Path(__file__).resolve().parents[2]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))),
                None)
# Set to a folder, the test writes its pictures there: docs/ holds such ones.
PICTURES = os.environ.get("HERMES_PAGE_PICTURES")
NOTES = (("The staging database listens on port 5433", "--tags", "staging", "database"),
         ("周会是每周三下午三点", "--tags", "meeting"), ("Das Backup läuft jede Nacht um 2 Uhr",),
         ("Olga is the harbour master of Hamburg", "--agent", "ops", "--tags", "people"),
         ("Kim pilots the ferry from Hamburg", "--agent", "ops", "--tags", "people"))


@unittest.skipUnless(sync_playwright and CHROMIUM and HAS_SERVER, "needs the extra server, playwright and "
                     "chromium")
class Page(Served):
    config = ("systems: {anchors: {}, salience: {}, audit: {}, lanes: {}, brain: {}, "
              "events: {}}\n")

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        playwright = sync_playwright().start()
        cls.addClassCleanup(playwright.stop)
        cls.browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        cls.addClassCleanup(cls.browser.close)

    def look(self, *scopes: str, width: int = 1280, language: str = "en-GB",
             scheme: str = "light") -> Any:
        """Serve, and open the page signed in; a complaint of the browser fails the test."""
        if self.process is None:
            self.serve("--per-minute", "0")
        token = self.token(*(scopes or ("read", "write", "review")), agent="person")
        page = self.browser.new_context(viewport={"width": width, "height": 800}, locale=language,
                                   color_scheme=scheme).new_page()
        self.complaints: list[str] = []
        page.on("console", lambda said: said.type in ("error", "warning") and
                self.complaints.append(said.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: (self.complaints.append("a dialog"), dialog.dismiss()))
        page.goto(f"{self.url}/#token={token}")
        self.addCleanup(lambda: self.assertEqual(self.complaints, []))
        return page

    def rows(self, page: Any, count: int) -> None:
        """Wait until so many rows are shown."""
        expect(page.locator(".row")).to_have_count(count, timeout=30_000)

    def fill(self) -> None:
        for text, *more in NOTES:
            code, _, err = self.cli("remember", text, *more)
            self.assertEqual(code, 0, err)

    def kept(self) -> dict[str, bool]:
        rows = json.loads(self.cli("list", "--json")[1])
        return {row["content"]: row["execution_verified"] for row in rows}

    def picture(self, page: Any, name: str) -> None:
        if PICTURES:
            page.wait_for_timeout(300)
            page.screenshot(path=f"{PICTURES}/{name}.png")

    def test_a_person_searches_verifies_forgets_and_takes_it_back(self):
        self.fill()
        page = self.look()
        page.wait_for_selector(".row")
        self.assertNotIn("token", page.url)
        self.assertEqual(page.locator(".row").count(), len(NOTES))
        page.keyboard.press("/")
        page.keyboard.type("staging port")
        self.rows(page, 1)
        page.locator(".row").first.click()
        page.wait_for_selector("#detail .content")
        self.assertIn("5433", page.locator("#detail .content").inner_text())
        self.assertIn("cli remember", page.locator("#detail").inner_text())
        page.click("#verify")
        expect(page.locator("#toast")).to_contain_text("Verified.")
        self.assertTrue(self.kept()["The staging database listens on port 5433"])
        page.click("#forget")
        expect(page.locator("#toast")).to_contain_text("Forgotten.")
        self.assertNotIn("The staging database listens on port 5433", self.kept())
        page.click("#undo")
        expect(page.locator("#toast")).to_contain_text("Taken back")
        self.rows(page, 1)
        self.assertTrue(self.kept()["The staging database listens on port 5433"])

    def test_a_person_filters_and_another_program_writes(self):
        self.fill()
        page = self.look()
        page.wait_for_selector(".row")
        page.click("#filters >> text=people")
        self.rows(page, 2)
        page.click("#filters >> text=people")
        self.rows(page, len(NOTES))
        self.cli("remember", "The pier is closed on Monday")
        self.rows(page, len(NOTES) + 1)
        page.context.close()
        self.filters_hold_for_a_search_and_on_a_narrow_screen(len(NOTES) + 1)

    def filters_hold_for_a_search_and_on_a_narrow_screen(self, count: int) -> None:
        page = self.look(width=390)
        page.locator("#filters .tag", has_text="people").click()
        self.rows(page, 2)
        page.fill("#search", "Hamburg ferry")
        page.locator("mark").first.wait_for()
        page.locator("#filters .agent", has_text="ops").click()
        expect(page.locator(".row").first).to_contain_text("Kim")
        page.fill("#search", "")
        page.locator("#filters .tag", has_text="people").click()
        page.locator("#filters .agent", has_text="ops").click()
        self.rows(page, count)
        page.keyboard.press("Escape")
        page.click("#tab-timeline")
        page.fill("#topic", "people")
        page.keyboard.press("Enter")
        expect(page.locator(".moments li")).to_have_count(2)

    def test_a_rule_is_approved(self):
        self.cli("propose-rule", "--text", "Answer in German", "--source", "observation")
        page = self.look()
        page.click("#tab-decide")
        page.wait_for_selector(".card .approve")
        self.assertIn("Answer in German", page.locator(".card").inner_text())
        page.click(".card .approve")
        page.wait_for_selector("text=Nothing waits for a decision.")
        rules = json.loads(self.cli("active-rules", "--json")[1])
        self.assertEqual([rule["text"] for rule in rules], ["Answer in German"])

    def test_nothing_that_a_memory_says_runs(self):
        attacks = ('<img src=x onerror="document.title=1">', "<script>document.title=2</script>",
                   '"><svg onload=alert(3)>', "javascript:alert(4)")
        for number, attack in enumerate(attacks):
            self.cli("remember", f"note {number} of Mallory says {attack}", "--tags",
                     f"t{number}<b>x</b>", "--agent", "<i>agent</i>", "--source", attack)
        page = self.look()
        page.wait_for_selector(".row")
        title = page.title()
        for tab in ("review", "decide", "timeline", "graph", "stats", "memories"):
            page.click(f"#tab-{tab}")
            page.wait_for_timeout(150)
        page.wait_for_selector(".row")
        for place in range(len(attacks)):
            page.locator(".row").nth(place).click()
            page.wait_for_selector("#detail .content")
        self.assertEqual(page.title(), title)
        self.assertEqual(page.locator("main img, main script, main i, main b").count(), 0)

    def test_ten_thousand_memories_scroll_with_few_elements(self):
        with self.open() as memory, memory.store.transaction():
            for number in range(10_000):
                memory.store.put(Memory(
                    f"mem_20260801_000000_{number:05x}", f"lamp {number} hangs in hall {number % 97}",
                    created_at=iso(self.now), tags=(f"hall{number % 9}",)))
        page = self.look()
        expect(page.locator(".why")).to_contain_text("10,000", timeout=120_000)
        gaps = page.evaluate("""async () => {
            const box = document.querySelector('.scroller');
            const gaps = [];
            let before = performance.now();
            for (let step = 0; step < 120; step += 1) {
                box.scrollTop = step * 5600;
                await new Promise(requestAnimationFrame);
                const now = performance.now();
                gaps.push(now - before);
                before = now;
            }
            box.scrollTop = box.scrollHeight;
            await new Promise(requestAnimationFrame);
            return gaps;
        }""")
        gaps.sort()
        print(f"\n10,000 memories: {len(gaps)} frames, median {gaps[60]:.0f} ms, "
              f"worst {gaps[-1]:.0f} ms")
        self.assertLess(page.locator(".row").count(), 60)
        self.assertIn("lamp 0 ", page.locator(".row").last.inner_text()
                      + page.locator(".scroller").inner_text())

    def test_keys_alone_are_enough(self):
        self.fill()
        page = self.look()
        page.wait_for_selector(".row")
        for key in ("j", "j", "k", "Enter"):
            page.keyboard.press(key)
        page.wait_for_selector("#detail .content")
        chosen = page.locator("#detail .content").inner_text()
        page.keyboard.press("v")
        expect(page.locator("#toast")).to_contain_text("Verified.")
        self.assertTrue(self.kept()[chosen])
        page.keyboard.press("f")
        expect(page.locator("#toast")).to_contain_text("Forgotten.")
        self.assertNotIn(chosen, self.kept())
        page.keyboard.press("u")
        self.rows(page, len(NOTES))
        self.assertIn(chosen, self.kept())
        page.keyboard.press("?")
        page.wait_for_selector("dialog[open]")
        page.keyboard.press("Escape")
        page.keyboard.press("6")
        page.wait_for_selector(".plot")

    def test_three_languages_dark_and_a_narrow_screen(self):
        self.fill()
        for language, word, scheme, width, name in (
                ("de-DE", "Erinnerungen", "dark", 1280, "page-dark"),
                ("zh-CN", "记忆", "light", 390, "page-mobile")):
            page = self.look(language=language, scheme=scheme, width=width)
            page.wait_for_selector(".row")
            self.assertEqual(page.locator("#tab-memories").inner_text(), word)
            wide = page.evaluate("document.documentElement.scrollWidth")
            self.assertLessEqual(wide, width)
            if name == "page-dark":
                page.click("#tab-graph")
                page.wait_for_selector(".graph canvas")
            self.picture(page, name)
        page.select_option("#language", "de")
        self.assertEqual(page.locator("#tab-memories").inner_text(), "Erinnerungen")
        names = page.evaluate("""async () => {
            const { TEXTS } = await import("/static/i18n.js");
            return Object.values(TEXTS).map((texts) => Object.keys(texts).sort());
        }""")
        self.assertEqual(len(names), 3)
        self.assertEqual(names[0], names[1])
        self.assertEqual(names[0], names[2])

    def test_undo_asks_where_the_last_act_is_another_one(self):
        self.fill()
        page = self.look()
        page.locator(".row", has_text="Olga").click()
        page.wait_for_selector("#detail .content")
        page.click("#forget")
        self.rows(page, len(NOTES) - 1)
        text = "The pier is closed on Monday"
        self.ask("POST", "/api/v1/memory", self.token("write"), json={"text": text})
        page.locator(".row", has_text=text).wait_for()
        page.keyboard.press("u")
        expect(page.locator("#toast")).to_contain_text(text)
        self.assertIn(text, self.kept())
        page.click("#take-back")
        page.locator(".row", has_text=text).wait_for(state="detached")
        self.assertNotIn(text, self.kept())

    def test_what_contradicts_is_marked_and_can_be_forgotten(self):
        self.fill()
        page = self.look()
        newer = "The staging database listens on port 5499"
        self.ask("POST", "/api/v1/memory", self.token("write"), json={
            "text": newer, "tags": ["staging", "database"]})
        page.locator(".row", has_text=newer).click()
        expect(page.locator("#detail h2.bad + ul")).to_have_text(NOTES[0][0])
        self.picture(page, "page-light")
        page.click("#tab-decide")
        page.locator(".versus > div", has_text=newer).locator(".button.bad").click()
        page.wait_for_selector("text=Nothing waits for a decision.")
        self.assertNotIn(newer, self.kept())

    def test_what_cannot_be_shown_is_a_plain_sentence(self):
        page = self.look()
        expect(page.locator(".state")).to_contain_text("Nothing is remembered yet.")
        page.fill("#search", "nowhere")
        expect(page.locator(".state")).to_contain_text("Nothing was found")
        page.route("**/api/v1/me", lambda route: route.abort())
        page.reload()
        expect(page.locator(".state")).to_contain_text("The server does not answer.")
        page.unroute("**/api/v1/me")
        page.click(".retry")
        expect(page.locator(".state")).to_contain_text("Nothing is remembered yet.")
        self.complaints[:] = [one for one in self.complaints if "ERR_FAILED" not in one]

    def test_without_a_token_it_asks_for_one_and_a_reader_gets_no_buttons(self):
        self.fill()
        page = self.look("read")
        page.wait_for_selector(".row")
        page.locator(".row").first.click()
        page.wait_for_selector("#detail .content")
        self.assertEqual(page.locator("#forget, #verify").count(), 0)
        page.evaluate("sessionStorage.clear()")
        page.goto(f"{self.url}/")
        page.wait_for_selector(".sign-in")
        page.fill("#token", self.token("read", "write"))
        page.keyboard.press("Enter")
        page.wait_for_selector(".row")


if __name__ == "__main__":
    unittest.main()
