/* What the server says about itself and the reader: read once from the page's <html data-config>. */

const said = JSON.parse(document.documentElement.dataset.config);
const main = document.querySelector("main");
const permissions = new Set(said.permissions ?? []);

export const config = {
  basePath: said.base_path,
  csrfToken: said.csrf_token,
  lookupds: said.nsqlookupd ?? [],
  /** How much the browser's clock is ahead of the server's, roughly. */
  clockAheadMs: said.time ? Date.now() - said.time * 1000 : 0,
  liveIntervalMs: said.live_interval_ms || 2_000,
  historyMs: said.history_duration_ms || 600_000,
  /** How far a history on disk reaches back; 0 if there is none. */
  retentionMs: said.history_retention_ms || 0,
  isGraphEnabled: Boolean(said.graph_enabled),
  graphiteUrl: said.graphite_url ?? "",
  statsd: {
    intervalS: said.statsd_interval,
    prefix: said.statsd_prefix,
    counterFormat: said.statsd_counter_format,
    gaugeFormat: said.statsd_gauge_format,
  },
  page: main.dataset.page,
  topic: main.dataset.topic ?? "",
  channel: main.dataset.channel ?? "",
  node: main.dataset.node ?? "",
};

/** May the reader do this? Only buttons ask; the server asks again. */
export function may(permission) {
  return permissions.has(permission);
}
