// The page: what the agent believes, to look at, to confirm, to decide and to forget.

import * as api from "./api.js";
import { $, el, fill, marked } from "./dom.js";
import { drawGraph } from "./graph.js";
import { LANGUAGES, chooseLanguage, day, moment, number, t, tOr } from "./i18n.js";
import { VirtualList } from "./list.js";
import { contradicting, openPairs, replacedBy, tagsOf } from "./memories.js";
import { bars, days } from "./plots.js";

const TABS = ["memories", "review", "decide", "timeline", "graph", "stats"];
const MOST = 20000;        // memories that the page reads
const FIRST = 200;         // … of which these are shown while the others come
const MOST_CHANGED = 40;   // more changes than that, and all are read again
const EVENTS_MS = 1000;    // how often the page reads again at most, while others write

// The audit log names these, too; who reads a history asks for what changed the memory.
const READS = new Set(["brain levels", "concept show", "concept list", "timeline", "conflicts",
  "pending", "pending-rules", "active-rules", "rule-conflicts", "anchors", "score", "stale"]);

const state = { tab: "memories", rows: [], hits: null, whyEmpty: "", room: null, tag: null,
  agent: null, shown: null, me: null, isLoaded: false, problem: null, topic: "",
  mine: null };            // ids of this page's last act: `undo` takes it back unasked
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

// Read again what an act has changed; all, where that is much or unknown.
async function refresh(ids, gone = new Set()) {
  if (!ids || ids.length > MOST_CHANGED || !state.isLoaded) {
    await load();
    return;
  }
  const newest = await api.run("list", { limit: FIRST });
  const fresh = new Map(newest.map((row) => [row.id, row]));
  const others = await Promise.all(ids.filter((id) => !fresh.has(id) && !gone.has(id)).map(
    (id) => api.quietly("show", { id })));
  for (const row of others.filter(Boolean)) {
    fresh.set(row.id, { ...row, kept_until: row.meta?.lanes?.until ?? keptUntil(row.id) });
  }
  const changed = new Set(ids);
  const kept = state.rows.filter((row) => !fresh.has(row.id) && !changed.has(row.id));
  state.rows = [...fresh.values(), ...kept].sort((a, b) => (
    b.created_at.localeCompare(a.created_at) || b.id.localeCompare(a.id)));
  if (gone.has(state.shown) && !fresh.has(state.shown)) closeMemory();
  state.hits = state.hits?.filter((row) => fresh.has(row.id) || !changed.has(row.id))
    .map((row) => ({ ...row, ...fresh.get(row.id) })) ?? null;
  redraw();
}

// Draw what follows the memories; a graph or a plot that somebody looks at stays as it is.
function redraw() {
  if (["graph", "stats"].includes(state.tab)) drawFrame();
  else draw();
}

const changedByOthers = new Map();         // id -> what was done last
let readingLater = 0;

function heard(event) {
  event.ids.forEach((id) => changedByOthers.set(id, event.type));
  if (readingLater) return;
  readingLater = setTimeout(() => {
    readingLater = 0;
    const ids = [...changedByOthers.keys()];
    const gone = new Set(ids.filter((id) => changedByOthers.get(id) === "forget"));
    changedByOthers.clear();
    refresh(ids, gone).catch(fail);
  }, EVENTS_MS);
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
  const filters = { room: state.room, tags: state.tag ? [state.tag] : null, agent: state.agent };
  const found = await api.run("recall", { query, top_k: 50, ...filters });
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
  view.setAttribute("aria-labelledby", `tab-${state.tab}`);
  view.classList.toggle("rows", hasRows);
  $("filters").hidden = !hasRows && !["timeline", "graph"].includes(state.tab);
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
    id: `tab-${name}`, "aria-selected": String(state.tab === name), "aria-controls": "view",
    tabindex: state.tab === name ? "0" : "-1", onclick: () => go(name) },
  t(name), name === "review" && waiting > 0 && el("span", { class: "count" }, number(waiting)))));
}

function drawFilters() {
  const rows = state.hits ?? state.rows;
  const parts = [["rooms", "room", (row) => [row.room]], ["tags", "tag", tagsOf],
    ["agents", "agent", (row) => (row.agent ? [row.agent] : [])]];
  fill($("filters"), ...parts.flatMap(([title, key, valuesOf]) => {
    const counts = count(rows.flatMap(valuesOf)).slice(0, 30);
    const chosen = state[key];
    if (chosen && !counts.some(([name]) => name === chosen)) counts.unshift([chosen, 0]);
    if (!counts.length) return [];
    return [el("h2", {}, t(title)), ...counts.map(([name, amount]) => el("button", {
      type: "button", id: `${key}-${name}`, title: name, class: key,
      "aria-pressed": String(chosen === name), "data-room": key === "room" && name,
      onclick: () => filter(key, chosen === name ? null : name) },
    el("span", {}, key === "tag" ? `#${name}` : name), el("span", {}, number(amount))))];
  }));
}

