// Controls that say nothing to somebody who does not see them, pictures without words, more or less than one h1.
() => {
  const problems = [];
  const shown = (element) => element.checkVisibility({ visibilityProperty: true });
  for (const control of document.querySelectorAll("a[href], button, input:not([type=hidden]), select, textarea, summary")) {
    if (!shown(control)) continue;
    const label = control.getAttribute("aria-label") || control.title || control.textContent.trim() || control.placeholder
      || [...(control.labels || [])].map((each) => each.textContent.trim()).join(" ");
    if (!label) problems.push(`no name: ${control.outerHTML.slice(0, 120)}`);
  }
  for (const picture of document.querySelectorAll("img:not([alt])")) problems.push(`no alt: ${picture.src}`);
  for (const picture of document.querySelectorAll("svg")) {
    const isNamed = picture.closest("[aria-hidden=true], [role=tree]") || picture.getAttribute("aria-label") || picture.parentElement.closest("svg");
    if (shown(picture) && !isNamed) problems.push(`no words: ${picture.outerHTML.slice(0, 120)}`);
  }
  const headings = document.querySelectorAll("h1").length;
  if (headings !== 1) problems.push(`${headings} h1`);
  if (!document.documentElement.lang) problems.push("no language");
  const ids = [...document.querySelectorAll("[id]")].map((each) => each.id);
  const twice = ids.filter((each, place) => ids.indexOf(each) !== place);
  if (twice.length) problems.push(`ids twice: ${twice.slice(0, 5)}`);
  return problems;
}
