// Lists: short URLs, selection, keys for pages, and updates while the list is open.

import { showLocalTimes } from "./app.js";
import { watchMenus } from "./menu.js";

document.documentElement.classList.add("scripted");
watchMenus();
const UPDATE_MS = 2000;

function list() {
  return document.getElementById("rollout-list");
}

function shownSearch() {
  return new URLSearchParams(list()?.dataset.query).get("q") || "";
}

// The URL contains only the filters that are set.
document.body.addEventListener("htmx:configRequest", (event) => {
  const form = event.detail.elt;
  if (!form.matches?.("form.filters")) return;
  const parameters = event.detail.parameters;
  for (const name of Object.keys(parameters)) {
    if (parameters[name] === "" || (name === "order" && parameters[name] === "newest")) delete parameters[name];
  }
  // Leaving the search field reports a change that has been searched for already: the rows stay.
  const cause = event.detail.triggeringEvent;
  if (cause?.type === "change" && cause.target.type === "search" && cause.target.value.trim() === shownSearch()) event.preventDefault();
});

// -- selection -------------------------------------------------------------------------------------

function boxes() {
  return [...document.querySelectorAll('#rollout-list input[name="id"]')];
}

function showSelection() {
  const count = boxes().filter((box) => box.checked).length;
  const words = document.querySelector("[data-selected]");
  if (words) words.textContent = count ? `${count} selected` : "none selected";
  for (const button of document.querySelectorAll("[data-needs-selection]")) button.disabled = !count;
}

document.addEventListener("change", (event) => {
  if (event.target.matches("[data-select-all]")) for (const box of boxes()) box.checked = event.target.checked;
  if (event.target.closest("#rollout-list")) showSelection();
});

// -- neighbours: the page of a rollout steps through the list that it was opened from --------------

function remember() {
  const found = list();
  if (!found) return;
  const ids = [...found.querySelectorAll("tr[data-id]")].map((row) => row.dataset.id);
  sessionStorage.setItem(`sharpen-list:${found.dataset.run}`, JSON.stringify({ ids, back: location.search }));
  for (const link of document.querySelectorAll("[data-export]")) {
    const own = new URL(link.href);
    const spans = own.searchParams.get("spans");
    const asked = new URLSearchParams(found.dataset.query);
    if (spans) asked.set("spans", spans);
    own.search = asked.toString();
    link.href = own.href;
  }
}

// -- keys ------------------------------------------------------------------------------------------

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea, dialog")) return;
  const name = { n: "onward", p: "back" }[event.key];
  if (name) document.querySelector(`[data-page="${name}"]`)?.click();
});

// -- live: rows that are not finished change in place, new ones are only announced ------------------

let waiting = false;

async function updateRows() {
  waiting = false;
  const open = [...(list()?.querySelectorAll("tr[data-open]") || [])];
  if (!open.length) return;
  const asked = new URLSearchParams(open.map((row) => ["id", row.dataset.id]));
  const answer = await fetch(`${list().dataset.rows}?${asked}`, { headers: { "HX-Request": "true" } }).catch(() => null);
  if (!answer?.ok) return; // the header shows that the server cannot be reached
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const fresh = new Map([...page.querySelectorAll("tr[data-id]")].map((row) => [row.dataset.id, row]));
  for (const row of open) replaceRow(row, fresh.get(row.dataset.id));
}

function replaceRow(row, fresh) {
  if (!fresh || !row.isConnected || row.contains(document.activeElement)) return;
  const box = row.querySelector('input[name="id"]');
  const next = document.adoptNode(fresh);
  if (box?.checked) next.querySelector('input[name="id"]').checked = true;
  if (row.classList.contains("is-current")) next.classList.add("is-current");
  showLocalTimes(next);
  row.replaceWith(next);
}

let first; // the count of the first event, if the list does not say how many there are
let counted; // the counts of the last event, as text

function announce(words) {
  const mark = document.getElementById("new-rollouts");
  if (!mark || !list() || list().dataset.isFirst !== "yes") return;
  mark.textContent = words;
  mark.hidden = false;
}

// Without filters the counts say how many are new; with filters only that something changed.
function count(event) {
  const total = Object.values(event.detail.by_status || {}).reduce((sum, each) => sum + each, 0);
  if (first === undefined) {
    first = total;
    updateSoon(); // changes between the rendering of the page and the first event were missed
  }
  // Events that were missed, as in a hidden page, show in the counts.
  const counts = JSON.stringify(event.detail.by_status);
  if (counted !== undefined && counted !== counts) changed();
  counted = counts;
  const known = Number(list()?.dataset.total ?? first);
  if (total > known && list()?.dataset.query === "") announce(`${(total - known).toLocaleString("en")} new: show`);
}

function changed() {
  if (list()?.dataset.query) announce("Updated: show");
  updateSoon();
}

function updateSoon() {
  if (waiting) return;
  waiting = true;
  setTimeout(updateRows, UPDATE_MS);
}

document.body.addEventListener("live:stats", count);
document.body.addEventListener("live:rollouts", changed);
document.body.addEventListener("live:resync", updateSoon);
document.body.addEventListener("live:open", updateSoon);
document.getElementById("new-rollouts")?.addEventListener("click", (event) => {
  location.href = event.target.dataset.address + (list()?.dataset.query || "");
});

// A list that was just loaded contains what was announced.
function forgetNews(event) {
  if (event.target.id !== "rollout-list") return;
  document.getElementById("new-rollouts")?.setAttribute("hidden", "");
  first = undefined;
}

document.body.addEventListener("htmx:afterSettle", (event) => { showSelection(); remember(); forgetNews(event); });
showSelection();
remember();
