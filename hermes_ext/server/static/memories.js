// What is known about memories beyond their rows: whose tags, what contradicts, what was replaced.

import { quietly } from "./api.js";

const OWN_TAGS = /^(lane|kind|lanes|entity|brain|concept)\//;
const MOST_PAIRS = 20;

// The tags that somebody gave, without those that a system made.
export function tagsOf(row) {
  return (row.tags ?? []).filter((tag) => !OWN_TAGS.test(tag));
}

// The ids of each two memories that contradict by the log of events, the older first.
export async function contradictions() {
  const events = await quietly("events tail", { limit: 1000 }) ?? [];
  const pairs = new Map();
  for (const { ids } of events.filter(({ type }) => type === "conflict")) {
    for (const older of ids.slice(1)) pairs.set([ids[0], older].sort().join(), [older, ids[0]]);
  }
  return [...pairs.values()];
}

// The newest of these pairs among *rows*, without the *settled* pairs of ids.
export async function openPairs(rows, settled) {
  const listed = new Set(settled.map((ids) => [...ids].sort().join()));
  const byId = new Map(rows.map((row) => [row.id, row]));
  return (await contradictions()).filter((ids) => !listed.has([...ids].sort().join()))
    .map((ids) => ids.map((id) => byId.get(id)))
    .filter(([older, newer]) => older && newer).slice(-MOST_PAIRS).reverse();
}

// Those of *rows* that contradict a memory.
export async function contradicting(rows, id) {
  const [lanes, pairs] = await Promise.all([quietly("conflicts"), contradictions()]);
  const ids = new Set([...(lanes ?? []).map((one) => one.ids), ...pairs]
    .filter((pair) => pair.includes(id)).flat());
  ids.delete(id);
  return rows.filter((row) => ids.has(row.id));
}

// What a memory has replaced, the newest first; what is gone has only its id.
export function replacedBy(rows, row) {
  const found = [];
  for (let id = row.supersedes; id && found.length < 10;) {
    const wanted = id;
    const older = rows.find((one) => one.id === wanted) ?? { id };
    found.push(older);
    id = older.supersedes;
  }
  return found;
}
