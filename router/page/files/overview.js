// The last minute in tiles, the last five in charts.

import { Chart } from "./chart.js";
import { find, make, say } from "./dom.js";
import { count, rate, seconds, share } from "./format.js";

const HOUSE_MOMENTS = 300;
const PERCENTILES = [
  { name: "p50", style: "line-a" },
  { name: "p95", style: "line-b" },
  { name: "p99", style: "line-c" },
];
const NONE = [null, null, null];

export class Overview {
  #tiles = new Map();
  #ttft = new Chart("Time to first token", PERCENTILES, seconds);
  #tpot = new Chart("Time per output token", PERCENTILES, seconds);
  #requests = new Chart(
    "Requests a second",
    [
      { name: "all", style: "line-all" },
      { name: "goodput", style: "line-good" },
      { name: "failed", style: "line-bad" },
    ],
    rate,
  );
  #house = new Chart(
    "Requests here",
    [
      { name: "running", style: "line-a" },
      { name: "waiting", style: "line-wait" },
    ],
    count,
    2,
  );
  #moments = [];

  constructor() {
    find("charts").append(this.#ttft.node, this.#tpot.node, this.#requests.node, this.#house.node);
    for (const name of ["Requests", "Goodput", "TTFT p50", "TPOT p50", "Output", "Requests here"]) {
      const value = make("dd", "", "\u2013");
      const more = make("dd", "more");
      find("tiles").append(make("div", "tile", make("dt", "", name), value, more));
      this.#tiles.set(name, { value, more });
    }
  }

  show(snapshot) {
    const { now, queue, level, history, step_s: stepS } = snapshot;
    const waiting = Math.max(0, queue.in_house - queue.running);
    const [ttft, tpot] = [now.ttft_s ?? NONE, now.tpot_s ?? NONE];
    this.#tile("Requests", `${rate(now.requests_per_s)}/s`, trouble(now));
    this.#tile(
      "Goodput",
      `${rate(now.good_per_s)}/s`,
      now.requests
        ? `${share(now.good_per_s, now.requests_per_s)} within ${limit(level)}`
        : `requests within ${limit(level)}`,
    );
    this.#tile("TTFT p50", seconds(ttft[0]), tail(ttft));
    this.#tile("TPOT p50", seconds(tpot[0]), tail(tpot));
    this.#tile("Output", `${rate(now.tokens_per_s)}/s`, "tokens of requests that ended");
    this.#tile("Requests here", count(queue.in_house), lineText(queue, waiting));

    this.#ttft.show(history.map((point) => point.ttft_s ?? NONE), stepS);
    this.#tpot.show(history.map((point) => point.tpot_s ?? NONE), stepS);
    this.#requests.show(
      history.map((point) => [point.requests_per_s, point.good_per_s, point.failed_per_s]),
      stepS,
    );
    this.#moments.push([queue.running, waiting]);
    if (this.#moments.length > HOUSE_MOMENTS) this.#moments.shift();
    this.#house.show(this.#moments, 1);
  }

  #tile(name, value, more) {
    const tile = this.#tiles.get(name);
    say(tile.value, value);
    say(tile.more, more);
    tile.more.title = more;
  }
}

function limit(level) {
  return `${plain(level.ttft_s)} and ${plain(level.tpot_s)} a token`;
}

// A limit that somebody has chosen: no more digits than it has.
function plain(value) {
  return value < 1 ? `${+(1e3 * value).toFixed(3)} ms` : `${+value.toFixed(3)} s`;
}

// Broken, if at all, between the two.
function tail([, p95, p99]) {
  const parts = [`p95 ${seconds(p95)}`, `p99 ${seconds(p99)}`];
  return parts.map((part) => part.replaceAll(" ", "\u00a0")).join(" ");
}

function trouble(now) {
  const parts = [`${count(now.failed)} failed`];
  if (now.cancelled) parts.push(`${count(now.cancelled)} cancelled`);
  if (now.retries) parts.push(`${count(now.retries)} retried`);
  return parts.join(", ");
}

function lineText(queue, waiting) {
  if (!waiting) return "nobody waits";
  const line = Object.entries(queue.in_line).filter(([, number]) => number);
  const classes = line.map(([name, number]) => `${count(number)} ${name}`).join(", ");
  const tokens = `${count(queue.waiting_tokens)} tokens`;
  return `${count(waiting)} wait, ${tokens}${classes ? `; in line: ${classes}` : ""}`;
}
