// One rollout: the tree of the waterfall, the selected span, the tokens, and links to the neighbours.
import { notify } from "./app.js";
import { watchMenus } from "./menu.js";

watchMenus();

const tree = document.querySelector(".waterfall");

// -- the tree --------------------------------------------------------------------------------------

function isFolded(bar) {
  return bar.getAttribute("aria-expanded") === "false";
}

// Rows are in the order of the tree, so the descendants of a row are the next `data-below` ones.
function fold(bar, folded) {
  bar.setAttribute("aria-expanded", String(!folded));
  let next = bar.nextElementSibling;
  for (let left = Number(bar.dataset.below); left > 0 && next; left -= 1) {
    next.hidden = folded;
    const inner = Number(next.dataset.below || 0);
    if (!folded && inner && isFolded(next)) {
      // Descendants that are collapsed stay collapsed.
      for (let skip = inner; skip > 0; skip -= 1) next = next.nextElementSibling;
      left -= inner;
    }
    next = next.nextElementSibling;
  }
}

function focusBar(bar) {
  if (!bar) return;
  tree.querySelector('.bar[tabindex="0"]')?.setAttribute("tabindex", "-1");
  bar.setAttribute("tabindex", "0");
  bar.focus();
}

function step(bar, name) {
  let next = bar[name];
  while (next && (next.hidden || !next.classList.contains("bar"))) next = next[name];
  return next;
}

function parentOf(bar) {
  const level = Number(bar.getAttribute("aria-level"));
  let before = bar.previousElementSibling;
  while (before && Number(before.getAttribute("aria-level")) >= level) before = before.previousElementSibling;
  return before?.classList.contains("bar") ? before : null;
}

function moveInTree(event) {
  const bar = event.target.closest(".bar");
  if (!bar || event.ctrlKey || event.metaKey || event.altKey) return;
  const hasBelow = bar.hasAttribute("aria-expanded");
  const actions = {
    ArrowDown: () => focusBar(step(bar, "nextElementSibling")),
    ArrowUp: () => focusBar(step(bar, "previousElementSibling")),
    ArrowRight: () => (hasBelow && isFolded(bar) ? fold(bar, false) : focusBar(step(bar, "nextElementSibling"))),
    ArrowLeft: () => (hasBelow && !isFolded(bar) ? fold(bar, true) : focusBar(parentOf(bar))),
    Home: () => focusBar(tree.querySelector(".bar")),
    End: () => focusBar(step({ previousElementSibling: tree.lastElementChild }, "previousElementSibling")),
    Enter: () => showSpan(bar.dataset.span),
    " ": () => showSpan(bar.dataset.span),
  };
  const action = actions[event.key];
  if (!action) return;
  action();
  event.preventDefault();
  event.stopPropagation();
}

// -- the selected span -----------------------------------------------------------------------------

function markSpan(span) {
  for (const each of document.querySelectorAll(".bar.on, .entry.on")) each.classList.remove("on");
  const quoted = CSS.escape(span);
  const bar = tree?.querySelector(`.bar[data-span="${quoted}"]`);
  const entry = document.querySelector(`.entry[data-entry="${quoted}"]`);
  for (const each of [bar, entry]) each?.classList.add("on");
  return { bar, entry };
}

async function showSpan(span) {
  const { bar, entry } = markSpan(span);
  bar?.scrollIntoView({ block: "nearest" });
  entry?.scrollIntoView({ block: "nearest" });
  const query = `&span=${encodeURIComponent(span)}`;
  await htmx.ajax("GET", tree.dataset.spanAddress + query, { target: "#span-detail", swap: "innerHTML" });
  history.replaceState(history.state, "", tree.dataset.own + query);
}

// A title on each of thousands of rows would only make the page longer.
tree?.addEventListener("mouseover", (event) => {
  const bar = event.target.closest(".bar");
  if (bar && !bar.title) bar.title = [...bar.querySelectorAll("span")].map((part) => part.textContent).join(" · ");
});
tree?.addEventListener("keydown", moveInTree);
tree?.addEventListener("click", (event) => {
  const bar = event.target.closest(".bar");
  if (!bar) return;
  if (event.target.closest(".bar i")) fold(bar, !isFolded(bar));
  else showSpan(bar.dataset.span);
  focusBar(bar);
});
document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-show-span]");
  if (button && tree) showSpan(button.dataset.showSpan);
});

// -- tokens ----------------------------------------------------------------------------------------

function showToken(cell) {
  const place = cell.closest(".tokens")?.querySelector(".token-detail");
  if (!place) return;
  place.dataset.summary ??= place.textContent;
  place.textContent = cell.title;
}

function hideToken(event) {
  const place = event.target.closest?.(".tokens")?.querySelector(".token-detail");
  if (place?.dataset.summary && !event.relatedTarget?.closest?.(".strip")) place.textContent = place.dataset.summary;
}

for (const name of ["mouseover", "focusin"]) {
  document.addEventListener(name, (event) => {
    const cell = event.target.closest?.(".tk");
    if (cell) showToken(cell);
  });
}
for (const name of ["mouseout", "focusout"]) document.addEventListener(name, hideToken);

document.addEventListener("keydown", (event) => {
  const cell = event.target.closest?.(".tk");
  const name = { ArrowRight: "nextElementSibling", ArrowLeft: "previousElementSibling" }[event.key];
  if (!cell || !name) return;
  let next = cell[name];
  while (next && !next.classList.contains("tk")) next = next[name];
  if (!next) return;
  cell.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
  event.preventDefault();
});

// -- neighbours, link ------------------------------------------------------------------------------

function neighbour(place, by, words) {
  const saved = JSON.parse(sessionStorage.getItem(`sharpen-list:${place.dataset.run}`) || "null");
  const index = saved ? saved.ids.indexOf(place.dataset.id) : -1;
  const id = index < 0 ? undefined : saved.ids[index + by];
  if (id === undefined) return null;
  const link = document.createElement("a");
  link.className = "button";
  link.href = `${place.dataset.list}/${encodeURIComponent(id)}`;
  link.textContent = words;
  link.title = by < 0 ? "Previous in the list ([)" : "Next in the list (])";
  link.dataset.neighbour = by < 0 ? "[" : "]";
  return link;
}

const neighbours = document.getElementById("neighbours");
if (neighbours) neighbours.append(...[neighbour(neighbours, -1, "←"), neighbour(neighbours, 1, "→")].filter(Boolean));
document.addEventListener("keydown", (event) => {
  if (event.target.closest("input, select, textarea") || (event.key !== "[" && event.key !== "]")) return;
  document.querySelector(`[data-neighbour="${event.key}"]`)?.click();
});

document.querySelector("[data-copy-link]")?.addEventListener("click", async (event) => {
  try {
    await navigator.clipboard.writeText(location.href);
    event.target.textContent = "Copied";
  } catch {
    notify(`The browser does not allow copying here. The link is: ${location.href}`);
  }
});

// -- live: a rollout that is not finished is read again --------------------------------------------

const state = document.querySelector("[data-unfinished]");
let reading = false;

async function readAgain() {
  reading = false;
  const answer = await fetch(state.dataset.state).catch(() => null); // the header shows that the server cannot be reached
  if (!answer?.ok) return;
  if ((await answer.json()).mark !== state.dataset.unfinished) document.getElementById("rollout-changed").hidden = false;
}

if (state) {
  // The counts of rollouts do not change while one of them gets spans.
  for (const name of ["rollouts", "stats", "resync", "open"]) document.body.addEventListener(`live:${name}`, () => {
    if (!reading) setTimeout(readAgain, 1500);
    reading = true;
  });
}
