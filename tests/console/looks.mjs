// What a person would see at once: text that is cut off, text that is hard to read, nothing at all. Told as sentences.

import assert from "node:assert/strict";
import { join } from "node:path";

export const SCREENS = { phone: { width: 360, height: 740 }, wide: { width: 1440, height: 900 } };
const SCHEMES = ["light", "dark"];
/** A screenshot of an empty page is smaller. Bytes. */
const EMPTY_BYTES = 6_000;

/** Runs in the page. Names that are longer than any common one may be cut, if a title has all of it. */
function faults(nameMax) {
  const found = [];
  const root = document.documentElement;
  const main = document.querySelector("main");
  if (root.scrollWidth > innerWidth) found.push(`the page is ${root.scrollWidth} wide on a screen of ${innerWidth}`);
  if (main.scrollWidth > main.clientWidth) found.push(`the view is ${main.scrollWidth} wide in ${main.clientWidth}`);
  const name = (element) => `<${element.tagName.toLowerCase()} class="${element.getAttribute("class") ?? ""}"> ${JSON.stringify(element.textContent.slice(0, 50))}`;
  const rgba = (text) => (/[\d.]+/g[Symbol.match](text) ?? []).map(Number);
  const over = ([r, g, b, a = 1], [R, G, B]) => [r * a + R * (1 - a), g * a + G * (1 - a), b * a + B * (1 - a)];
  const behind = (element) => {
    const layers = [];
    for (let at = element; at; at = at.parentElement) {
      const colour = rgba(getComputedStyle(at).backgroundColor);
      layers.push(colour);
      if ((colour[3] ?? 1) === 1 && colour.length) break;
    }
    return layers.reverse().reduce((below, layer) => (layer.length ? over(layer, below) : below), [255, 255, 255]);
  };
  const light = (colour) => {
    const [r, g, b] = colour.map((part) => part / 255).map((part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const cuts = (style) => style.overflowX !== "visible" || style.overflowY !== "visible";
  for (const element of document.querySelectorAll("body *")) {
    const isText = [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim());
    if (!isText || element.closest(".unseen, option") || !element.checkVisibility()) continue;
    const style = getComputedStyle(element);
    const isLongName = element.classList.contains("name") && element.title === element.textContent && element.textContent.length > nameMax;
    if (style.display !== "inline" && element.scrollWidth > element.clientWidth + 1 && !isLongName) found.push(`${name(element)} is cut off: ${element.scrollWidth} wide in ${element.clientWidth}`);
    const range = document.createRange();
    range.selectNodeContents(element);
    const box = range.getBoundingClientRect();
    for (let at = element.parentElement; at && !isLongName; at = at.parentElement) {
      if (!cuts(getComputedStyle(at))) continue;
      const frame = at.getBoundingClientRect();
      if (box.left < frame.left - 1 || box.right > frame.right + 1) found.push(`${name(element)} sticks out of ${name(at)}`);
      // What scrolls may be below the edge; what does not may not.
      if (getComputedStyle(at).overflowY === "hidden" && (box.bottom > frame.bottom + 1 || box.top < frame.top - 1)) found.push(`${name(element)} is cut off above or below by ${name(at)}`);
    }
    if (element.closest(":disabled")) continue;
    const [one, other] = [over(rgba(style.color), behind(element)), behind(element)].map(light).sort((a, b) => b - a);
    const contrast = (one + 0.05) / (other + 0.05);
    const isLarge = parseFloat(style.fontSize) >= 18.6;
    if (contrast < (isLarge ? 3 : 4.5)) found.push(`${name(element)} is hard to read: contrast ${contrast.toFixed(2)}`);
  }
  const pen = document.createElement("canvas").getContext("2d");
  for (const field of main.querySelectorAll("select, input[placeholder]")) {
    const style = getComputedStyle(field);
    pen.font = style.font;
    const text = field.tagName === "SELECT" ? field.selectedOptions[0].text : field.placeholder;
    // A select has an arrow beside its text.
    const room = field.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight) - (field.tagName === "SELECT" ? 16 : 0);
    if (field.checkVisibility() && pen.measureText(text).width > room) found.push(`${name(field)}: ${JSON.stringify(text)} has no room`);
  }
  const seen = main.innerText.trim();
  if (seen.length < 30) found.push(`nearly nothing is shown: ${JSON.stringify(seen)}`);
  for (const section of main.querySelectorAll("section, .card")) {
    if (section.checkVisibility() && !section.innerText.trim() && !section.querySelector("input, svg")) found.push(`${name(section)} is empty`);
  }
  return found;
}

export class Looks {
  /** `dir`: where screenshots go. */
  constructor(page, dir, axe) {
    Object.assign(this, { page, dir, axe, faults: [], shots: 0 });
  }

  /** Looks at what is shown now, on both screens, by day and by night. */
  async at(what) {
    for (const [screen, size] of Object.entries(SCREENS)) {
      await this.page.setViewportSize(size);
      for (const scheme of SCHEMES) {
        await this.page.emulateMedia({ colorScheme: scheme });
        await this.page.evaluate(() => new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn))));
        const found = await this.page.evaluate(faults, 20);
        const shot = await this.page.screenshot({ path: join(this.dir, `${what}-${screen}-${scheme}.png`) });
        if (shot.length < EMPTY_BYTES) found.push(`the screenshot has ${shot.length} bytes alone`);
        this.faults.push(...found.map((fault) => `${what}, ${screen}, ${scheme}: ${fault}`));
        this.shots += 1;
      }
    }
    await this.page.emulateMedia({ colorScheme: "light" });
    await this.rules(what);
  }

  /** The rules of accessibility that a program can check. */
  async rules(what) {
    await this.page.evaluate(this.axe);
    const found = await this.page.evaluate(() => window.axe.run({ runOnly: ["wcag2a", "wcag2aa", "wcag21aa"], resultTypes: ["violations"] }));
    for (const { id, help, nodes } of found.violations) this.faults.push(`${what}: ${id}: ${help}: ${nodes.slice(0, 3).map((node) => node.html.slice(0, 120)).join(" | ")}`);
  }

  verdict() {
    assert.deepEqual([...new Set(this.faults)], []);
  }
}
