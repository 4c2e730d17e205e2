// Elements from plain values. Text is only ever set as text: nothing a memory says becomes HTML.

export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((child) => child != null && child !== false));
  return node;
}

// Replace what is in a node; false and null are left out, lists are opened. What had the focus
// has it again, if something with its id is there.
export function fill(node, ...children) {
  const focused = node.contains(document.activeElement) ? document.activeElement.id : "";
  node.replaceChildren(...children.flat().filter((child) => child != null && child !== false));
  if (focused) $(focused)?.focus({ preventScroll: true });
}

// Return the pieces of a text, with the words that a search found marked.
export function marked(text, words) {
  const wanted = (words ?? []).filter((word) => word.length > 1 || word > "\u2e80")
    .map((word) => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
  if (!wanted.length) return [text];
  return text.split(new RegExp(`(${wanted.join("|")})`, "giu"))
    .map((piece, place) => (place % 2 ? el("mark", {}, piece) : piece));
}

export function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

export function $(id) {
  return document.getElementById(id);
}
