// The API key of this tab, where one is needed. It is asked for, and never leaves but as a header.

import { find, say } from "./dom.js";

const STORED = "tandem-key";

export class ApiKey extends EventTarget {
  #key = null;
  #dialog = find("key-dialog");
  #input = find("key-input");

  constructor() {
    super();
    try {
      this.#key = sessionStorage.getItem(STORED);
    } catch {
      // Storage is forbidden here: then it lasts as long as the page.
    }
    find("key-button").hidden = this.#key === null;
    find("key-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#set(this.#input.value.trim() || null);
    });
    find("key-forget").addEventListener("click", () => this.#set(null));
    find("key-cancel").addEventListener("click", () => this.#dialog.close());
    find("key-button").addEventListener("click", () => this.ask());
  }

  get headers() {
    return this.#key === null ? {} : { authorization: `Bearer ${this.#key}` };
  }

  ask(why = "It stays in this tab until you close it.") {
    find("key-button").hidden = false;
    say(find("key-why"), why);
    this.#input.value = "";
    if (!this.#dialog.open && !document.querySelector("dialog[open]")) this.#dialog.showModal();
  }

  #set(key) {
    this.#key = key;
    try {
      if (key === null) sessionStorage.removeItem(STORED);
      else sessionStorage.setItem(STORED, key);
    } catch {
      // As above.
    }
    this.#input.value = "";
    this.#dialog.close();
    this.dispatchEvent(new Event("change"));
  }
}
