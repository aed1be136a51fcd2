// Choosing metrics: a list of checkboxes with a search by parts of their names.
import { visible } from "./charts.js";

export class Chooser {
  constructor(section, onChange) {
    this.details = section.querySelector(".chooser");
    this.box = section.querySelector(".choices");
    this.count = section.querySelector("[data-chosen]");
    this.find = section.querySelector("[data-find-metric]");
    this.onChange = onChange;
    this.box.addEventListener("change", () => this.tell());
    this.find.addEventListener("input", () => this.filter());
    for (const button of section.querySelectorAll("[data-choose]")) {
      button.addEventListener("click", () => this.chooseMany(button.dataset.choose));
    }
    document.addEventListener("click", (event) => {
      if (!this.details.contains(event.target)) this.details.open = false;
    });
    this.details.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      this.details.open = false;
      this.details.querySelector("summary").focus();
    });
  }

  show(names, main, chosen) {
    this.main = main;
    const ordered = [...main, ...names.filter((name) => !main.includes(name))];
    // The same checkboxes stay, so that the focus is kept.
    const isSame = JSON.stringify(ordered) === JSON.stringify(this.inputs().map((input) => input.value));
    if (!isSame) this.box.replaceChildren(...ordered.map((name) => this.choice(name)));
    for (const input of this.inputs()) input.checked = chosen.includes(input.value);
    this.filter();
    this.showCount();
  }

  choice(name) {
    const label = document.createElement("label");
    label.className = "check";
    const input = document.createElement("input");
    input.type = "checkbox";
    input.value = name;
    label.append(input, visible(name));
    return label;
  }

  inputs() {
    return [...this.box.querySelectorAll("input")];
  }

  filter() {
    const words = this.find.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const input of this.inputs()) {
      input.parentElement.hidden = !words.every((word) => input.value.toLowerCase().includes(word));
    }
  }

  chooseMany(which) {
    for (const input of this.inputs()) {
      if (which === "all") input.checked = input.checked || !input.parentElement.hidden;
      else input.checked = which === "main" && this.main.includes(input.value);
    }
    this.tell();
  }

  tell() {
    const chosen = this.inputs().filter((input) => input.checked).map((input) => input.value);
    // The main metrics come first, in their order of importance.
    const first = this.main.filter((name) => chosen.includes(name));
    this.showCount();
    this.onChange([...first, ...chosen.filter((name) => !first.includes(name))]);
  }

  showCount() {
    const inputs = this.inputs();
    this.count.textContent = `${inputs.filter((input) => input.checked).length} of ${inputs.length}`;
  }
}
