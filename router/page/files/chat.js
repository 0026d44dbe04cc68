// A chat with the served model, and the times of each answer while it comes.

import { find, make, say } from "./dom.js";
import { count, seconds } from "./format.js";
import { eventsOf, HttpError } from "./stream.js";
import { phasesOf } from "./waterfall.js";

const MAX_TURNS = 40;

export class Chat {
  #key;
  #model = "";
  #turns = [];
  #abort = null;
  #log = find("chat-log");
  #text = find("chat-text");

  constructor(key) {
    this.#key = key;
    find("chat-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send();
    });
    this.#text.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        find("chat-form").requestSubmit();
      }
    });
    find("chat-stop").addEventListener("click", () => this.#abort?.abort());
    find("chat-clear").addEventListener("click", () => {
      this.#abort?.abort();
      this.#turns = [];
      this.#log.replaceChildren();
      this.#text.focus();
    });
  }

  serve(model, linksRequests) {
    this.#model = model;
    this.linksRequests = linksRequests;
  }

  async #send() {
    const content = this.#text.value.trim();
    if (!content || this.#abort || !this.#model) return;
    this.#text.value = "";
    const turns = [...this.#turns, { role: "user", content }];
    this.#log.append(make("div", "turn user", make("div", "said", content)));
    const answer = new Answer(this.linksRequests);
    this.#log.append(answer.node);
    while (this.#log.childElementCount > MAX_TURNS) this.#log.firstElementChild.remove();
    this.#log.scrollTop = this.#log.scrollHeight;
    this.#abort = new AbortController();
    this.#busy(true);
    try {
      await this.#stream(turns, answer);
      this.#turns = [...turns, { role: "assistant", content: answer.said }].slice(-MAX_TURNS);
    } catch (error) {
      if (this.#abort.signal.aborted) answer.failed("Stopped.");
      else answer.failed(error.message);
      if (error instanceof HttpError && error.status === 401) this.#key.ask("This router answers who has a key.");
    } finally {
      answer.end();
      this.#abort = null;
      this.#busy(false);
    }
  }

  async #stream(messages, answer) {
    const body = {
      model: this.#model,
      messages,
      max_tokens: Number(find("chat-max").value),
      stream: true,
      stream_options: { include_usage: true, continuous_usage_stats: true },
      include_timings: true,
    };
    const events = eventsOf("/v1/chat/completions", {
      method: "POST",
      headers: { "content-type": "application/json", ...this.#key.headers },
      body: JSON.stringify(body),
      signal: this.#abort.signal,
    });
    for await (const data of events) {
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw new Error(event.error.message);
      const follows = this.#log.scrollHeight - this.#log.scrollTop - this.#log.clientHeight < 40;
      answer.take(event, () => {
        if (follows) this.#log.scrollTop = this.#log.scrollHeight;
      });
    }
    throw new Error("The answer broke off.");
  }

  #busy(isBusy) {
    find("chat-send").disabled = isBusy;
    find("chat-stop").disabled = !isBusy;
  }
}

// One answer: its text, drawn at most once a frame, and its times.
class Answer {
  said = "";
  #thought = "";
  #begun = performance.now();
  #first = null;
  #last = null;
  #tokens = 0;
  #frame = 0;
  #server = null;
  #drawn = () => {};
  #ticking;
  #linksRequests;
  #saidNode = make("div", "said");
  #thoughtNode = make("div", "thought");
  #facts = new Map();
  #timing = make("div", "timing");
  node = make("div", "turn assistant", this.#thoughtNode, this.#saidNode, this.#timing);

  constructor(linksRequests) {
    this.#linksRequests = linksRequests;
    this.#thoughtNode.hidden = true;
    this.#timing.setAttribute("aria-live", "off");
    this.#ticking = setInterval(() => this.#writeTimes(), 100);
    this.#writeTimes();
  }

  take(event, drawn) {
    const delta = event.choices[0]?.delta ?? {};
    if (event.tandem) this.#server = event.tandem;
    const tokens = event.usage?.completion_tokens ?? this.#tokens;
    if (tokens > this.#tokens) {
      this.#tokens = tokens;
      this.#last = performance.now();
      this.#first ??= this.#last;
    }
    this.said += delta.content ?? "";
    this.#thought += delta.reasoning_content ?? "";
    this.#drawn = drawn;
    if (!this.#frame) this.#frame = requestAnimationFrame(() => this.#draw());
  }

  failed(message) {
    this.node.insertBefore(make("div", "error", message), this.#timing);
  }

  end() {
    clearInterval(this.#ticking);
    cancelAnimationFrame(this.#frame);
    this.#draw();
    this.#writeTimes();
    if (this.#server === null) {
      if (this.#first === null) this.#timing.remove();
      return;
    }
    const { prefill_worker: prefill, decode_worker: decode } = this.#server;
    const workers = [...new Set([prefill, decode])].filter(Boolean);
    this.#fact("on", workers.join(" \u2192 "));
    if (this.#server.num_attempts > 1) this.#fact("attempts", count(this.#server.num_attempts));
    this.#timing.after(phaseBar(this.#server));
    if (this.#linksRequests) {
      const link = make("a", "", "Waterfall");
      link.href = `#request=${this.#server.request_id}`;
      this.#timing.append(link);
    }
    this.#drawn();
  }

  #draw() {
    this.#frame = 0;
    say(this.#saidNode, this.said);
    say(this.#thoughtNode, this.#thought);
    this.#thoughtNode.hidden = !this.#thought;
    this.#drawn();
  }

  #writeTimes() {
    const now = performance.now();
    this.#fact("TTFT", seconds(((this.#first ?? now) - this.#begun) / 1000));
    if (this.#first === null) return;
    const spanS = (this.#last - this.#first) / 1000;
    this.#fact("TPOT", this.#tokens > 1 ? seconds(spanS / (this.#tokens - 1)) : "\u2013");
    this.#fact("tokens", count(this.#tokens));
    if (spanS > 0) this.#fact("tokens/s", ((this.#tokens - 1) / spanS).toFixed(1));
  }

  #fact(name, text) {
    let value = this.#facts.get(name);
    if (!value) {
      value = make("b");
      this.#facts.set(name, value);
      this.#timing.append(make("span", `fact-${name.replace("/", "-")}`, `${name} `, value));
    }
    say(value, text);
  }
}

// The router's own times of an answer, end to end.
function phaseBar(server) {
  const { queue_s: queue, tokenize_s: tokenize, prefill_s: prefill, handoff_gap_s: gap, total_s: total, ttft_s: ttft } = server;
  const bar = make("div", "bar");
  if (ttft === null || queue === null) return bar;
  const end = total ?? ttft + (gap ?? 0);
  const moments = {
    tokenize_began: 0,
    tokenized: tokenize,
    started: tokenize + queue,
    first_token: ttft,
    second_token: gap === null ? null : ttft + gap,
    finished: end,
  };
  const texts = [];
  const moves = Boolean(server.prefill_worker && server.prefill_worker !== server.decode_worker);
  for (const phase of phasesOf(moments, end, moves)) {
    const part = make("i", phase.style);
    const took = phase.to - phase.from;
    if (took <= 0) continue;
    part.style.width = `${(100 * took) / end}%`;
    part.title = `${phase.name} ${seconds(took)}`;
    texts.push(part.title);
    bar.append(part);
  }
  bar.setAttribute("role", "img");
  bar.setAttribute("aria-label", `The router's times: ${texts.join(", ")}`);
  bar.title = texts.join(", ");
  return bar;
}
