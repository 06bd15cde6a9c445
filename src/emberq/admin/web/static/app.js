/* The entry: starts the module of the page that the server sent. */

import { config } from "./config.js";
import { listenToKeys } from "./keyboard.js";
import { note, showKeptNotes } from "./notice.js";
import { path, post } from "./api.js";
import { stopFollowing } from "./live.js";

const PAGES = {
  topics: () => import("./page_topics.js"),
  channels: () => import("./page_channels.js"),
  topic: () => import("./page_topic.js"),
  channel: () => import("./page_channel.js"),
  nodes: () => import("./page_nodes.js"),
  node: () => import("./page_node.js"),
  counter: () => import("./page_counter.js"),
  lookup: () => import("./page_lookup.js"),
  pipelines: () => import("./page_pipelines.js"),
  settings: () => import("./page_settings.js"),
  alerts: () => import("./page_alerts.js"),
  dead_letters: () => import("./page_dead_letters.js"),
  audit: () => import("./page_audit.js"),
  search: () => import("./page_search.js"),
  login: () => import("./page_login.js"),
};

listenToKeys();
showKeptNotes();
document.querySelector("[data-log-out]")?.addEventListener("click", async () => {
  stopFollowing();
  try {
    await post(path("logout"), {});
  } catch (failure) {
    note(`You are still logged in: ${failure.message}`, "problem");
    return;
  }
  location.assign(path("login"));
});
const page = await PAGES[config.page]();
page.start();
