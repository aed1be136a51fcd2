// For every page: theme, local times, keys, live events, notices.
import { followEvents } from "./live.js";
import { watchKeys } from "./keys.js";

const THEMES = ["system", "light", "dark"];

function currentTheme() {
  return document.documentElement.dataset.theme || "system";
}

function setTheme(theme) {
  const root = document.documentElement;
  if (theme === "system") {
    delete root.dataset.theme;
    localStorage.removeItem("sharpen-theme");
  } else {
    root.dataset.theme = theme;
    localStorage.setItem("sharpen-theme", theme);
  }
  showTheme();
  document.dispatchEvent(new CustomEvent("theme"));
}

function showTheme() {
  const words = currentTheme();
  const button = document.querySelector("[data-theme-switch]");
  button.textContent = { system: "◐", light: "☀", dark: "☾" }[currentTheme()];
  button.setAttribute("aria-label", `Theme: ${words}`);
  button.title = `Theme: ${words} (t)`;
}

export function nextTheme() {
  setTheme(THEMES[(THEMES.indexOf(currentTheme()) + 1) % THEMES.length]);
}

// The server writes times in its own time zone; here they become the viewer's, in the same format.
export function showLocalTimes(root = document) {
  const two = (value) => String(value).padStart(2, "0");
  for (const element of root.querySelectorAll("time[data-local]")) {
    const at = new Date(element.dateTime);
    const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
    element.textContent = `${day} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  }
}

let hiding;
export function notify(text) {
  const notice = document.getElementById("notice");
  notice.textContent = text;
  notice.hidden = false;
  clearTimeout(hiding);
  hiding = setTimeout(() => { notice.hidden = true; }, 8000);
}

function openHelp() {
  const help = document.getElementById("help");
  if (!help.open) help.showModal();
}

function openRow(event) {
  const row = event.target.closest("tr[data-href]");
  if (!row || event.target.closest("a, button, input, label, select") || getSelection().toString()) return;
  if (event.metaKey || event.ctrlKey) window.open(row.dataset.href, "_blank", "noopener");
  else location.href = row.dataset.href;
}

showTheme();
showLocalTimes();
document.querySelector(".tabs [aria-current]")?.scrollIntoView({ inline: "center", block: "nearest" });
document.querySelector("[data-theme-switch]").addEventListener("click", nextTheme);
document.querySelector("[data-help]").addEventListener("click", openHelp);
document.addEventListener("click", openRow);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  document.dispatchEvent(new CustomEvent("theme"));
});
document.body.addEventListener("htmx:afterSwap", (event) => showLocalTimes(event.target));
document.body.addEventListener("htmx:responseError", (event) => {
  const type = event.detail.xhr.getResponseHeader("content-type") || "";
  notify(type.startsWith("text/plain") ? event.detail.xhr.responseText : `The server returned status ${event.detail.xhr.status}.`);
});
document.body.addEventListener("htmx:sendError", () => notify("The dashboard cannot be reached. Is it still running?"));
watchKeys({ nextTheme, openHelp });
followEvents();
