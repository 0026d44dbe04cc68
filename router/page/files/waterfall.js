// One request from its arrival to its last token, and each of its attempts.

import { find, make, say } from "./dom.js";
import { clockTime, plural, seconds } from "./format.js";
import { errorOf } from "./stream.js";

const PREFIX = "#request=";
const AGAIN_MS = 1000;
const TICKS = 4;

export class Waterfall {
  #key;
  #dialog = find("waterfall");
  #body = find("waterfall-body");
  #timer = 0;
  #shown = "";

  constructor(key) {
    this.#key = key;
    find("waterfall-close").addEventListener("click", () => this.#dialog.close());
    this.#dialog.addEventListener("click", (event) => {
      if (event.target === this.#dialog) this.#dialog.close();
    });
    this.#dialog.addEventListener("close", () => this.#closed());
    window.addEventListener("hashchange", () => this.#follow());
    this.#follow();
  }

  #follow() {
    if (!location.hash.startsWith(PREFIX)) {
      if (this.#dialog.open) this.#dialog.close();
      return;
    }
    this.#shown = decodeURIComponent(location.hash.slice(PREFIX.length));
    say(find("waterfall-title"), "Request");
    this.#body.replaceChildren(make("p", "note", "Asking \u2026"));
    if (!this.#dialog.open) this.#dialog.showModal();
    this.#ask();
  }

  #closed() {
    clearTimeout(this.#timer);
    this.#shown = "";
    this.#body.replaceChildren();
    if (location.hash.startsWith(PREFIX)) history.replaceState(null, "", location.pathname);
  }

  async #ask() {
    clearTimeout(this.#timer);
    const name = this.#shown;
    let found = null;
    try {
      const url = `/debug/requests/${encodeURIComponent(name)}`;
      const answer = await fetch(url, { headers: this.#key.headers, cache: "no-store" });
      if (!answer.ok) throw await errorOf(answer);
      found = (await answer.json()).requests;
    } catch (error) {
      if (this.#shown === name) this.#body.replaceChildren(make("p", "note", error.message));
      return;
    }
    if (this.#shown !== name) return;
    say(find("waterfall-title"), `Request ${found[0].request_id}`);
    this.#body.replaceChildren(...found.flatMap(requestNodes));
    if (found.some((request) => request.state !== "ended")) {
      this.#timer = setTimeout(() => this.#ask(), AGAIN_MS);
    }
  }
}

// Of a request's times, the phases it has been through: {name, style, from, to}, in seconds.
// `moves`: another worker decodes than computed the prompt.
export function phasesOf(moments, total, moves) {
  const m = moments;
  const decoding = moves ? m.second_token : m.first_token;
  const phases = [
    ["queue", "queue", 0, m.tokenize_began],
    ["tokenise", "tokenise", m.tokenize_began, m.tokenized],
    ["queue", "queue", m.tokenized, m.started ?? m.first_token ?? total],
    ["prefill", "prefill", m.started, m.first_token ?? total],
    ["transfer", "transfer", m.first_token, moves ? m.second_token : null],
    ["decode", "decode", decoding, m.finished ?? total],
  ];
  return phases
    .filter(([, , from, to]) => known(from) && known(to) && to >= from)
    .map(([name, style, from, to]) => ({ name, style, from, to }));
}

function requestNodes(request) {
  const total = endOf(request);
  const rows = make("div", "falls");
  rows.setAttribute("aria-hidden", "true"); // the table below says the same
  rows.append(lane("Request", phasesOf(request.moments_s, total, moves(request)), total));
  const described = [];
  for (const attempt of request.attempts) {
    rows.append(make("div", "fall head", attemptTitle(attempt, request.attempts.length)));
    for (const [name, bars] of lanesOf(attempt, request.moments_s.first_token, total)) rows.append(lane(name, bars, total));
    described.push(...attemptRows(attempt));
  }
  rows.append(axis(total));
  const state = (request.outcome ?? request.state).replaceAll("_", " ");
  const about = [
    state,
    `came at ${clockTime(request.received_at)}`,
    request.priority_class,
    `${request.prompt_tokens} + ${plural(request.output_tokens, "token")}, ${request.cached_tokens} cached`,
    plural(request.num_attempts, "attempt"),
  ];
  return [make("p", "note", about.join(" \u00b7 ")), legend(), rows, phaseTable(request, total, described)];
}

function legend() {
  const names = [
    ["queue", "queue"],
    ["tokenise", "tokenise"],
    ["prefill", "prefill"],
    ["transfer", "transfer"],
    ["decode", "decode"],
    ["failed", "failed"],
  ];
  return make("ul", "legend", ...names.map(([style, name]) => make("li", "", make("i", `swatch ${style}`), name)));
}

function attemptTitle(attempt, number) {
  const outcome = attempt.outcome === "ended" ? "" : ` \u2013 ${attempt.outcome.replaceAll("_", " ")}`;
  const reason = attempt.error_reason ? ` (${attempt.error_reason.replaceAll("_", " ")})` : "";
  const title = number === 1 ? "Attempt" : `Attempt ${attempt.number}`;
  return `${title}${outcome}${reason}`;
}

// The lanes of an attempt: P's work, the KV's way, D's work. Workers tell how long each took when
// their leg ends well; until then prefill goes as far as the first token, if it came of this attempt.
function lanesOf(attempt, firstToken, total) {
  const end = attempt.ended_s ?? total;
  const { prefill, decode } = attempt.legs;
  const lanes = [];
  const failed = attempt.error_reason || !["running", "ended"].includes(attempt.outcome);
  const started = attempt.started_s;
  const took = prefill?.prefill_s || decode?.prefill_s || 0;
  const isFirst = known(firstToken) && known(started) && firstToken >= started && firstToken <= end;
  const guessed = isFirst ? firstToken : (attempt.decoding_s ?? end);
  const firstEnd = known(started) && took > 0 ? Math.min(started + took, end) : guessed;
  const isSplit = attempt.prefill_worker && attempt.prefill_worker !== attempt.decode_worker;
  const first = attempt.prefill_worker || attempt.decode_worker || "worker";
  const bars = [{ style: "queue", name: "queue", from: attempt.sent_s, to: started ?? end }];
  if (known(started)) bars.push({ style: "prefill", name: "prefill", from: started, to: firstEnd });
  if (!isSplit && known(attempt.decoding_s)) {
    bars.push({ style: "decode", name: "decode", from: Math.max(firstEnd, started ?? 0), to: end });
  }
  if (failed && attempt.failed_leg !== "decode") bars.push(failure(end));
  lanes.push([first, bars]);
  if (!isSplit) return lanes;
  if (decode?.transfer_s > 0) {
    const arrived = Math.min(firstEnd + decode.handoff_s, attempt.decoding_s ?? end);
    const from = Math.max(attempt.sent_s, arrived - decode.transfer_s);
    lanes.push(["KV transfer", [{ style: "transfer", name: "transfer", from, to: Math.max(arrived, from) }]]);
  }
  const decoding = [];
  if (known(attempt.decoding_s)) decoding.push({ style: "decode", name: "decode", from: attempt.decoding_s, to: end });
  if (failed && attempt.failed_leg === "decode") decoding.push(failure(end));
  if (attempt.decode_worker) lanes.push([attempt.decode_worker, decoding]);
  return lanes;
}

function failure(at) {
  return { style: "failed", name: "failed", from: at, to: at };
}

function attemptRows(attempt) {
  const where = [attempt.prefill_worker, attempt.decode_worker].filter(Boolean).join(" \u2192 ");
  const end = attempt.ended_s ?? null;
  const rows = [[`attempt ${attempt.number}: ${attempt.outcome.replaceAll("_", " ")} on ${where}`, attempt.sent_s, end]];
  const transfer = attempt.legs.decode?.transfer_s;
  if (transfer) rows.push([`its KV transfer (${seconds(attempt.legs.decode.handoff_s)} of it not hidden)`, null, transfer]);
  return rows;
}

function lane(name, bars, total) {
  const label = make("span", "name", name);
  label.title = name;
  const track = make("div", "lane");
  for (const bar of bars) {
    const node = make("i", bar.style);
    const width = (100 * (bar.to - bar.from)) / total;
    const least = bar.style === "failed" ? 2 : 0;
    node.style.width = `${Math.max(width, least)}%`;
    node.style.left = `${Math.min((100 * bar.from) / total, 100 - least)}%`;
    node.title = `${bar.name}: ${seconds(bar.to - bar.from)}`;
    track.append(node);
  }
  return make("div", "fall", label, track);
}

function axis(total) {
  const ticks = make("div", "axis");
  for (let tick = 0; tick <= TICKS; tick += 1) {
    const label = make("span", "", tick ? seconds((total * tick) / TICKS) : "0");
    label.style.left = `${(100 * tick) / TICKS}%`;
    ticks.append(label);
  }
  return make("div", "fall", make("span", "name"), ticks);
}

function phaseTable(request, total, described) {
  const body = make("tbody");
  const add = (name, from, took) => {
    const cells = [make("th", "", name), make("td", "number", known(from) ? seconds(from) : ""), make("td", "number", seconds(took))];
    cells[0].scope = "row";
    body.append(make("tr", "", ...cells));
  };
  for (const phase of phasesOf(request.moments_s, total, moves(request))) add(phase.name, phase.from, phase.to - phase.from);
  for (const [name, from, end] of described) add(name, from, known(from) && known(end) ? end - from : end);
  const head = make("tr", "", make("th", "", "Phase"), make("th", "number", "from"), make("th", "number", "took"));
  for (const cell of head.children) cell.scope = "col";
  return make("table", "phases", make("thead", "", head), body);
}

function endOf(request) {
  const moments = Object.values(request.moments_s);
  const ends = request.attempts.flatMap((a) => [a.ended_s, a.decoding_s, a.started_s, a.sent_s]);
  const last = Math.max(1e-6, ...[...moments, ...ends].filter(known));
  return request.state === "ended" ? last : Math.max(last, Date.now() / 1000 - request.received_at);
}

function moves(request) {
  return request.attempts.some((a) => a.prefill_worker && a.decode_worker && a.prefill_worker !== a.decode_worker);
}

function known(value) {
  return value !== null && value !== undefined;
}
