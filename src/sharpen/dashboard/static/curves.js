// The curves of a page: fetched once, then extended by live events; choice of metrics, axis and smoothing.
import { Chart, swatch, visible } from "./charts.js";
import { Chooser } from "./chooser.js";

const FIRST = 6; // number of main metrics to draw unless others are chosen
const AT_ONCE = 64; // the most metrics in one response

class Curves {
  constructor(section) {
    this.section = section;
    this.sources = JSON.parse(section.dataset.curves).map((source, index) => ({ ...source, index, series: Object.create(null), start: null }));
    this.grid = section.querySelector(".chart-grid");
    this.empty = section.querySelector("[data-no-curves]");
    this.charts = new Map();
    this.fetching = 0;
    this.missed = [];
    this.chosen = []; // until the first responses arrive
    const given = new URLSearchParams(location.search);
    this.axis = given.get("x") === "time" ? "time" : "step";
    this.weight = Math.min(Math.max(Number(given.get("smooth") ?? section.dataset.smooth) || 0, 0), 0.98);
    this.asked = given.has("metric") ? given.getAll("metric") : null; // null: the main metrics at that time
    this.chooser = new Chooser(section, (names) => this.choose(names));
    this.watchControls();
  }

  async load() {
    const wanted = this.asked || [];
    this.problem = null;
    // Metrics that are not shown now may miss points: they are fetched again when they are chosen.
    for (const { series } of this.sources) for (const name in series) if (this.asked && !wanted.includes(name)) delete series[name];
    const isNew = await this.fetchAll(() => wanted);
    const names = [...new Set(this.sources.flatMap((source) => source.names))].sort();
    this.main = [...new Set(this.sources.flatMap((source) => source.main))].slice(0, FIRST);
    this.chosen = this.asked ?? this.main;
    this.chooser.show(names, this.main, this.chosen);
    this.section.querySelector(".chart-controls").hidden = !names.length;
    const hasSteps = this.sources.some((source) => Object.values(source.series).some((series) => series.axis === "iteration"));
    this.section.querySelector(".segmented").hidden = !hasSteps;
    this.showLegend();
    this.draw();
    if (isNew) this.load();
  }

  // Points that arrive meanwhile may be in no response, so they are added again. Returns whether a metric among them is new.
  async fetchAll(wanted) {
    this.fetching += 1;
    await Promise.all(this.sources.map((source) => this.fetch(source, wanted(source))));
    this.fetching -= 1;
    const areNew = this.missed.map(([run, lines]) => this.extend(run, lines));
    if (!this.fetching) this.missed = [];
    return areNew.some(Boolean);
  }

  // Fetch the named metrics, or the main ones if the list is empty; null fetches nothing.
  async fetch(source, names) {
    if (!names) return;
    try {
      for (let start = 0; start === 0 || start < names.length; start += AT_ONCE) {
        await this.fetchSome(source, names.slice(start, start + AT_ONCE));
      }
    } catch (error) {
      source.names ??= [];
      source.main ??= [];
      this.problem = error.message;
    }
  }

  async fetchSome(source, names) {
    const query = new URLSearchParams(names.map((name) => ["name", name]));
    const answer = await fetch(names.length ? `${source.url}?${query}` : source.url, { headers: { accept: "application/json" } });
    const found = await answer.json();
    if (!answer.ok) throw new Error(found.error.message);
    Object.assign(source, { names: found.names, main: found.main, start: found.start });
    Object.assign(source.series, found.series);
  }

  async choose(names) {
    this.asked = this.chosen = names;
    const missing = (source) => names.filter((name) => !(name in source.series) && source.names.includes(name));
    await this.fetchAll((source) => (missing(source).length ? missing(source) : null));
    this.remember();
    this.draw();
  }

  add(run, lines) {
    if (this.fetching) this.missed.push([run, lines]);
    if (!this.sources.find((each) => each.run === run)?.names) return; // nothing is drawn yet
    if (this.extend(run, lines)) this.load();
    else this.draw();
  }