function filter(key, value) {
  state[key] = value;
  draw();
  if (state.hits) search().catch(fail);
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
    fill(view, el("p", { class: "state", lang: state.hits && state.whyEmpty ? "en" : null },
      emptySentence()), state.problem && el("button", { type: "button", class: "button retry",
      onclick: start }, t("retry")));
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
  if (state.problem) return state.problem;
  if (!state.isLoaded) return t("loading");
  if (state.hits) return state.hits.length ? t("none") : t("nothing", state.whyEmpty || "–");
  if (!state.rows.length) return t("empty");
  return state.tab === "review" && !(state.room || state.tag || state.agent) ? t("reviewEmpty")
    : t("none");
}

function drawRow(row) {
  const kept = row.execution_verified ? el("span", { class: "good" }, t("verified"))
    : el("span", { class: "warn" }, row.kept_until ? t("until", day(row.kept_until)) : t("unverified"));
  return [el("span", { class: "text", dir: "auto" }, marked(row.content, row.hit?.why?.words)),
    el("span", { class: "facts" }, el("span", { class: "room", "data-room": row.room }, row.room),
      el("span", {}, day(row.created_at)), kept,
      row.hit && row.hit.confidence > 0
        && el("span", {}, t("sure", Math.round(row.hit.confidence * 100))),
      (row.tags ?? []).includes("lanes/held") && el("span", { class: "warn" }, t("waits")),
      row.agent && el("span", {}, t("by", row.agent)),
      tagsOf(row).slice(0, 4).map((tag) => el("span", { class: "tag" }, `#${tag}`)))];
}

// -- one memory ---------------------------------------------------------------

async function openMemory(id) {
  state.shown = id;
  const [row, provenance, levels, conflicts] = await Promise.all([
    api.run("show", { id }), api.quietly("provenance", { id }),
    api.quietly("brain levels", { id }), contradicting(state.rows, id)]);
  if (state.shown !== id) return;
  const sameTag = state.rows.filter((other) => other.id !== id && tagsOf(row).length
    && tagsOf(other).includes(tagsOf(row)[0])).slice(0, 4);
  const hit = state.hits?.find((each) => each.id === id)?.hit;
  const box = $("detail");
  fill(box,
    el("button", { type: "button", class: "plain close", "aria-label": t("close"),
      onclick: closeMemory }, "✕"),
    el("p", { class: "content", dir: "auto" }, row.content),
    el("div", { class: "actions" },
      !row.execution_verified && may("review") && el("button", { type: "button",
        class: "button main", id: "verify", onclick: () => verify(id) }, t("verify")),
      may("write") && el("button", { type: "button", class: "button bad", id: "forget",
        onclick: () => forget(id) }, t("forget")),
      !may("write") && el("span", { class: "muted" }, t("readOnly"))),
    facts(row, provenance),
    tagsOf(row).length > 0 && el("p", { class: "chips" }, tagsOf(row).map((tag) => el("button", {
      type: "button", class: "chip", onclick: () => showTag(tag) }, `#${tag}`))),
    section("contradicts", conflicts.map(linkTo), "bad"),
    section("why", (hit?.why?.because ?? []).map((one) => el("li", {}, one))),
    section("supersedes", replacedBy(state.rows, row).map(linkTo)),
    section("made_from", (levels?.[0]?.cases ?? []).map(linkTo)),
    section("made_into", (levels?.[0]?.drawn ?? []).map(linkTo)),
    section("same_tag", sameTag.map(linkTo)),
    section("acts", (provenance?.acts ?? []).filter((act) => !READS.has(act.what)).map(actItem),
      "history"),
    !provenance?.audited && el("p", { class: "muted" }, t("notAudited")));
  box.hidden = false;
}

function actItem(act) {
  return el("li", {}, el("time", { datetime: act.at }, moment(act.at)),
    el("strong", {}, tOr(`act_${act.what}`, act.what)),
    el("span", { class: "muted" }, [act.agent, act.surface, act.why].filter(Boolean).join(" · ")));
}

function showTag(tag) {
  $("search").value = "";
  Object.assign(state, { hits: null, room: null, agent: null, tag, tab: "memories" });
  draw();
}

