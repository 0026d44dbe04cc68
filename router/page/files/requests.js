// The requests in the house and the last ones that left it; each leads to its waterfall.

import { find, KeyedRows, make, say, setClass } from "./dom.js";
import { clockTime, count, seconds } from "./format.js";

const BADGES = { finished: "good", running: "", waiting: "warn", cancelled: "" };

export class Requests {
  #rows = new KeyedRows(find("request-rows"), (request) => new Row(request));

  show(requests) {
    const note = find("requests-note");
    note.hidden = requests !== null;
    find("request-table").parentElement.hidden = requests === null;
    if (requests === null) {
      say(note, "Not shown here: set observability.debug_requests to public to see requests and their waterfalls, never their text.");
      return;
    }
    find("no-requests").hidden = requests.length > 0;
    this.#rows.show(requests, (request) => request.id);
  }
}

class Row {
  #link;
  #badge = make("span", "badge");
  #cells = {};
  node;

  constructor(request) {
    this.#link = make("a", "mono", request.id.slice(0, 8));
    this.#link.href = `#request=${request.id}`;
    this.#link.setAttribute("aria-label", `Waterfall of request ${request.id.slice(0, 8)}`);
    this.node = make("tr", "", make("td", "", this.#link));
    const cell = (name, className, ...children) => {
      this.#cells[name] = make("td", className, ...children);
      this.node.append(this.#cells[name]);
    };
    cell("at", "number wide", clockTime(request.at));
    cell("state", "", this.#badge);
    cell("tokens", "number");
    cell("ttft", "number");
    cell("tpot", "number middling");
    cell("total", "number middling");
    cell("workers", "wide");
  }

  update(request) {
    const state = request.outcome || request.state;
    const retried = request.attempts > 1 ? ` \u00b7 ${request.attempts} attempts` : "";
    say(this.#badge, state.replaceAll("_", " ") + retried);
    setClass(this.#badge, `badge ${BADGES[state] ?? "bad"}`);
    const known = request.outcome && request.prompt_tokens;
    say(this.#cells.tokens, known ? `${count(request.prompt_tokens)} + ${count(request.output_tokens)}` : "\u2013");
    say(this.#cells.ttft, seconds(request.ttft_s));
    say(this.#cells.tpot, seconds(request.tpot_s));
    say(this.#cells.total, seconds(request.total_s));
    say(this.#cells.workers, workersOf(request));
  }
}

function workersOf(request) {
  const names = [...new Set([request.prefill_worker, request.decode_worker])];
  return names.filter(Boolean).join(" \u2192 ") || "\u2013";
}
