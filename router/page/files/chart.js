// Lines over time. One row of values is one moment; null is a gap.

import { make, makeSvg, say, setAttribute } from "./dom.js";

const WIDTH = 300;
const HEIGHT = 100;
const GRID = [0, 0.5, 1];

export class Chart {
  node = make("figure", "chart");
  #series;
  #format;
  #paths = [];
  #values = [];
  #labels = [];
  #cross = makeSvg("line", { class: "cross", y1: 0, y2: HEIGHT, visibility: "hidden" });
  #plot = make("div", "plot");
  #keys = make("div", "keys");
  #when = make("span");
  #rows = [];
  #stepS = 1;
  #looked = null;
  #title;
  #least;

  // `series`: [{name, style}], style is a class of style.css; `format(value)` gives its text;
  // `least` is the smallest value that the top stands for.
  constructor(title, series, format, least = 0) {
    this.#title = title;
    this.#least = least;
    this.#series = series;
    this.#format = format;
    const svg = makeSvg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" });
    for (const place of GRID) {
      const y = HEIGHT * (1 - place);
      svg.append(makeSvg("line", { class: "grid-line", x1: 0, x2: WIDTH, y1: y, y2: y }));
    }
    for (const { name, style } of series) {
      const path = makeSvg("path", { class: `line ${style}` });
      this.#paths.push(path);
      svg.append(path);
      const sample = makeSvg("svg", { class: "key-line", viewBox: "0 0 18 8", "aria-hidden": "true" });
      sample.append(makeSvg("path", { class: `line ${style}`, d: "M1 4H17" }));
      const value = make("b");
      this.#values.push(value);
      const key = make("span", "", sample, `${name} `, value);
      this.#keys.append(key);
    }
    svg.append(this.#cross);
    this.#plot.append(svg);
    for (const place of GRID.slice(1)) {
      const label = make("span", "y-label");
      label.style.top = `${100 * (1 - place)}%`;
      this.#labels.push(label);
      this.#plot.append(label);
    }
    this.#plot.tabIndex = 0;
    this.#plot.setAttribute("role", "img");
    this.#plot.addEventListener("pointermove", (event) => this.#point(event));
    this.#plot.addEventListener("pointerleave", () => this.#look(null));
    this.#plot.addEventListener("blur", () => this.#look(null));
    this.#plot.addEventListener("keydown", (event) => this.#press(event));
    const caption = make("figcaption", "", make("span", "title", title), this.#keys);
    this.node.append(caption, this.#plot, make("div", "x-labels", this.#when, make("span", "", "now")));
  }

  // The newest last; each row has a value for each series.
  show(rows, stepS) {
    this.#rows = rows;
    this.#stepS = stepS;
    const top = roundTop(Math.max(this.#least, ...rows.flat().filter((value) => value !== null)));
    this.#paths.forEach((path, index) => setAttribute(path, "d", this.#line(index, top)));
    this.#labels.forEach((label, index) => say(label, this.#format(top * GRID[index + 1])));
    this.#write();
  }

  #line(index, top) {
    const last = Math.max(1, this.#rows.length - 1);
    let path = "";
    let pen = false;
    this.#rows.forEach((row, at) => {
      const value = row[index];
      if (value !== null) {
        const x = ((WIDTH * at) / last).toFixed(1);
        const y = (HEIGHT * (1 - value / top)).toFixed(1);
        const alone = !pen && (this.#rows[at + 1]?.[index] ?? null) === null;
        path += `${pen ? "L" : "M"}${x} ${y}${alone ? "h.01" : ""}`;
      }
      pen = value !== null;
    });
    return path;
  }

  #point(event) {
    const box = this.#plot.getBoundingClientRect();
    this.#look((event.clientX - box.left) / box.width);
  }

  #press(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const last = Math.max(1, this.#rows.length - 1);
    const at = Math.round((this.#looked ?? 1) * last) + step;
    this.#keys.setAttribute("aria-live", "polite");
    this.#look(Math.min(1, Math.max(0, at / last)));
  }

  #look(place) {
    this.#looked = place;
    if (place === null) this.#keys.removeAttribute("aria-live");
    this.#write();
  }

  #write() {
    const last = this.#rows.length - 1;
    const at = this.#looked === null ? last : Math.round(this.#looked * last);
    const row = this.#rows[at] ?? [];
    const texts = this.#values.map((node, index) => {
      const value = row[index] ?? null;
      const text = value === null ? "\u2013" : this.#format(value);
      say(node, text);
      return `${this.#series[index].name} ${text}`;
    });
    const ago = (last - at) * this.#stepS;
    say(this.#when, this.#looked === null ? past(last * this.#stepS) : `${past(ago)} ago`);
    setAttribute(this.#cross, "visibility", this.#looked === null ? "hidden" : "visible");
    if (this.#looked !== null) {
      const x = (WIDTH * at) / Math.max(1, last);
      setAttribute(this.#cross, "x1", x);
      setAttribute(this.#cross, "x2", x);
    }
    setAttribute(this.#plot, "aria-label", `${this.#title}: ${texts.join(", ")}. Arrow keys go back in time.`);
  }
}

function past(seconds) {
  return seconds < 120 ? `${Math.round(seconds)} s` : `${Math.round(seconds / 60)} min`;
}

// The next of 1, 2, 5, 10, ... times a power of ten.
function roundTop(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= value * 0.999);
}
