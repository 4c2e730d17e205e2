// The page: what the agent believes, to look at, to confirm, to decide and to forget.

import * as api from "./api.js";
import { $, el, fill } from "./dom.js";
import { drawGraph } from "./graph.js";
import { LANGUAGES, chooseLanguage, day, number, t } from "./i18n.js";
import { VirtualList } from "./list.js";
import { bars, days } from "./plots.js";

const TABS = ["memories", "review", "decide", "timeline", "graph", "stats"];
const MOST = 20000;        // memories that the page reads
const FIRST = 200;         // … of which these are shown while the others come

const state = { tab: "memories", rows: [], hits: null, whyEmpty: "", room: null, tag: null,
  agent: null, shown: null, me: null, isLoaded: false };
let list = null;
let searches = 0;

// -- reading ------------------------------------------------------------------

async function load() {
  if (!state.isLoaded) {
    state.rows = await api.run("list", { limit: FIRST });
    state.isLoaded = state.rows.length < FIRST;
    draw();
  }
  const rows = await api.run("list", { limit: MOST });
  state.rows = rows;
  state.isLoaded = true;
  draw();
}

async function search() {
  const query = $("search").value.trim();
  const turn = ++searches;
  if (!query) {
    state.hits = null;
    draw();
    return;
  }
  if (!["memories", "review"].includes(state.tab)) state.tab = "memories";
  const found = await api.run("recall", { query, top_k: 50 });
  if (turn !== searches) return;                 // a newer question has been asked
  state.hits = found.hits.map((hit) => ({ ...hit.memory, kept_until: keptUntil(hit.memory.id),
    hit }));
  state.whyEmpty = found.why_empty;
  draw();
}

function keptUntil(id) {
  return state.rows.find((row) => row.id === id)?.kept_until;
}

function filtered() {
  return (state.hits ?? state.rows).filter((row) => (
    (!state.room || row.room === state.room)
    && (!state.tag || (row.tags ?? []).includes(state.tag))
    && (!state.agent || row.agent === state.agent)
    && (state.tab !== "review" || !row.execution_verified)));
}

// -- drawing ------------------------------------------------------------------

function draw() {
  drawFrame();
  drawFilters();
  const view = $("view");
  const hasRows = ["memories", "review"].includes(state.tab);
  view.classList.toggle("rows", hasRows);
  $("filters").hidden = !hasRows && state.tab !== "timeline";
  if (hasRows) drawRows(view);
  else {
    list = null;
    ({ decide: drawDecisions, timeline: drawTimeline, graph: showGraph, stats: drawStats })[state.tab](
      view);
  }
}

function drawFrame() {
  $("search").placeholder = t("search");
  $("search").setAttribute("aria-label", t("search"));
  $("theme").setAttribute("aria-label", t("theme"));
  $("help-button").setAttribute("aria-label", t("help"));
  const waiting = state.rows.filter((row) => !row.execution_verified).length;
  fill($("tabs"), ...TABS.map((name) => el("button", { type: "button", role: "tab",
    id: `tab-${name}`, "aria-selected": String(state.tab === name), onclick: () => go(name) },
  t(name), name === "review" && waiting > 0 && el("span", { class: "count" }, number(waiting)))));
}

function drawFilters() {
  const rows = state.hits ?? state.rows;
  const parts = [["rooms", "room", (row) => [row.room]], ["tags", "tag", (row) => row.tags ?? []],
    ["agents", "agent", (row) => (row.agent ? [row.agent] : [])]];
  fill($("filters"), ...parts.flatMap(([title, key, valuesOf]) => {
    const counts = count(rows.flatMap(valuesOf)).slice(0, 30);
    if (!counts.length) return [];
    return [el("h2", {}, t(title)), ...counts.map(([name, amount]) => el("button", {
      type: "button", "aria-pressed": String(state[key] === name), title: name,
      onclick: () => { state[key] = state[key] === name ? null : name; draw(); } },
    el("span", {}, name), el("span", {}, number(amount))))];
  }));
}

