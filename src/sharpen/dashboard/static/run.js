// The page of one run: its numbers follow live events.
import { number, seconds } from "./charts.js";

function set(key, text) {
  for (const element of document.querySelectorAll(`[data-stat="${CSS.escape(key)}"]`)) element.textContent = text;
}

document.body.addEventListener("live:stats", (event) => {
  const { by_status, ...stats } = event.detail;
  for (const [name, value] of Object.entries(stats)) set(name, number(value));
  for (const [name, value] of Object.entries(by_status)) set(`by_status.${name}`, number(value));
});

document.body.addEventListener("live:metrics", (event) => {
  for (const line of event.detail.lines) {
    for (const [name, value] of Object.entries(line.values)) set(`metric:${name}`, name.includes("reward") ? value.toFixed(3) : number(value));
  }
});

const duration = document.querySelector("[data-running-seconds]");
if (duration) {
  const began = Date.now() - Number(duration.dataset.runningSeconds) * 1000;
  const two = (value) => String(Math.floor(value)).padStart(2, "0");
  const words = (time) => time < 60 ? seconds(time) : time < 3600 ? `${Math.floor(time / 60)} min ${two(time % 60)} s` : `${Math.floor(time / 3600)} h ${two((time / 60) % 60)} min`;
  const timer = setInterval(() => { duration.textContent = words(Math.floor((Date.now() - began) / 1000)); }, 1000);
  document.body.addEventListener("live:state", (event) => { if (event.detail.state !== "running") clearInterval(timer); });
}
