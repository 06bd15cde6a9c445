/* The login form. */

import { ApiError, path, post } from "./api.js";
import { setText } from "./dom.js";

const PROBLEMS = {
  401: "Name or password is wrong.",
  429: "Too many wrong passwords: wait a minute, then try again.",
};

export function start() {
  const form = document.getElementById("login");
  const problem = document.getElementById("login-problem");
  if (form === null) return;
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const submit = form.querySelector("button");
    submit.disabled = true;
    setText(problem, "");
    try {
      await post(path("login"), { user: form.elements.user.value, password: form.elements.password.value });
      location.assign(destination());
    } catch (failure) {
      if (!(failure instanceof ApiError)) throw failure;
      setText(problem, PROBLEMS[failure.status] ?? failure.message);
      form.elements.password.value = "";
      form.elements.password.focus();
      submit.disabled = false;
    }
  });
}

/** The page that was asked for, if it is one of ours: a prepared link sends no reader elsewhere. */
function destination() {
  const next = new URL(new URLSearchParams(location.search).get("next") ?? "", location.origin + path("topics"));
  return next.origin === location.origin ? next.href : path("topics");
}
