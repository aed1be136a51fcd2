// A group: left and right move between its rollouts.

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea, dialog")) return;
  const members = [...document.querySelectorAll(".member")];
  const current = members.indexOf(document.activeElement?.closest(".member"));
  if (event.key === "Enter" && current >= 0 && document.activeElement === members[current]) {
    location.href = members[current].dataset.href;
    return;
  }
  const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!by || !members.length) return;
  const own = members.findIndex((member) => member.classList.contains("own"));
  const next = members[Math.min(Math.max((current < 0 ? own : current) + (current < 0 ? 0 : by), 0), members.length - 1)];
  for (const member of members) member.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
  next.scrollIntoView({ block: "nearest", inline: "nearest" });
  event.preventDefault();
});