function count(names) {
  const counts = new Map();
  for (const name of names) counts.set(name, (counts.get(name) ?? 0) + 1);
  return [...counts].sort((a, b) => b[1] - a[1] || a[0].localeCompare(b[0]));
}

function drawRows(view) {
  const rows = filtered();
  if (!rows.length) {
    list = null;
    fill(view, el("p", { class: "state" }, emptySentence()));
    return;
  }
  const why = state.hits ? t("found", number(rows.length)) : t("shown", number(rows.length));
  if (!list || !view.contains(list.node)) {
    list = new VirtualList(drawRow, (row) => openMemory(row.id), t("memories"));
    fill(view, el("div", { class: "why" }), list.node);
  }
  view.querySelector(".why").textContent = why;
  list.set(rows, state.shown);
}

function emptySentence() {
  if (!state.isLoaded) return t("loading");
  if (state.hits) return state.hits.length ? t("none") : t("nothing", state.whyEmpty || "–");
  if (!state.rows.length) return t("empty");
  return state.tab === "review" && !(state.room || state.tag || state.agent) ? t("reviewEmpty")
    : t("none");
}

function drawRow(row) {
  const kept = row.execution_verified ? el("span", { class: "good" }, t("verified"))
    : el("span", { class: "warn" }, row.kept_until ? t("until", day(row.kept_until)) : t("unverified"));
  return [el("span", { class: "text" }, row.content), el("span", { class: "facts" },
    row.hit && row.hit.confidence > 0
      && el("span", {}, t("sure", Math.round(row.hit.confidence * 100))),
    el("span", {}, day(row.created_at)), el("span", {}, row.room), kept,
    row.agent && el("span", {}, t("by", row.agent)),
    (row.tags ?? []).slice(0, 4).map((tag) => el("span", { class: "tag" }, `#${tag}`)))];
}

// -- one memory ---------------------------------------------------------------

async function openMemory(id) {
  state.shown = id;
  const [row, provenance, levels] = await Promise.all([
    api.run("show", { id }), quietly("provenance", { id }), quietly("brain levels", { id })]);
  if (state.shown !== id) return;
  const hit = state.hits?.find((each) => each.id === id)?.hit;
  const box = $("detail");
  fill(box,
    el("button", { type: "button", class: "plain close", "aria-label": t("close"),
      onclick: closeMemory }, "✕"),
    el("p", { class: "content" }, row.content),
    el("div", { class: "actions" },
      !row.execution_verified && may("review") && el("button", { type: "button",
        class: "button main", id: "verify", onclick: () => verify(id) }, t("verify")),
      may("write") && el("button", { type: "button", class: "button bad", id: "forget",
        onclick: () => forget(id) }, t("forget")),
      !may("write") && el("span", { class: "muted" }, t("readOnly"))),
    facts(row),
    section("why", (hit?.why?.because ?? []).map((one) => el("li", {}, one))),
    section("supersedes", row.supersedes ? [link(row.supersedes, row.supersedes)] : []),
    section("made_from", (levels?.[0]?.cases ?? []).map(linkTo)),
    section("made_into", (levels?.[0]?.drawn ?? []).map(linkTo)),
    section("acts", (provenance?.acts ?? []).map((act) => el("li", {},
      `${day(act.at)} · ${act.what} · ${act.surface}${act.agent ? ` · ${act.agent}` : ""}`))));
  box.hidden = false;
}

function facts(row) {
  const meta = row.meta ?? {};
  const pairs = [["room", row.room], ["made", day(row.created_at)], ["source", row.source],
    ["agent", row.agent], ["importance", row.importance],
    ["kept", keptSentence(row)],
    ["used", row.access_count ? t("usedTimes", row.access_count, day(row.last_accessed))
      : t("never")],
    ["tags", (row.tags ?? []).join(", ")], ["lane", meta.lanes?.lane], ["origin", meta.lanes?.origin],
    ["strength", meta.brain?.strength_now], ["score", meta.salience?.now],
    ["hidden", (row.redacted ?? []).join(", ")]];
  return el("dl", {}, ...pairs.filter(([, value]) => value !== undefined && value !== null && value !== "")
    .flatMap(([name, value]) => [el("dt", {}, t(name)), el("dd", {}, String(value))]),
  el("dt", {}, "id"), el("dd", {}, row.id));
}

