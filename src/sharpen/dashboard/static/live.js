// Live events of the page: each server-sent event becomes `live:NAME` on <body>, with its JSON as `detail`.
// `live:open` says that events arrive from now on, for the first time or again: earlier ones were missed.
// One connection per page, and none while the page is hidden: a browser opens only six to one server.

const NAMES = ["stats", "metrics", "rollouts", "workers", "state", "runs", "log", "resync"];
const AGAIN_MS = 5000;
let source;
let waiting;

function show(state) {
  const mark = document.getElementById("live");
  if (!mark) return;
  mark.hidden = state === "off";
  mark.dataset.state = state;
  mark.textContent = state === "lost" ? "reconnecting" : "live";
}

// A run that has ended sends no events, though it may be resumed.
function isQuiet() {
  const badge = document.querySelector("#run-state .badge");
  return Boolean(badge) && badge.dataset.status !== "running";
}

function tell(name, detail) {
  document.body.dispatchEvent(new CustomEvent(`live:${name}`, { detail, bubbles: true }));
}

function pass(event) {
  let detail;
  try {
    detail = JSON.parse(event.data);
  } catch {
    return;
  }
  tell(event.type, detail);
}

function open(address) {
  source = new EventSource(address);
  source.addEventListener("open", () => {
    show(isQuiet() ? "off" : "live");
    tell("open", {});
  });
  source.addEventListener("error", () => {
    show("lost");
    // The browser reconnects by itself, but not after an error response.
    clearTimeout(waiting);
    waiting = setTimeout(() => openAgain(address), AGAIN_MS);
  });
  for (const name of NAMES) source.addEventListener(name, pass);
}

function openAgain(address) {
  if (!document.hidden && (!source || source.readyState === EventSource.CLOSED)) open(address);
}

// The badge beside the name of the run; it follows the run.
function showState(event) {
  const badge = document.querySelector("#run-state .badge");
  if (!badge || badge.dataset.status === event.detail.state) return;
  badge.dataset.status = badge.textContent = event.detail.state;
  show(event.detail.state === "running" ? "live" : "off");
}

export function followEvents() {
  const address = document.body.dataset.events;
  if (!address) return;
  document.body.addEventListener("live:state", showState);
  // By then the scripts of the page have run: one that listens later would miss the first events.
  document.addEventListener("DOMContentLoaded", () => openAgain(address));
  document.addEventListener("visibilitychange", () => (document.hidden ? source?.close() : openAgain(address)));
}
