// The graph: names, and the memories that mention them, drawn by cytoscape.

import { run } from "./api.js";
import { el } from "./dom.js";
import { t } from "./i18n.js";

const NAMES = 40;

export async function drawGraph(view, openMemory) {
  const names = (await run("graph", { top: NAMES })).filter((row) => row.memories > 0);
  if (!names.length) {
    view.replaceChildren(el("p", { class: "state" }, t("graphEmpty")));
    return;
  }
  const mentions = await Promise.all(names.map((row) => run("graph", { entity: row.entity, top: 30 })));
  const elements = [];
  const known = new Set();
  names.forEach((row, index) => {
    elements.push({ data: { id: `name:${row.entity}`, label: row.entity, kind: "name",
      size: 22 + Math.min(30, row.memories * 3) } });
    for (const memory of mentions[index]) {
      if (!known.has(memory.id)) {
        known.add(memory.id);
        elements.push({ data: { id: memory.id, label: memory.content.slice(0, 40), kind: "memory",
          size: 10 } });
      }
      elements.push({ data: { source: `name:${row.entity}`, target: memory.id } });
    }
  });
  const box = el("div", { class: "graph", role: "img", "aria-label": t("graphHow") });
  view.replaceChildren(el("p", { class: "muted" }, t("graphHow")), box);
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const picture = window.cytoscape({
    container: box,
    elements,
    maxZoom: 1.6,
    layout: { name: "cose", animate: false, padding: 24, nodeRepulsion: () => 9000 },
    style: [
      { selector: "node", style: { width: "data(size)", height: "data(size)", label: "data(label)",
        color: colour("--text"), "font-size": 11, "text-valign": "bottom", "text-margin-y": 3 } },
      { selector: "node[kind = 'name']", style: { "background-color": colour("--accent"),
        "font-size": 14 } },
      { selector: "node[kind = 'memory']", style: { "background-color": colour("--muted"),
        color: colour("--muted"), "min-zoomed-font-size": 9 } },
      { selector: "edge", style: { width: 1, "line-color": colour("--line") } },
    ],
  });
  picture.on("tap", "node[kind = 'memory']", (event) => openMemory(event.target.id()));
  view.graph = picture;
}
