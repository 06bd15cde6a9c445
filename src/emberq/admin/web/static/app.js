/* The entry: starts the module of the page that the server sent. */

import { config } from "./config.js";
import { listenToKeys } from "./keyboard.js";
import { path, post } from "./api.js";

const PAGES = {
  topics: () => import("./page_topics.js"),
  topic: () => import("./page_topic.js"),
  channel: () => import("./page_channel.js"),
  nodes: () => import("./page_nodes.js"),
  node: () => import("./page_node.js"),
  counter: () => import("./page_counter.js"),
  lookup: () => import("./page_lookup.js"),
  pipelines: () => import("./page_pipelines.js"),
  login: () => import("./page_login.js"),
};

listenToKeys();
document.querySelector("[data-log-out]")?.addEventListener("click", async () => {
  await post(path("logout"), {});
  location.assign(path("login"));
});
const page = await PAGES[config.page]();
page.start();
