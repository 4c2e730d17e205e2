// Small plots as SVG: bars that lie for names, bars that stand for days.

import { el, svg } from "./dom.js";
import { number } from "./i18n.js";

export function bars(title, pairs) {
  const most = Math.max(1, ...pairs.map(([, value]) => value));
  const height = pairs.length * 26 + 4;
  const picture = svg("svg", { viewBox: `0 0 700 ${height}`, class: "plot", role: "img",
    "aria-label": `${title}: ${pairs.map(([name, value]) => `${name} ${value}`).join(", ")}` });
  pairs.forEach(([name, value], index) => {
    const top = index * 26 + 4;
    const label = svg("text", { x: 150, y: top + 14, "text-anchor": "end", class: "label" });
    label.textContent = name.length > 22 ? `${name.slice(0, 21)}…` : name;
    const amount = svg("text", { x: 166 + (value / most) * 470, y: top + 14 });
    amount.textContent = number(value);
    picture.append(label, svg("rect", { x: 160, y: top + 2, height: 15, rx: 3,
      width: Math.max(2, (value / most) * 470) }), amount);
  });
  return el("div", { class: "card" }, el("h2", { class: "title" }, title), picture);
}

export function days(title, counts) {
  const most = Math.max(1, ...counts.map(([, value]) => value));
  const wide = 700 / Math.max(counts.length, 14);
  const picture = svg("svg", { viewBox: "0 0 700 120", class: "plot", role: "img",
    "aria-label": title });
  counts.forEach(([day, value], index) => {
    const tall = value ? Math.max(2, (value / most) * 90) : 0;
    const bar = svg("rect", { x: index * wide + 1, y: 96 - tall, height: tall, rx: 2,
      width: Math.max(1, wide - 2) });
    const hint = svg("title");
    hint.textContent = `${day}: ${value}`;
    bar.append(hint);
    picture.append(bar);
  });
  for (const index of [0, counts.length - 1]) {
    if (!counts[index]) continue;
    const text = svg("text", { x: index ? Math.min(700, (index + 1) * wide) : 0, y: 114,
      "text-anchor": index ? "end" : "start" });
    text.textContent = counts[index][0];
    picture.append(text);
  }
  return el("div", { class: "card" }, el("h2", { class: "title" }, title), picture);
}
