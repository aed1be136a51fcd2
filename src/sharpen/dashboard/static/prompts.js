// Candidates: the one that is shown is marked in the tree.

document.body.addEventListener("htmx:afterRequest", (event) => {
  const node = event.detail.elt.closest?.(".node");
  if (!node || !event.detail.successful) return;
  document.querySelector(".candidates .node.on")?.classList.remove("on");
  node.classList.add("on");
});
