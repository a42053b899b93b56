// A list of any length of which only what is in sight exists. One tab stop; arrows, page up and down, home and end move
// within it, enter opens.

import { h, morph } from "./dom.js";

const BEYOND = 6;

/**
 * `options`: label; height(list): of a row in pixels; key(item); row(item): the row's content; open(item).
 * Gives {element, set(items), focus()}.
 */
export function rowList(options) {
  let items = [];
  /** The key of the row that the keyboard is at. */
  let active = null;
  let selected = null;
  const sheet = h("div", { class: "rows-sheet" });
  const list = h("div", {
    class: "rows", role: "listbox", tabindex: "0", "aria-label": options.label,
    on: { scroll: () => requestAnimationFrame(draw), keydown: pressed, click: clicked, focus: () => { active ??= items[0] && options.key(items[0]); draw(); } },
  }, sheet);
  new ResizeObserver(() => draw()).observe(list);

  const indexOf = (key) => items.findIndex((item) => options.key(item) === key);
  const idOf = (key) => `row-${key}`;

  function draw() {
    const height = options.height(list);
    const view = list.clientHeight || 600;
    const first = Math.max(0, Math.floor(list.scrollTop / height) - BEYOND);
    const last = Math.min(items.length, Math.ceil((list.scrollTop + view) / height) + BEYOND);
    sheet.style.height = `${items.length * height}px`;
    list.style.setProperty("--row", `${height}px`);
    morph(sheet, items.slice(first, last).map((item, at) => {
      const key = options.key(item);
      return h("div", {
        class: `row ${key === active ? "active" : ""}`, role: "option", id: idOf(key), "data-key": key, "aria-selected": String(key === selected),
        "aria-setsize": items.length, "aria-posinset": first + at + 1, vars: { "--top": `${(first + at) * height}px` },
      }, options.row(item));
    }));
    if (active !== null && indexOf(active) >= 0) list.setAttribute("aria-activedescendant", idOf(active));
    else list.removeAttribute("aria-activedescendant");
  }

  function moveTo(at) {
    if (!items.length) return;
    at = Math.max(0, Math.min(items.length - 1, at));
    active = options.key(items[at]);
    const height = options.height(list);
    const top = at * height;
    if (top < list.scrollTop) list.scrollTop = top;
    else if (top + height > list.scrollTop + list.clientHeight) list.scrollTop = top + height - list.clientHeight;
    draw();
  }

  function pressed(event) {
    const at = indexOf(active);
    const page = Math.max(1, Math.floor(list.clientHeight / options.height(list)) - 1);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, PageDown: at + page, PageUp: at - page, Home: 0, End: items.length - 1 }[event.key];
    if (to !== undefined) moveTo(to);
    else if (event.key === "Enter" && at >= 0) options.open(items[at]);
    else return;
    event.preventDefault();
  }

  function clicked(event) {
    const row = event.target.closest("[data-key]");
    const at = row ? indexOf(row.dataset.key) : -1;
    if (at < 0) return;
    active = row.dataset.key;
    options.open(items[at]);
  }

  return {
    element: list,
    set(next) { items = next; draw(); },
    select(key) { selected = key; draw(); },
    isBusy: () => list.matches(":hover") || list === document.activeElement,
    top() { list.scrollTop = 0; },
  };
}