  // Add new points of one run. A repeated step replaces the earlier one and everything after it. Returns whether there
  // is a metric among them that was not known.
  extend(run, lines) {
    const source = this.sources.find((each) => each.run === run);
    let isNew = false;
    for (const line of lines) {
      if (line.step == null && line.time == null) continue;
      const axis = line.step == null ? "seconds" : "iteration";
      // Points that are drawn already keep their position in time.
      if (axis === "seconds") source.start ??= Math.min(line.time, ...Object.values(source.series).map((each) => each.times[0]));
      const step = line.step ?? line.time - source.start;
      for (const [name, value] of Object.entries(line.values)) {
        if (!source.names.includes(name) && name !== "seconds") { source.names.push(name); isNew = true; }
        const series = source.series[name];
        if (!series || series.axis !== axis) continue;
        while (series.steps.length && series.steps.at(-1) >= step) { series.steps.pop(); series.times.pop(); series.values.pop(); }
        series.steps.push(step); series.times.push(line.time ?? step); series.values.push(value);
      }
    }
    return isNew;
  }

  line(source, name) {
    const series = source.series[name];
    if (!series || !series.values.length) return null;
    const isTime = this.axis === "time" || series.axis === "seconds";
    const start = source.start ?? series.times[0];
    const xs = this.axis === "time" ? series.times.map((time) => Math.max(time - start, 0)) : series.steps;
    return { run: source.run, index: source.index, xs: [...xs], ys: series.values, isTime };
  }

  draw() {
    const drawn = this.chosen.filter((name) => this.sources.some((source) => this.line(source, name)));
    for (const [name, chart] of this.charts) if (!drawn.includes(name)) { chart.remove(); this.charts.delete(name); }
    for (const name of drawn) {
      if (!this.charts.has(name)) this.charts.set(name, new Chart(this.grid, name, drawn.length === 1));
      const chart = this.charts.get(name);
      chart.figure.classList.toggle("chart-wide", drawn.length === 1);
      this.grid.append(chart.figure);
      chart.draw(this.sources.map((source) => this.line(source, name)).filter(Boolean), this.weight);
    }
    this.empty.hidden = drawn.length > 0;
    this.empty.textContent = this.problem || (this.chosen.length ? "No curves yet." : "No metrics selected.");
  }

  redraw() {
    for (const chart of this.charts.values()) chart.redraw();
  }

  showLegend() {
    if (this.sources.length < 2) return;
    this.section.querySelector(".legend").replaceChildren(...this.sources.map((source) => {
      const item = document.createElement("span");
      item.setAttribute("role", "listitem");
      item.append(swatch(source.index), visible(source.run));
      return item;
    }));
  }

  watchControls() {
    const slider = this.section.querySelector("#smoothing");
    const output = this.section.querySelector("output");
    const buttons = [...this.section.querySelectorAll("[data-axis]")];
    const press = () => buttons.forEach((button) => button.setAttribute("aria-pressed", String(button.dataset.axis === this.axis)));
    slider.value = this.weight;
    output.textContent = this.weight;
    press();
    slider.addEventListener("input", () => {
      this.weight = Number(slider.value);
      output.textContent = this.weight;
      this.remember();
      this.draw();
    });
    for (const button of buttons) button.addEventListener("click", () => {
      this.axis = button.dataset.axis;
      press();
      this.remember();
      this.draw();
    });
  }

  // The URL says what is shown, so that it can be shared.
  remember() {
    const query = new URLSearchParams(location.search);
    for (const name of ["x", "smooth", "metric"]) query.delete(name);
    if (this.axis === "time") query.set("x", "time");
    if (this.weight) query.set("smooth", this.weight);
    if (String(this.chosen) !== String(this.main)) for (const name of this.chosen) query.append("metric", name);
    history.replaceState(history.state, "", query.size ? `?${query}` : location.pathname);
  }
}

const section = document.querySelector("[data-curves]");
if (section) {
  const curves = new Curves(section);
  curves.load();
  document.addEventListener("theme", () => curves.redraw());
  document.body.addEventListener("live:metrics", (event) => curves.add(curves.sources[0].run, event.detail.lines));
  for (const name of ["resync", "open"]) document.body.addEventListener(`live:${name}`, () => curves.load());
  if (section.dataset.refresh) setInterval(() => { if (!document.hidden) curves.load(); }, 1000 * Number(section.dataset.refresh));
  let waiting;
  document.body.addEventListener("live:rollouts", () => {
    // Without metrics the curves are those of the rollouts themselves.
    if (section.dataset.from === "store") waiting ??= setTimeout(() => { waiting = null; curves.load(); }, 3000);
  });
}
