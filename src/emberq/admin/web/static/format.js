/* How figures are written. Fixed to one locale, so that a screenshot in a ticket reads the same everywhere. */

const GROUPED = new Intl.NumberFormat("en-US");
const COMPACT = new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 });
/** What stands for a figure that is not known. */
export const MISSING = "–";
const LISTED_COUNT = 4;

/** 1,234,567 */
export function integer(value) {
  return isNumber(value) ? GROUPED.format(Math.round(value)) : MISSING;
}

/** 1.2M, for where there is little room. */
export function compact(value) {
  if (!isNumber(value)) return MISSING;
  if (Number.isInteger(value) && value < 10_000) return GROUPED.format(value);
  return value < 10_000 ? rate(value) : COMPACT.format(value);
}

/** Messages per second: a decimal while it is small enough to matter. */
export function rate(value) {
  if (!isNumber(value)) return MISSING;
  return value > 0 && value < 10 ? value.toFixed(1) : GROUPED.format(Math.round(value));
}

/** 12.3 MB */
export function bytes(value) {
  if (!isNumber(value)) return MISSING;
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let index = 0;
  while (value >= 1000 && index < units.length - 1) {
    value /= 1000;
    index += 1;
  }
  return `${index === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${units[index]}`;
}

/** A length of time given in nanoseconds: 340 µs, 12 ms, 1.5 s, 3m 20s, 2h 5m, 3d 4h */
export function duration(ns) {
  if (!isNumber(ns)) return MISSING;
  if (ns === 0) return "0";
  if (ns < 1e6) return `${Math.round(ns / 1e3)} µs`;
  if (ns < 1e9) return `${ns < 1e7 ? (ns / 1e6).toFixed(1) : Math.round(ns / 1e6)} ms`;
  const seconds = ns / 1e9;
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes}m ${Math.floor(seconds % 60)}s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours}h ${minutes % 60}m` : `${Math.floor(hours / 24)}d ${hours % 24}h`;
}

/** A round length of time, in the largest unit that it is a multiple of: 7 d, 24 h, 90 m, 1.5 s */
export function period(milliseconds) {
  if (!isNumber(milliseconds)) return MISSING;
  const units = { d: 86_400_000, h: 3_600_000, m: 60_000 };
  const [unit, length] = Object.entries(units).find(([, each]) => milliseconds % each === 0) ?? ["s", 1000];
  return `${GROUPED.format(milliseconds / length)} ${unit}`;
}

/** Date and time in the reader's time zone: 2026-05-17 09:30:00 */
export function moment(milliseconds) {
  if (!isNumber(milliseconds)) return MISSING;
  const date = new Date(milliseconds);
  const two = (number) => String(number).padStart(2, "0");
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  return `${day} ${clock(milliseconds)}`;
}

/** The same of a time as the server tells it, in seconds. */
export function serverMoment(seconds) {
  return moment(seconds * 1000);
}

/** A moment on a scale of this many seconds: the time of day, with the date where there are several. */
export function instant(milliseconds, spanS) {
  if (spanS < 12 * 3600) return clock(milliseconds);
  return new Date(milliseconds).toLocaleString("en-GB", {
    day: "numeric",
    month: "short",
    hour: "2-digit",
    minute: "2-digit",
    hourCycle: "h23",
  });
}

/** Time of day in the reader's time zone. */
export function clock(milliseconds) {
  return new Date(milliseconds).toTimeString().slice(0, 8);
}

/** `a, b, c and 4 more`: as many names as one reads in a sentence. */
export function listed(names) {
  const more = names.length - LISTED_COUNT;
  return names.slice(0, LISTED_COUNT).join(", ") + (more > 0 ? ` and ${more} more` : "");
}

/** `1 topic`, `2 topics` */
export function counted(count, noun, nouns = `${noun}s`) {
  return `${integer(count)} ${count === 1 ? noun : nouns}`;
}

function isNumber(value) {
  return typeof value === "number" && Number.isFinite(value);
}