function keptSentence(row) {
  const until = keptUntil(row.id);
  const kept = until ? t("until", day(until)) : t("forever");
  return row.execution_verified ? `${t("verified")}, ${kept}` : kept;
}

function section(title, items) {
  return items.length > 0 && [el("h2", {}, t(title)), el("ul", { class: "plain-list" }, items)];
}

function link(id, text) {
  return el("li", {}, el("button", { type: "button", class: "link", onclick: () => openMemory(id) },
    text));
}

function linkTo(one) {
  const memory = one.memory ?? one;
  return link(memory.id, memory.content ?? memory.id);
}

function closeMemory() {
  state.shown = null;
  $("detail").hidden = true;
}

// -- acting -------------------------------------------------------------------

function may(scope) {
  const scopes = state.me?.scopes ?? [];
  return scopes.includes(scope) || scopes.includes("admin");
}

async function act(work, sentence, canUndo = true) {
  try {
    await work();
    toast(sentence, canUndo);
    await load();
  } catch (problem) {
    fail(problem);
  }
}

function verify(id) {
  return act(async () => {
    await api.run("verify", { id: [id] });
    if (state.shown === id) await openMemory(id);
    markVerified(id);
  }, t("isVerified"));
}

function markVerified(id) {
  for (const row of [...state.rows, ...(state.hits ?? [])]) {
    if (row.id === id) row.execution_verified = true;
  }
}

function forget(id) {
  return act(async () => {
    await api.run("forget", { id });
    state.rows = state.rows.filter((row) => row.id !== id);
    state.hits = state.hits?.filter((row) => row.id !== id) ?? null;
    if (state.shown === id) closeMemory();
  }, t("forgotten"));
}

async function undo() {
  hideToast();
  await act(async () => {
    const done = await api.run("undo");
    toast(t("undone", done.what), false);
    await search();
  }, t("undo"), false);
}

let toastEnd = 0;

function toast(sentence, canUndo) {
  const box = $("toast");
  fill(box, el("span", {}, sentence), canUndo && el("button", { type: "button", id: "undo",
    onclick: undo }, t("undo")));
  box.hidden = false;
  clearTimeout(toastEnd);
  toastEnd = setTimeout(hideToast, 8000);
}

function hideToast() {
  $("toast").hidden = true;
}

function fail(problem) {
  if (problem.status === 401) signIn();
  else if (problem instanceof api.ApiError) toast(t("failed", problem.message), false);
  else toast(t("away"), false);
}

// Ask for what a system may not be there for; null then.
async function quietly(name, args) {
  try {
    return await api.run(name, args);
  } catch (problem) {
    if (problem instanceof api.ApiError && problem.status !== 401) return null;
    throw problem;
  }
}

// -- decisions ----------------------------------------------------------------

async function drawDecisions(view) {
  fill(view, el("p", { class: "state" }, t("loading")));
  const [rules, facts, conflicts] = await Promise.all([
    quietly("pending-rules"), quietly("pending"), quietly("conflicts")]);
  if (state.tab !== "decide") return;
  if (rules === null && conflicts === null) {
    fill(view, el("p", { class: "state" }, t("off", "lanes")));
    return;
  }
  const cards = [
    ...titled("rules", (rules ?? []).map((rule) => waiting(rule, rule.text,
      () => api.run("approve-rule", { rule_id: rule.id, fingerprint: rule.fingerprint }),
      () => api.run("reject-rule", { rule_id: rule.id })))),
    ...titled("facts", (facts ?? []).map((fact) => waiting(fact, fact.content,
      () => api.run("approve", { ids: [fact.id], fingerprint: fact.fingerprint }),
      () => api.run("reject", { ids: [fact.id] })))),
    ...titled("conflicts", (conflicts ?? []).map(conflictCard))];
  fill(view, ...(cards.length ? cards : [el("p", { class: "state" }, t("decideEmpty"))]));
}

