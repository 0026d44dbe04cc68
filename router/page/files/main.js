// Puts the page together, and gives each part its share of every snapshot.

import { Chat } from "./chat.js";
import { find, say, setClass } from "./dom.js";
import { Feed } from "./feed.js";
import { ApiKey } from "./key.js";
import { Overview } from "./overview.js";
import { Pools } from "./pools.js";
import { Requests } from "./requests.js";
import { Waterfall } from "./waterfall.js";

const STATES = {
  ready: ["ready", "good"],
  draining: ["draining", "warn"],
  no_worker: ["no worker", "bad"],
  saturated: ["saturated", "warn"],
};

const key = new ApiKey();
const overview = new Overview();
const pools = new Pools();
const requests = new Requests();
const chat = new Chat(key);
new Waterfall(key);

function showState(text, style) {
  say(find("state"), text);
  setClass(find("state"), `badge ${style}`);
}

function notice(text) {
  say(find("notice"), text);
  find("notice").hidden = !text;
}

function onSnapshot(snapshot) {
  notice("");
  showState(...(STATES[snapshot.state] ?? [snapshot.state, "warn"]));
  say(find("model"), snapshot.model);
  say(find("version"), `Tandem ${snapshot.version}`);
  overview.show(snapshot);
  pools.show(snapshot.pools);
  requests.show(snapshot.requests);
  chat.serve(snapshot.model, snapshot.requests !== null);
}

function onTrouble(message, status) {
  if (status === 401) {
    showState("needs a key", "warn");
    notice("");
    key.ask("This router shows itself to who has a key. It stays in this tab until you close it.");
    return;
  }
  showState(status ? "refused" : "connecting", "bad");
  notice(`${message[0].toUpperCase()}${message.slice(1)}.${status === 403 ? "" : " Trying again."}`);
}

const DARK = matchMedia("(prefers-color-scheme: dark)");
const root = document.documentElement;

function isDark() {
  return root.dataset.theme ? root.dataset.theme === "dark" : DARK.matches;
}

function nameTheme() {
  say(find("theme-button"), isDark() ? "Light" : "Dark");
  find("theme-button").setAttribute("aria-label", `Switch to the ${isDark() ? "light" : "dark"} theme`);
}

find("theme-button").addEventListener("click", () => {
  root.dataset.theme = isDark() ? "light" : "dark";
  try {
    localStorage.setItem("tandem-theme", root.dataset.theme);
  } catch {
    // Storage is forbidden here: it lasts as long as the page.
  }
  nameTheme();
});
DARK.addEventListener("change", nameTheme);
nameTheme();

const feed = new Feed(key, onSnapshot, onTrouble);
if (!document.hidden) feed.restart();
