// Snapshots, one a second, while somebody looks; comes back by itself after a break.

import { eventsOf, HttpError } from "./stream.js";

const FIRST_WAIT_MS = 500;
const LAST_WAIT_MS = 10_000;

export class Feed {
  #key;
  #onSnapshot;
  #onTrouble;
  #abort = null;
  #timer = 0;
  #waitMs = FIRST_WAIT_MS;

  // `onTrouble(message, status)`: there is no stream now; status 0 is a broken connection.
  constructor(key, onSnapshot, onTrouble) {
    this.#key = key;
    this.#onSnapshot = onSnapshot;
    this.#onTrouble = onTrouble;
    key.addEventListener("change", () => this.restart());
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) this.stop();
      else this.restart();
    });
  }

  restart() {
    this.stop();
    this.#waitMs = FIRST_WAIT_MS;
    this.#run();
  }

  stop() {
    clearTimeout(this.#timer);
    this.#abort?.abort();
    this.#abort = null;
  }

  async #run() {
    const abort = new AbortController();
    this.#abort = abort;
    let message = "the router closed the stream";
    let status = 0;
    try {
      const options = { headers: this.#key.headers, signal: abort.signal, cache: "no-store" };
      for await (const data of eventsOf("/dashboard/events", options)) {
        this.#waitMs = FIRST_WAIT_MS;
        this.#onSnapshot(JSON.parse(data));
      }
    } catch (error) {
      if (error instanceof HttpError) status = error.status;
      message = status ? error.message : "no connection to the router";
    }
    if (abort.signal.aborted) return;
    this.#onTrouble(message, status);
    if (status === 401 || status === 403) return; // until there is another key
    this.#timer = setTimeout(() => this.#run(), this.#waitMs);
    this.#waitMs = Math.min(2 * this.#waitMs, LAST_WAIT_MS);
  }
}