function titled(title, cards) {
  return cards.length ? [el("h2", { class: "title" }, t(title)), ...cards] : [];
}

function waiting(row, text, approve, reject) {
  const decide = (work, sentence) => act(async () => {
    await work();
    await drawDecisions($("view"));
  }, sentence);
  return el("div", { class: "card", "data-id": row.id }, el("p", {}, text),
    el("p", { class: "muted" }, [row.origin, row.lane, row.waits_for].filter(Boolean).join(" · ")),
    may("review") && el("div", { class: "actions" },
      el("button", { type: "button", class: "button main approve",
        onclick: () => decide(approve, t("approved")) }, t("approve")),
      el("button", { type: "button", class: "button bad reject",
        onclick: () => decide(reject, t("rejected")) }, t("reject"))));
}

function conflictCard(conflict) {
  const texts = conflict.contents ?? conflict.memories?.map((one) => one.content) ?? [];
  const ids = conflict.ids ?? conflict.memories?.map((one) => one.id) ?? [];
  return el("div", { class: "card" },
    el("p", { class: "muted" }, [conflict.lane, conflict.slot].filter(Boolean).join(" · ")),
    ...ids.map((id, index) => el("div", {}, el("p", {}, texts[index]),
      may("review") && el("div", { class: "actions" }, el("button", { type: "button",
        class: "button", onclick: () => act(async () => {
          await api.run("resolve-conflict", { keep: id, drop: ids.filter((other) => other !== id) });
          await drawDecisions($("view"));
        }, t("settled")) }, t("keep"))))));
}

// -- timeline, graph, numbers -------------------------------------------------

function drawTimeline(view) {
  const rows = filtered();
  if (!rows.length) {
    fill(view, el("p", { class: "state" }, emptySentence()));
    return;
  }
  const byDay = new Map();
  for (const row of rows) {
    const key = row.created_at.slice(0, 10);
    byDay.set(key, [...(byDay.get(key) ?? []), row]);
  }
  const newest = [...byDay.keys()].sort().reverse();
  fill(view, days(t("perDay"), daySpan(byDay)), ...newest.slice(0, 60).map((key) => el(
    "div", { class: "card" }, el("h2", { class: "title" }, day(key)), el("ul", { class: "plain-list" },
      byDay.get(key).slice(0, 20).map(linkTo)))));
}

function daySpan(byDay) {
  const known = [...byDay.keys()].sort();
  const end = new Date(`${known.at(-1)}T00:00:00Z`);
  const length = Math.min(90, Math.round((end - new Date(`${known[0]}T00:00:00Z`)) / 864e5) + 1);
  return Array.from({ length }, (_, index) => {
    const key = new Date(end - (length - 1 - index) * 864e5).toISOString().slice(0, 10);
    return [key, byDay.get(key)?.length ?? 0];
  });
}

async function showGraph(view) {
  fill(view, el("p", { class: "state" }, t("loading")));
  try {
    await drawGraph(view, openMemory);
  } catch (problem) {
    fail(problem);
  }
}

async function drawStats(view) {
  const numbers = await api.run("stats").catch(fail);
  if (!numbers || state.tab !== "stats") return;
  const soon = Object.values(numbers.expire_within_7_days ?? {}).reduce((a, b) => a + b, 0);
  const size = `${number(Math.round((numbers.bytes?.total ?? 0) / 1024))} KB`;
  const pairs = [["total", number(numbers.total)], ["verifiedCount", number(numbers.verified)],
    ["expiring", number(soon)], ["size", size]];
  fill(view, el("div", { class: "card" }, el("dl", {}, ...pairs.flatMap(([name, value]) => [
    el("dt", {}, t(name)), el("dd", {}, value)]))),
  bars(t("perRoom"), Object.entries(numbers.rooms)),
  ...chart("perTag", (row) => row.tags ?? []), ...chart("perAgent", (row) => (
    row.agent ? [row.agent] : [])));
}

