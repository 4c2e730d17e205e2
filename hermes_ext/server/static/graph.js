// The graph: the newest memories and what connects them, drawn by cytoscape.

import { quietly, run } from "./api.js";
import { el, fill } from "./dom.js";
import { t } from "./i18n.js";
import { contradictions, tagsOf } from "./memories.js";

const MEMORIES = 120;
const NAMES = 20;          // names in texts that are looked up
const LINKED = 20;         // concepts whose relations are looked up
const LISTED = 40;

export async function drawGraph(view, rows, { openMemory, showTag, hasBrain }) {
  const graph = await readGraph(rows.slice(0, MEMORIES), hasBrain);
  if (!graph.concepts.size) {
    fill(view, el("p", { class: "state" }, t("graphEmpty")));
    return;
  }
  const box = el("div", { class: "graph", role: "img", "aria-label": t("graphHow") });
  const listed = [...graph.concepts.values()].sort((a, b) => b.count - a.count).slice(0, LISTED);
  fill(view, el("p", { class: "legend muted" }, t("graphHow"),
    ["memory", "concept", "conflict"].map((kind) => el("span", { class: `key ${kind}` },
      t(`legend_${kind}`)))), box,
  el("p", { class: "chips" }, listed.map(({ name, count, isTag }) => (isTag
    ? el("button", { type: "button", class: "chip", onclick: () => showTag(name) },
      `#${name} ${count}`) : el("span", { class: "chip" }, `${name} ${count}`)))));
  view.graph = picture(box, graph, openMemory);
}

// Tags, names in texts and defined concepts are nodes beside the memories.
async function readGraph(memories, hasBrain) {
  const graph = { memories, concepts: new Map(), edges: new Map() };
  const known = new Set(memories.map(({ id }) => id));
  for (const memory of memories) {
    for (const tag of tagsOf(memory)) join(graph, tag, memory.id, true);
    if (known.has(memory.supersedes)) addEdge(graph, memory.id, memory.supersedes, "replaces");
  }
  const [names, pairs] = await Promise.all([run("graph", { top: NAMES }), contradictions(),
    hasBrain && addRelations(graph)]);
  for (const [older, newer] of pairs) {
    if (known.has(older) && known.has(newer)) addEdge(graph, newer, older, "conflict");
  }
  await Promise.all(names.map(async ({ entity }) => {
    const holders = await quietly("graph", { entity, top: 30 }) ?? [];
    holders.filter(({ id }) => known.has(id)).forEach(({ id }) => join(graph, entity, id, false));
  }));
  return graph;
}

function concept(graph, name, isTag) {
  const id = `concept:${name.toLowerCase()}`;
  if (!graph.concepts.has(id)) graph.concepts.set(id, { id, name, count: 0, isTag });
  return graph.concepts.get(id);
}

function join(graph, name, memoryId, isTag) {
  const found = concept(graph, name, isTag);
  if (addEdge(graph, memoryId, found.id, "has")) found.count += 1;
}

function addEdge(graph, source, target, kind) {
  const id = `${source} ${target} ${kind}`;
  const isNew = !graph.edges.has(id);
  graph.edges.set(id, { id, source, target, kind });
  return isNew;
}

async function addRelations(graph) {
  const linked = (await quietly("concept list", { top: 200 }) ?? []).filter(({ links }) => links);
  const shown = await Promise.all(linked.slice(0, LINKED).map(
    ({ name }) => quietly("concept show", { name })));
  for (const one of shown.filter(Boolean)) {
    for (const [, other] of one.links) {
      addEdge(graph, concept(graph, one.name, false).id, concept(graph, other, false).id,
        "relation");
    }
  }
}

function picture(box, { memories, concepts, edges }, openMemory) {
  const nodes = [
    ...memories.map(({ id, content }) => ({ id, kind: "memory", label: content.slice(0, 80) })),
    ...[...concepts.values()].map(({ id, name, count }) => ({ id, kind: "concept", label: name,
      size: 12 + 5 * Math.sqrt(count) }))];
  const drawn = window.cytoscape({
    container: box,
    elements: [...nodes, ...edges.values()].map((data) => ({ data })),
    minZoom: 0.15,
    maxZoom: 2,
    layout: { name: "cose", animate: false, padding: 24, nodeRepulsion: () => 9000 },
    style: style(),
  });
  drawn.on("tap", "node[kind = 'memory']", (event) => openMemory(event.target.id()));
  drawn.on("tap", "node[kind = 'concept']", ({ target }) => {
    drawn.elements().removeClass("far near");
    drawn.elements().not(target.closedNeighborhood()).addClass("far");
    target.neighborhood("node").addClass("near");
  });
  drawn.on("tap", ({ target }) => {
    if (target === drawn) drawn.elements().removeClass("far near");
  });
  drawn.on("mouseover", "node", ({ target }) => target.addClass("near"));
  drawn.on("mouseout", "node", ({ target }) => target.removeClass("near"));
  return drawn;
}

function style() {
  const values = getComputedStyle(document.documentElement);
  const colour = (name) => values.getPropertyValue(name).trim();
  const label = { label: "data(label)", color: colour("--text"), "font-size": 11,
    "text-valign": "bottom", "text-margin-y": 4, "text-outline-color": colour("--card"),
    "text-outline-width": 2 };
  return [
    { selector: "node", style: { "font-family": "Inter, system-ui, sans-serif" } },
    { selector: "node[kind = 'memory']", style: { width: 10, height: 10,
      "background-color": colour("--accent") } },
    { selector: "node[kind = 'concept']", style: { ...label, width: "data(size)",
      height: "data(size)", "background-color": colour("--warm") } },
    { selector: "node.near[kind = 'memory']", style: { ...label, "text-wrap": "wrap",
      "text-max-width": 180, "z-index": 10 } },
    { selector: "edge", style: { width: 1, "line-color": colour("--line") } },
    { selector: "edge[kind = 'conflict']", style: { width: 2, "line-color": colour("--bad"),
      "line-style": "dashed" } },
    { selector: "edge[kind = 'relation'], edge[kind = 'replaces']", style: { width: 1.5,
      "line-color": colour("--muted"), "curve-style": "bezier", "target-arrow-shape": "triangle",
      "target-arrow-color": colour("--muted"), "arrow-scale": 0.7 } },
    { selector: ".far", style: { opacity: 0.15 } },
  ];
}