function facts(row, provenance) {
  const meta = row.meta ?? {};
  const authority = provenance?.authority;
  const pairs = [["room", row.room], ["made", moment(row.created_at)], ["source", row.source],
    ["session", provenance?.session],
    ["agent", row.agent], ["importance", row.importance],
    ["kept", keptSentence(row)],
    ["used", row.access_count ? t("usedTimes", row.access_count, day(row.last_accessed))
      : t("never")],
    ["lane", meta.lanes?.lane], ["origin", meta.lanes?.origin],
    ["confidence", authority && `${Math.round(authority.confidence * 100)} %`],
    ["seal", authority && t(authority.sealed ? "sealed" : "notSealed")],
    ["strength", meta.brain?.strength_now], ["score", meta.salience?.now],
    ["hidden", (row.redacted ?? []).join(", ")]];
  return el("dl", {}, ...pairs.filter(([, value]) => value !== undefined && value !== null && value !== "")
    .flatMap(([name, value]) => [el("dt", {}, t(name)), el("dd", {}, String(value))]),
  el("dt", {}, "id"), el("dd", {}, row.id));
}

function keptSentence(row) {
  const until = row.meta?.lanes?.until ?? keptUntil(row.id);
  const kept = until ? t("until", day(until)) : t("forever");
  return row.execution_verified ? `${t("verified")}, ${kept}` : kept;
}

function section(title, items, kind = "") {
  return items.length > 0 && [el("h2", { class: kind }, t(title)),
    el("ul", { class: `plain-list ${kind}` }, items)];
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
  const hadFocus = $("detail").contains(document.activeElement);
  state.shown = null;
  $("detail").hidden = true;
  if (hadFocus) (list?.node ?? $("view")).focus({ preventScroll: true });
}

// -- acting -------------------------------------------------------------------

function may(scope) {
  const scopes = state.me?.scopes ?? [];
  return scopes.includes(scope) || scopes.includes("admin");
}

// Do something to memories, say so, and read them again; *ids* are those that `undo` brings back.
async function act(work, sentence, ids, gone) {
  try {
    await work();
    state.mine = ids;
    toast(sentence, may("write") && ids.length > 0);
    await refresh(ids, gone);
  } catch (problem) {
    fail(problem);
  }
}

function verify(id) {
  if (!may("review")) return toast(t("needs", "review"), false);
  return act(async () => {
    await api.run("verify", { id: [id] });
    if (state.shown === id) await openMemory(id);
    markVerified(id);
  }, t("isVerified"), [id]);
}

function markVerified(id) {
  for (const row of [...state.rows, ...(state.hits ?? [])]) {
    if (row.id === id) row.execution_verified = true;
  }
}

function forget(id) {
  if (!may("write")) return toast(t("needs", "write"), false);
  return act(async () => {
    await api.run("forget", { id });
    state.rows = state.rows.filter((row) => row.id !== id);
    state.hits = state.hits?.filter((row) => row.id !== id) ?? null;
    if (state.shown === id) closeMemory();
    redraw();
  }, t("forgotten"), [id], new Set([id]));
}

// Take back the last act of this page. Where another came after it, by whomever, ask first.
async function undo() {
  hideToast();
  try {
    const last = await api.run("undo", { dry_run: true });
    const touched = [...(last.restored ?? []), ...(last.removed ?? [])];
    if (state.mine?.some((id) => touched.includes(id))) await takeBack();
    else toast(t("undoOther", [last.what, ...(last.texts ?? []).slice(0, 1)].join(" – ")), false,
      takeBack);
  } catch (problem) {
    fail(problem);
  }
}

async function takeBack() {
  hideToast();
  try {
    const done = await api.run("undo");
    state.mine = null;
    toast(t("undone", done.what), false);
    await refresh(done.restored && [...done.restored, ...done.removed], new Set(done.removed));
    await search();
    if (state.shown) await openMemory(state.shown);
  } catch (problem) {
    fail(problem);
  }
}

let toastEnd = 0;

function toast(sentence, canUndo, answer = null) {
  const box = $("toast");
  fill(box, el("span", {}, sentence), canUndo && el("button", { type: "button", id: "undo",
    onclick: undo }, t("undo")), answer && el("button", { type: "button", id: "take-back",
    onclick: answer }, t("takeBack")));
  box.hidden = false;
  clearTimeout(toastEnd);
  toastEnd = setTimeout(hideToast, 10_000);
}

function hideToast() {
  $("toast").hidden = true;
}

function fail(problem) {
  if (problem.status === 401) signIn();
  else toast(sentenceOf(problem), false);
}

