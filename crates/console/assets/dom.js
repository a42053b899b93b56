// Elements from text, never from markup: whatever a tenant wrote becomes a text node or an attribute's value.

const SVG = "http://www.w3.org/2000/svg";

/** An element. `props`: attributes, and `on` {event: listener}, `vars` {"--name": value}. Children: nodes, text, lists of them. */
export function h(tag, props, ...children) {
  return fill(document.createElement(tag), props, children);
}

export function svg(tag, props, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") {
      for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    } else if (name === "vars") {
      for (const [key, number] of Object.entries(value)) element.style.setProperty(key, String(number));
    } else if (name === "href") {
      if (leadsSomewhere(String(value))) element.setAttribute("href", value);
    } else if (name === "value") {
      element.value = value;
    } else {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
  add(element, children);
  return element;
}

function add(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false || child === "") continue;
    element.append(child instanceof Node ? child : String(child));
  }
}

/** Links lead within the page or to the web; nothing that runs. */
function leadsSomewhere(href) {
  return href.startsWith("#") || /^https?:\/\//.test(href);
}

/** Puts `children` in the place of what `element` holds. */
export function replace(element, ...children) {
  element.replaceChildren();
  add(element, children);
}

/** Makes what `element` holds like `children`, and keeps the nodes that are alike: focus and selection stay. */
export function morph(element, ...children) {
  const wanted = document.createDocumentFragment();
  add(wanted, children);
  morphChildren(element, wanted);
}

function morphChildren(old, fresh) {
  const wanted = [...fresh.childNodes];
  wanted.forEach((node, at) => {
    const there = old.childNodes[at];
    if (!there) old.append(node);
    else if (isAlike(there, node)) morphNode(there, node);
    else there.replaceWith(node);
  });
  while (old.childNodes.length > wanted.length) old.lastChild.remove();
}

function isAlike(one, other) {
  return one.nodeType === other.nodeType && one.nodeName === other.nodeName && one.id === other.id && one.dataset?.key === other.dataset?.key;
}

function morphNode(old, fresh) {
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name)) old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    // A style attribute would be inline style, which the policy forbids; its properties are not.
    if (name === "style") {
      if (old.style.cssText !== fresh.style.cssText) old.style.cssText = fresh.style.cssText;
    } else if (old.getAttribute(name) !== value) {
      old.setAttribute(name, value);
    }
  }
  morphChildren(old, fresh);
}

/** A labelled input. `props.hint` stands below it. */
export function field(label, input, hint) {
  const id = input.id || (input.id = `f-${++fields}`);
  const below = hint ? h("small", { id: `${id}-hint`, class: "dim" }, hint) : null;
  if (below) input.setAttribute("aria-describedby", below.id);
  return h("div", { class: "field" }, h("label", { for: id }, label), input, below);
}
let fields = 0;

export function choice(options, value, on) {
  const select = h("select", { on }, options.map(([key, text]) => h("option", { value: key }, text)));
  select.value = value;
  return select;
}

/** A part of a whole, with words for those who do not see it. */
export function meter(part, label, tone) {
  const shown = Math.max(0, Math.min(1, Number.isFinite(part) ? part : 0));
  return h("span", {
    class: `meter ${tone ?? ""}`, role: "meter", "aria-label": label, "aria-valuemin": 0, "aria-valuemax": 100,
    "aria-valuenow": Math.round(shown * 100), vars: { "--part": shown.toFixed(4) },
  }, h("i"));
}

export function badge(text, tone) {
  return h("span", { class: `badge ${tone ?? ""}` }, text);
}

/** Terms and what they are; rows without a value are left out. */
export function facts(rows) {
  const there = rows.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return h("dl", { class: "facts" }, there.map(([term, value]) => h("div", {}, h("dt", {}, term), h("dd", {}, value))));
}

/** What went wrong, in place. */
export function trouble(fault) {
  return h("p", { class: "note bad", role: "alert" }, fault.message ?? String(fault));
}

/** Asks before something is done that costs or cannot be undone. Resolves to whether it is wanted. */
export function confirm(title, lines, verb) {
  return new Promise((resolve) => {
    const done = (answer) => { resolve(answer); dialog.close(); dialog.remove(); };
    const dialog = h("dialog", { class: "ask", "aria-labelledby": "ask-title", on: { cancel: () => done(false) } },
      h("h2", { id: "ask-title" }, title),
      lines.map((line) => h("p", {}, line)),
      h("div", { class: "actions" },
        h("button", { type: "button", class: "primary", on: { click: () => done(true) } }, verb),
        h("button", { type: "button", autofocus: true, on: { click: () => done(false) } }, "Not now")));
    document.body.append(dialog);
    dialog.showModal();
  });
}
