// Each pool, and in it each worker: what it has to do, and what its KV blocks hold.

import { find, KeyedRows, make, say, setAttribute, setClass } from "./dom.js";
import { count, plural, seconds, share } from "./format.js";

const STATES = ["running", "leased", "importing", "cached", "free"];
const MEANINGS = {
  running: "running: of sequences that are computed",
  leased: "leased: kept until a decode worker has them",
  importing: "importing: on their way in",
  cached: "cached: kept for whoever has the same prefix",
  free: "free",
};
const BADGES = { ready: "good", starting: "warn", draining: "warn", leaving: "warn", unreachable: "bad" };
const STUCK_S = 2;

export class Pools {
  #pools = new KeyedRows(find("pool-list"), () => new Pool());

  constructor() {
    for (const state of STATES) {
      find("kv-legend").append(make("li", "", make("i", `swatch ${state}`), MEANINGS[state]));
    }
  }

  show(pools) {
    find("no-workers").hidden = pools.some((pool) => pool.num_workers);
    this.#pools.show(
      pools.filter((pool) => pool.num_workers),
      (pool) => pool.role,
    );
  }
}

class Pool {
  #title = make("h3");
  #facts = make("p", "facts");
  #list = make("ul", "workers");
  #rest = make("p", "note");
  #workers = new KeyedRows(this.#list, () => new Worker());
  node = make("section", "pool", make("div", "pool-head", this.#title, this.#facts), this.#list, this.#rest);

  update(pool) {
    say(this.#title, pool.role[0].toUpperCase() + pool.role.slice(1));
    const blocks = sum(pool.kv_blocks);
    const held = blocks - (pool.kv_blocks.free ?? 0) - (pool.kv_blocks.cached ?? 0);
    say(
      this.#facts,
      `${pool.num_ready} of ${pool.num_workers} ready \u00b7 ${count(pool.running)} running \u00b7 ` +
        `${count(pool.waiting)} waiting \u00b7 ${share(held, blocks)} of ${plural(blocks, "KV block")} held`,
    );
    this.#workers.show(pool.workers, (worker) => worker.epoch);
    const more = pool.num_workers - pool.workers.length;
    say(this.#rest, more ? `and ${plural(more, "worker")} more, counted above` : "");
    this.#rest.hidden = !more;
  }
}

class Worker {
  #name = make("span", "worker-name mono");
  #badge = make("span", "badge");
  #bar = new KvBar();
  #work = make("p", "facts");
  #more = make("p", "facts");
  #facts = new Map();
  node = make(
    "li",
    "card worker",
    make("div", "worker-head", this.#name, this.#badge),
    this.#work,
    this.#bar.node,
    this.#more,
  );

  update(worker) {
    say(this.#name, worker.id);
    this.#name.title = `${worker.id}, epoch ${worker.epoch}`;
    const isStuck = worker.step_age_s > STUCK_S;
    say(this.#badge, isStuck ? `no step for ${seconds(worker.step_age_s)}` : worker.state);
    setClass(this.#badge, `badge ${isStuck ? "bad" : (BADGES[worker.state] ?? "")}`);
    this.#fact(this.#work, "running", count(worker.running));
    this.#fact(this.#work, "waiting", count(worker.waiting));
    this.#fact(this.#work, "tokens to prefill", worker.prefill_tokens ? count(worker.prefill_tokens) : null);
    this.#fact(this.#work, "via this router", count(worker.attempts));
    this.#bar.show(worker.kv_blocks);
    const blocks = sum(worker.kv_blocks);
    const held = blocks - (worker.kv_blocks.free ?? 0) - (worker.kv_blocks.cached ?? 0);
    this.#fact(this.#more, "KV held", blocks ? share(held, blocks) : null);
    this.#fact(this.#more, "promised", worker.promised_blocks ? share(worker.promised_blocks, blocks) : null);
    this.#fact(this.#more, "MFU", worker.mfu === null ? null : share(worker.mfu, 1));
    this.#fact(this.#more, "MBU", worker.mbu === null ? null : share(worker.mbu, 1));
    this.#fact(this.#more, "moved", worker.transfer_bytes ? `${count(worker.transfer_bytes)}B` : null);
    this.#fact(this.#more, "preemptions", worker.preemptions ? count(worker.preemptions) : null);
    this.#fact(this.#more, "transfers failed", worker.transfer_failures ? count(worker.transfer_failures) : null);
  }

  // A number and its name; without a number nothing is there.
  #fact(parent, name, text) {
    let fact = this.#facts.get(name);
    if (!fact) {
      const value = make("b");
      fact = { value, node: make("span", "", value, ` ${name}`) };
      this.#facts.set(name, fact);
      parent.append(fact.node);
    }
    fact.node.hidden = text === null;
    say(fact.value, text ?? "");
  }
}

class KvBar {
  node = make("div", "bar");
  #parts = new Map();

  constructor() {
    this.node.setAttribute("role", "img");
    for (const state of [...STATES.slice(0, -1), "other", "free"]) {
      const part = make("i", state);
      this.#parts.set(state, part);
      this.node.append(part);
    }
  }

  show(blocks) {
    const whole = sum(blocks);
    const known = { ...blocks };
    known.other = sum(blocks) - STATES.reduce((total, state) => total + (blocks[state] ?? 0), 0);
    const texts = [];
    for (const [state, part] of this.#parts) {
      const number = known[state] ?? 0;
      const width = `${whole ? (100 * number) / whole : 0}%`;
      if (part.style.width !== width) part.style.width = width;
      if (number) texts.push(`${share(number, whole)} ${state}`);
    }
    const text = whole ? `KV blocks: ${texts.join(", ")}` : "KV blocks: not known";
    setAttribute(this.node, "aria-label", text);
    setAttribute(this.node, "title", text);
  }
}

function sum(blocks) {
  return Object.values(blocks).reduce((total, number) => total + number, 0);
}