function sentenceOf(problem) {
  if (problem instanceof api.ApiError) return t("failed", problem.message);
  return t("away");
}

// -- decisions ----------------------------------------------------------------

let drawings = 0;          // of decisions: the newest wins

async function drawDecisions(view) {
  const turn = ++drawings;
  if (!view.querySelector(".card[data-id]")) {
    fill(view, el("p", { class: "state" }, t("loading")));
  }
  const [rules, facts, conflicts, active] = await Promise.all([
    api.quietly("pending-rules"), api.quietly("pending"), api.quietly("conflicts"),
    api.quietly("active-rules")]);
  const pairs = await openPairs(state.rows, (conflicts ?? []).map((one) => one.ids));
  if (state.tab !== "decide" || turn !== drawings) return;
  const cards = [
    ...titled("rules", (rules ?? []).map((rule) => waiting(rule, rule.text, (more) => api.run(
      "approve-rule", { rule_id: rule.id, fingerprint: rule.fingerprint, ...more }),
      () => api.run("reject-rule", { rule_id: rule.id })))),
    ...titled("facts", (facts ?? []).map((fact) => waiting(fact, fact.content,
      () => api.run("approve", { ids: [fact.id], fingerprint: fact.fingerprint }),
      () => api.run("reject", { ids: [fact.id] })))),
    ...titled("conflicts", (conflicts ?? []).map(conflictCard)),
    ...titled("perhaps", pairs.map(pairCard))];
  fill(view, ...(cards.length ? cards : [el("p", { class: "state" },
    rules === null && conflicts === null ? t("off", "lanes") : t("decideEmpty"))]),
  ...titled("holding", (active ?? []).map(activeCard)));
}

function activeCard(rule) {
  return el("div", { class: "card", "data-id": rule.id }, el("p", { dir: "auto" }, rule.text),
    el("p", { class: "muted" }, whenOf(rule)),
    may("review") && el("div", { class: "actions" }, el("button", {
      type: "button", class: "button",
      onclick: () => act(() => api.run("retire-rule", { rule_id: rule.id }), t("retired"),
        [rule.id]) }, t("retire"))));
}

function whenOf(row) {
  if (!row.triggers) return "";
  return row.triggers.length ? t("when", row.triggers.join(", ")) : t("always");
}

// Two memories that contradict by their words; the one that is wrong can be forgotten.
function pairCard(two) {
  return el("div", { class: "card versus", "data-id": two[0].id }, two.map((row) => el("div", {},
    el("p", {}, el("button", { type: "button", class: "link", dir: "auto",
      onclick: () => openMemory(row.id) }, row.content)),
    el("p", { class: "muted" },
      [day(row.created_at), row.room, row.agent].filter(Boolean).join(" · ")),
    may("write") && el("div", { class: "actions" }, el("button", { type: "button",
      class: "button bad", onclick: () => forget(row.id) }, t("forgetThis"))))));
}

function titled(title, cards) {
  return cards.length ? [el("h2", { class: "title" }, t(title)), ...cards] : [];
}

function waiting(row, text, approve, reject) {
  const decide = (work, sentence, gone) => act(work, sentence, [row.id], gone);
  const approving = async () => {
    try {
      await approve();
    } catch (problem) {
      if (problem.reason !== "rule_conflict") throw problem;
      offerAnyway(row.id, () => decide(() => approve({ ack_interactions: true }), t("approved")));
      throw problem;
    }
  };
  return el("div", { class: "card", "data-id": row.id }, el("p", { dir: "auto" }, text),
    el("p", { class: "muted" },
      [whenOf(row), row.origin, row.lane, row.waits_for].filter(Boolean).join(" · ")),
    may("review") && el("div", { class: "actions" },
      el("button", { type: "button", class: "button main approve",
        onclick: () => decide(approving, t("approved")) }, t("approve")),
      el("button", { type: "button", class: "button bad reject",
        onclick: () => decide(reject, t("rejected"), new Set([row.id])) }, t("reject"))));
}

// A rule that touches others needs a second word of the person.
function offerAnyway(id, approve) {
  const card = document.querySelector(`.card[data-id="${CSS.escape(id)}"] .approve`);
  card?.replaceWith(el("button", { type: "button", class: "button anyway", onclick: approve },
    t("anyway")));
}

