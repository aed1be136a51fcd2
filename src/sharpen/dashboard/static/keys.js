// Keys: / search, j and k rows, Enter open, x select, g then a letter, t theme, ? help.

let awaitsPlace = false;
let current;
let forgetting;

function isTyping(target) {
  return target.closest?.("input:not([type=checkbox]):not([type=radio]), textarea, select, [contenteditable]");
}

function rows() {
  return [...document.querySelectorAll("tr[data-href], [data-row]")].filter((row) => row.offsetParent !== null);
}

function currentRow() {
  return document.querySelector(".is-current");
}

function moveRow(by) {
  const all = rows();
  if (!all.length) return;
  const index = all.indexOf(currentRow());
  const next = all[index < 0 ? (by > 0 ? 0 : all.length - 1) : Math.min(Math.max(index + by, 0), all.length - 1)];
  currentRow()?.classList.remove("is-current");
  next.classList.add("is-current");
  current = next;
  // The link of the row gets the focus, so that Enter and screen readers work.
  (next.querySelector("a, button") || next).focus({ preventScroll: true });
  next.scrollIntoView({ block: "nearest" });
}

// A part that was fetched again has new rows: the same one stays current.
function keepRow(event) {
  const href = current?.dataset.href;
  if (!href || current.isConnected) return;
  const again = event.target.querySelector(`[data-href="${CSS.escape(href)}"]`);
  again?.classList.add("is-current");
  current = again;
}

function selectRow() {
  currentRow()?.querySelector("input[type=checkbox]")?.click();
}

function openCurrent(event) {
  const row = currentRow();
  if (!row?.dataset.href || event.target.closest("a, button, summary")) return false;
  location.href = row.dataset.href;
  return true;
}

function goTo(key) {
  if (key === "h") location.href = document.body.dataset.base;
  document.querySelector(`[data-go="${CSS.escape(key)}"]`)?.click();
}

function search() {
  const field = document.querySelector("[data-search], input[type=search]");
  field?.focus();
  field?.select();
  return Boolean(field);
}

export function watchKeys({ nextTheme, openHelp }) {
  const actions = {
    "/": search,
    j: () => moveRow(1),
    k: () => moveRow(-1),
    x: selectRow,
    t: nextTheme,
    "?": openHelp,
    Enter: openCurrent,
  };
  document.body.addEventListener("htmx:afterSwap", keepRow);
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (isTyping(event.target)) {
      if (event.key === "Escape") {
        event.preventDefault(); // a search field would be cleared
        event.target.blur();
      }
      return;
    }
    if (awaitsPlace) {
      awaitsPlace = false;
      event.stopImmediatePropagation(); // the letter may be a key of the page too
      goTo(event.key);
      return;
    }
    if (event.key === "g") {
      awaitsPlace = true;
      clearTimeout(forgetting);
      forgetting = setTimeout(() => { awaitsPlace = false; }, 1500);
      return;
    }
    const action = actions[event.key];
    if (action && action(event) !== false && event.key !== "Enter") event.preventDefault();
  });
}
