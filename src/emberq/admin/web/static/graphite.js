/* Graphs that graphite draws, where one is configured: nsqd reports to statsd, graphite keeps it for longer than we do.
 *
 * The name of a series is made as nsqd makes it: the prefix with the node's name in it (here `*`, all nodes), then
 * `topic.<topic>[.channel.<channel>].<metric>`, put into the format for gauges or for counters.
 */

import { config } from "./config.js";
import { h } from "./dom.js";
import { section } from "./panel.js";

const KEY = "nsqadmin-graph-interval";
const INTERVALS = ["1h", "2h", "12h", "24h", "48h", "168h", "off"];
const USUAL_INTERVAL = "2h";
const METRICS = [
  ["depth", "Depth", "gaugeFormat"],
  ["message_count", "Messages", "counterFormat"],
];

export function graphiteSection(topic, channel = null) {
  const graphs = h("div", { class: "charts" });
  const field = h(
    "select",
    { "aria-label": "Time shown" },
    INTERVALS.map((value) => h("option", { value }, value)),
  );
  const draw = () => {
    const images = METRICS.map(([metric, title, format]) =>
      image(title, target(topic, channel, metric, format), field.value),
    );
    graphs.replaceChildren(...(field.value === "off" ? [] : images));
  };
  field.value = new URLSearchParams(location.search).get("t") ?? remembered();
  if (field.selectedIndex < 0) field.value = USUAL_INTERVAL;
  field.addEventListener("change", () => {
    remember(field.value);
    draw();
  });
  draw();
  return section("Graphite", { controls: field }, graphs);
}

/** A name as it stands in a series' name. */
export function cleaned(name) {
  return name
    .replaceAll(" ", "_")
    .replaceAll("/", "-")
    .replace(/[^A-Za-z0-9\-_.]/g, "");
}

function target(topic, channel, metric, format) {
  const prefix = config.statsd.prefix.replace("%s", "*");
  const of = channel === null ? "" : `.channel.${cleaned(channel)}`;
  const series = `${prefix}.topic.${cleaned(topic)}${of}.${metric}`;
  const named = config.statsd[format].replace("%s", series);
  return `summarize(sumSeries(${named}),"${config.statsd.intervalS}sec","avg")`;
}

function image(title, series, interval) {
  const query = new URLSearchParams({ target: series, from: `-${interval}`, until: "now", width: 600, height: 160 });
  const address = `${config.graphiteUrl || config.basePath}/render?${query}`;
  return h(
    "figure",
    { class: "chart" },
    h("figcaption", {}, title),
    h("img", { src: address, alt: `${title} over ${interval}`, loading: "lazy" }),
  );
}

function remembered() {
  try {
    return localStorage.getItem(KEY) ?? USUAL_INTERVAL;
  } catch {
    return USUAL_INTERVAL;
  }
}

function remember(interval) {
  try {
    localStorage.setItem(KEY, interval);
  } catch {
    // Storage is forbidden here: the choice lasts as long as the page.
  }
}
