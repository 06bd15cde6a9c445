/* Requests to nsqadmin's own API. Every change carries the token that proves it comes from one of our pages. */

import { config } from "./config.js";

const TIMEOUT_MS = 20_000;

/** What the server, or the way to it, had against a request. */
export class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/** A path below the base path with each part escaped: path("topics", topic) */
export function path(...parts) {
  return `${config.basePath}/${parts.map(encodeURIComponent).join("/")}`;
}

export function apiPath(...parts) {
  return path("api", ...parts);
}

export function get(url) {
  return request("GET", url);
}

export function post(url, body) {
  return request("POST", url, body);
}

export function put(url, body) {
  return request("PUT", url, body);
}

export function remove(url, body) {
  return request("DELETE", url, body);
}

/** A question of which only the newest answer counts: what was asked before is null then, its failure too. */
export function newest(ask) {
  let last = null;
  return async (...given) => {
    const asked = ask(...given);
    last = asked;
    try {
      const answer = await asked;
      return asked === last ? answer : null;
    } catch (failure) {
      if (asked === last) throw failure;
      return null;
    }
  };
}

async function request(method, url, body) {
  const headers = { Accept: "application/vnd.nsq; version=1.0" };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (method !== "GET") headers["X-CSRF-Token"] = config.csrfToken;
  const [response, text] = await answered(url, {
    method,
    headers,
    body: body === undefined ? undefined : JSON.stringify(body),
    credentials: "same-origin",
    signal: AbortSignal.timeout(TIMEOUT_MS),
  });
  const answer = document_(text);
  if (response.ok) return answer;
  if (response.status === 401 && config.page !== "login") toLogin();
  throw new ApiError(answer.message || `nsqadmin answered ${response.status}`, response.status);
}

async function answered(url, options) {
  try {
    const response = await fetch(url, options);
    return [response, await response.text()];
  } catch (failure) {
    const reason = failure.name === "TimeoutError" ? "nsqadmin took too long to answer" : "nsqadmin cannot be reached";
    throw new ApiError(reason, 0);
  }
}

function document_(text) {
  if (text === "") return {};
  try {
    return JSON.parse(text);
  } catch {
    return { message: text.slice(0, 200) };
  }
}

function toLogin() {
  const here = location.pathname + location.search;
  location.assign(`${path("login")}?next=${encodeURIComponent(here)}`);
}
