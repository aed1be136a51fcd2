// The log: its end stays in view while the box is checked; scrolling up unchecks it.

const log = document.getElementById("log");
const follow = document.getElementById("follow");

function toEnd() {
  if (follow.checked) log.scrollTop = log.scrollHeight;
}

if (log) {
  toEnd();
  follow.addEventListener("change", toEnd);
  log.addEventListener("scroll", () => {
    const isAtEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 30;
    if (isAtEnd !== follow.checked) follow.checked = isAtEnd;
  });
  document.body.addEventListener("htmx:afterSettle", toEnd);
}
