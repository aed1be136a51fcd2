// One chart: a metric of one run or of several, drawn by uPlot.

const uPlot = window.uPlot;
// Tick intervals of a time axis, in seconds.
const CLOCK = [0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800];
const DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3]];

// A canvas needs computed colours, not CSS variables.
function colour(name) {
  const probe = document.createElement("span");
  probe.className = name;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

// A sample of a run's line, as its charts draw it.
export function swatch(index) {
  const make = (name, attributes) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    return element;
  };
  const picture = make("svg", { class: `swatch series-${(index % 8) + 1}`, viewBox: "0 0 26 4", "aria-hidden": "true" });
  picture.append(make("line", { class: `dash-${index % DASHES.length}`, x1: 0, y1: 2, x2: 26, y2: 2 }));
  return picture;
}

// Like the pages: characters that hide or reverse text are escaped.
export function visible(text) {
  return text.replace(/[\p{Cc}\p{Cf}\u2028\u2029]/gu, (char) => `\\u${char.codePointAt(0).toString(16).padStart(4, "0")}`);
}

export function number(value) {
  if (value == null) return "–";
  if (Number.isInteger(value) && Math.abs(value) < 1e15) return value.toLocaleString("en");
  const size = Math.abs(value);
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  if (size < 0.001) return value.toExponential(2);
  return size < 10 ? value.toFixed(3) : value.toPrecision(4);
}

export function seconds(value) {
  if (value == null) return "–";
  if (value < 60) return `${+value.toFixed(1)} s`;
  if (value < 3600) return `${+(value / 60).toFixed(1)} min`;
  return value < 172800 ? `${+(value / 3600).toFixed(1)} h` : `${+(value / 86400).toFixed(1)} d`;
}

// An exponential moving average with bias correction, so that it does not start at 0.
export function smooth(values, weight) {
  if (!weight) return values;
  let mean = 0;
  let total = 0;
  return values.map((value) => {
    mean = mean * weight + value * (1 - weight);
    total = total * weight + (1 - weight);
    return mean / total;
  });
}

// Lines of several runs with different x values become one table.
function table(lines, weight) {
  const raw = lines.map((line) => [line.xs, line.ys]);
  const smoothed = weight ? lines.map((line) => [line.xs, smooth(line.ys, weight)]) : [];
  const tables = [...raw, ...smoothed];
  if (!tables.length) return [[]];
  return tables.length === 1 ? tables[0] : uPlot.join(tables);
}

function seriesOf(lines, weight) {
  const one = (line, isFaint) => {
    const stroke = colour(`series-${(line.index % 8) + 1}`);
    return {
      label: line.run,
      stroke: isFaint ? stroke.replace("rgb(", "rgba(").replace(")", ", 0.28)") : stroke,
      width: isFaint ? 1 : 1.75,
      dash: lines.length > 1 ? DASHES[line.index % DASHES.length] : [],
      spanGaps: true,
      points: { show: line.xs.length < 2 || undefined, size: 4 },
    };
  };
  return [{}, ...lines.map((line) => one(line, weight > 0)), ...(weight ? lines.map((line) => one(line, false)) : [])];
}

export class Chart {
  constructor(grid, name, isWide) {
    this.name = name;
    this.figure = document.createElement("figure");
    this.figure.className = isWide ? "chart chart-wide" : "chart";
    this.figure.tabIndex = 0;
    this.figure.setAttribute("role", "group");
    const caption = document.createElement("figcaption");
    const title = document.createElement("b");
    title.textContent = title.title = visible(name);
    this.output = document.createElement("output");
    caption.append(title, this.output);
    this.box = document.createElement("div");
    this.box.className = "plot";
    this.figure.append(caption, this.box);
    grid.append(this.figure);
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(this.box);
  }

  size() {
    return { width: Math.max(this.box.clientWidth, 100), height: this.box.clientHeight };
  }

  resize() {
    this.plot?.setSize(this.size());
  }

  // lines: [{run, index, xs, ys, isTime}]
  draw(lines, weight) {
    this.lines = lines;
    this.weight = weight;
    const shape = JSON.stringify([lines.map((line) => [line.run, line.isTime, line.xs.length < 2]), weight > 0]);
    const data = table(lines, weight);
    if (this.plot && this.shape === shape) this.plot.setData(data);
    else this.make(data, shape);
    this.describe();
    this.show(null);
  }

  redraw() {
    this.shape = null;
    if (this.lines) this.draw(this.lines, this.weight);
  }

  make(data, shape) {
    this.shape = shape;
    this.plot?.destroy();
    const isTime = this.lines.some((line) => line.isTime);
    const axis = {
      stroke: colour("chart-axis"),
      font: "11px system-ui, sans-serif",
      grid: { stroke: colour("chart-line"), width: 1 },
      ticks: { stroke: colour("chart-line"), width: 1, size: 4 },
    };
    this.plot = new uPlot({
      ...this.size(),
      legend: { show: false },
      scales: { x: { time: false } },
      cursor: { sync: { key: isTime ? "seconds" : "iterations" }, y: false, drag: { x: true, y: false }, points: { size: 6 } },
      series: seriesOf(this.lines, this.weight),
      axes: [
        { ...axis, ...(isTime ? { incrs: CLOCK } : {}), size: 28, gap: 2, space: 60, values: isTime ? (_, ticks) => ticks.map(seconds) : (_, ticks) => ticks.map((tick) => (Number.isInteger(tick) ? number(tick) : "")) },
        { ...axis, size: 52, gap: 3, space: 30, values: (_, ticks) => ticks.map((tick) => number(+tick.toPrecision(6)).replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "")) },
      ],
      hooks: { setCursor: [(plot) => this.show(plot.cursor.idx)] },
    }, data, this.box);
  }

  // Show the values under the cursor or, without one, the last ones.
  show(index) {
    const offset = this.weight > 0 ? this.lines.length : 0;
    const data = this.plot.data;
    const parts = this.lines.map((line, place) => {
      const column = data[1 + offset + place] || [];
      const value = document.createElement("span");
      value.textContent = number(index == null ? lastOf(column) : column[index] ?? null);
      if (this.lines.length > 1) value.className = `series-${(line.index % 8) + 1}`;
      return value;
    });
    const at = index == null ? "" : (this.lines.some((line) => line.isTime) ? seconds : number)(data[0][index]);
    this.output.replaceChildren(...parts.slice(0, 4), parts.length > 4 ? "…" : "", at ? `at ${at}` : "");
  }

  describe() {
    const words = this.lines.map((line) => {
      if (!line.ys.length) return `${line.run}: no points`;
      const [least, most] = line.ys.reduce(([low, high], y) => [Math.min(low, y), Math.max(high, y)], [Infinity, -Infinity]);
      return `${line.run}: ${line.ys.length} points, last ${number(line.ys.at(-1))}, minimum ${number(least)}, maximum ${number(most)}`;
    });
    this.figure.setAttribute("aria-label", visible(`${this.name}. ${words.join("; ")}`));
  }

  remove() {
    this.observer.disconnect();
    this.plot?.destroy();
    this.figure.remove();
  }
}

function lastOf(column) {
  for (let place = column.length - 1; place >= 0; place--) if (column[place] != null) return column[place];
  return null;
}