function conflictCard(conflict) {
  const { ids, contents: texts } = conflict;
  return el("div", { class: "card versus", "data-id": ids[0] },
    el("p", { class: "muted" }, [conflict.lane, conflict.slot].filter(Boolean).join(" · ")),
    ...ids.map((id, index) => el("div", {}, el("p", {}, el("button", { type: "button",
      class: "link", dir: "auto", onclick: () => openMemory(id) }, texts[index])),
      may("review") && el("div", { class: "actions" }, el("button", { type: "button",
        class: "button", onclick: () => act(
          () => api.run("resolve-conflict",
            { keep: id, drop: ids.filter((other) => other !== id) }),
          t("settled"), ids) }, t("keep"))))));
}

// -- timeline, graph, numbers -------------------------------------------------

function drawTimeline(view) {
  if (state.topic) {
    showTopic(view).catch(fail);
    return;
  }
  const rows = filtered();
  if (!rows.length) {
    fill(view, topicForm(), el("p", { class: "state" }, emptySentence()));
    return;
  }
  const byDay = new Map();
  for (const row of rows) {
    const key = row.created_at.slice(0, 10);
    byDay.set(key, [...(byDay.get(key) ?? []), row]);
  }
  const newest = [...byDay.keys()].sort().reverse();
  const cards = newest.slice(0, 60).map((key) => el("div", { class: "card" },
    el("h2", { class: "title" }, day(key)),
    el("ul", { class: "plain-list" }, byDay.get(key).slice(0, 20).map(linkTo))));
  fill(view, topicForm(), days(t("perDay"), daySpan(byDay)), cards);
}

// How one matter developed: first, turns, latest.
async function showTopic(view) {
  const { topic } = state;
  const found = await api.quietly("timeline", { concept: topic });
  if (state.tab !== "timeline" || state.topic !== topic) return;
  const moments = found?.moments ?? [];
  fill(view, topicForm(), moments.length ? el("ol", { class: "moments" }, moments.map(momentItem))
    : el("p", { class: "state" }, t("topicEmpty", topic)));
}

function momentItem({ kind, memory }) {
  return el("li", { class: kind },
    el("span", { class: "muted" }, `${t(`moment_${kind}`)} · ${day(memory.created_at)}`),
    el("button", { type: "button", class: "link", dir: "auto",
      onclick: () => openMemory(memory.id) }, memory.content));
}

function topicForm() {
  if (!state.me?.systems.includes("brain")) return null;
  const field = el("input", { id: "topic", value: state.topic, list: "topics", autocomplete: "off",
    placeholder: t("topicAll"), "aria-label": t("topic") });
  const names = count(state.rows.flatMap(tagsOf)).slice(0, 100);
  return el("form", { class: "topic", onsubmit: (event) => {
    event.preventDefault();
    state.topic = field.value.trim();
    draw();
  } }, field,
  el("datalist", { id: "topics" }, names.map(([name]) => el("option", { value: name }))),
  el("button", { class: "button" }, t("topic")));
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
    await drawGraph(view, filtered(), { openMemory, showTag, hasBrain:
      state.me.systems.includes("brain") });
  } catch (problem) {
    fail(problem);
  }
}

async function drawStats(view) {
  fill(view, el("p", { class: "state" }, t("loading")));
  const numbers = await api.run("stats").catch(fail);
  if (!numbers || state.tab !== "stats") return;
  const soon = Object.values(numbers.expire_within_7_days ?? {}).reduce((a, b) => a + b, 0);
  const size = `${number(Math.round((numbers.bytes?.total ?? 0) / 1024))} KB`;
  const pairs = [["total", number(numbers.total)], ["verifiedCount", number(numbers.verified)],
    ["expiring", number(soon)], ["size", size]];
  fill(view, el("div", { class: "card" }, el("dl", {}, ...pairs.flatMap(([name, value]) => [
    el("dt", {}, t(name)), el("dd", {}, value)]))),
  bars(t("perRoom"), Object.entries(numbers.rooms)),
  ...chart("perTag", tagsOf), ...chart("perAgent", (row) => (
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
  if (document.querySelector("dialog[open]")) return;
  if (event.key === "Escape") {
    if (isTyping) event.target.blur();
    else closeMemory();
    return;
  }
  if (event.target.closest("#tabs") && ["ArrowLeft", "ArrowRight"].includes(event.key)) {
    const place = TABS.indexOf(state.tab) + (event.key === "ArrowLeft" ? -1 : 1);
    go(TABS.at(place % TABS.length));
    $(`tab-${state.tab}`).focus();
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
  state.problem = null;
  drawFrame();
  if (!api.takeToken()) {
    signIn();
    return;
  }
  try {
    state.me = await api.me();
    await load();
    api.listen(heard);
  } catch (problem) {
    if (problem.status === 401) signIn();
    else {
      state.problem = sentenceOf(problem);
      drawRows($("view"));
    }
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