function chart(title, valuesOf) {
  const counts = count(state.rows.flatMap(valuesOf)).slice(0, 12);
  return counts.length ? [bars(t(title), counts)] : [];
}

// -- keys, signing in, start --------------------------------------------------

function go(tab) {
  state.tab = tab;
  draw();
  $("view").focus({ preventScroll: true });
}

function pressed(event) {
  const isTyping = event.target.matches("input, select, textarea");
  if (event.key === "Escape") {
    if (isTyping) event.target.blur();
    else closeMemory();
    return;
  }
  if (isTyping && event.target === $("search") && ["ArrowDown", "Enter"].includes(event.key)) {
    list?.select(0, event.key === "Enter");
    list?.node.focus();
    return;
  }
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
  const keys = { "/": () => $("search").focus(), j: () => list?.select(list.selected + 1),
    k: () => list?.select(list.selected - 1), ArrowDown: () => list?.select(list.selected + 1),
    ArrowUp: () => list?.select(list.selected - 1),
    Enter: () => list && list.selected >= 0 && list.select(list.selected, true),
    v: () => selectedId() && verify(selectedId()), f: () => selectedId() && forget(selectedId()),
    u: undo, "?": showHelp };
  TABS.forEach((name, index) => { keys[String(index + 1)] = () => go(name); });
  const isButton = event.target.matches("button") && event.key === "Enter";
  if (keys[event.key] && !isButton) {
    event.preventDefault();
    keys[event.key]();
  }
}

function selectedId() {
  return state.shown ?? (list && list.selected >= 0 ? list.rows[list.selected].id : null);
}

function showHelp() {
  const rows = [["/", "search"], ["j k", "move"], ["Enter", "open"], ["v", "verify"], ["f", "forget"],
    ["u", "undo"], ["1 – 6", "tab"], ["Esc", "close"]];
  fill($("help"), el("h2", { class: "title" }, t("keys")), el("dl", {}, ...rows.flatMap(
    ([key, name]) => [el("dt", {}, el("kbd", {}, key)), el("dd", {}, t(`key_${name}`))])),
  el("form", { method: "dialog", class: "actions" }, el("button", { class: "button" }, t("close"))));
  $("help").showModal();
}

function signIn() {
  api.dropToken();
  const field = el("input", { type: "password", id: "token", "aria-label": t("token"),
    autocomplete: "off" });
  $("view").classList.remove("rows");
  $("filters").hidden = true;
  fill($("view"), el("form", { class: "card sign-in", onsubmit: (event) => {
    event.preventDefault();
    api.keepToken(field.value);
    start();
  } }, el("h2", { class: "title" }, t("signIn")), el("p", {}, t("signInHow")), field,
  el("button", { class: "button main" }, t("open"))));
  field.focus();
}

function toggleTheme() {
  const root = document.documentElement;
  const isDark = root.dataset.theme ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = isDark ? "light" : "dark";
  localStorage.setItem("hermes-theme", root.dataset.theme);
  if (state.tab === "graph") draw();
}

function later(work, milliseconds) {
  let end = 0;
  return () => {
    clearTimeout(end);
    end = setTimeout(work, milliseconds);
  };
}

async function start() {
  drawFrame();
  if (!api.takeToken()) {
    signIn();
    return;
  }
  try {
    state.me = await api.me();
    await load();
    api.listen(later(() => load().catch(fail), 400));
  } catch (problem) {
    fail(problem);
  }
}

const theme = localStorage.getItem("hermes-theme");
if (theme) document.documentElement.dataset.theme = theme;
chooseLanguage();
fill($("language"), ...LANGUAGES.map(([code, name]) => el("option", { value: code,
  selected: code === document.documentElement.lang }, name)));
$("language").setAttribute("aria-label", "Language");
$("language").addEventListener("change", (event) => { chooseLanguage(event.target.value); draw(); });
$("theme").addEventListener("click", toggleTheme);
$("help-button").addEventListener("click", showHelp);
$("search").addEventListener("input", later(() => search().catch(fail), 120));
document.addEventListener("keydown", pressed);
start();
