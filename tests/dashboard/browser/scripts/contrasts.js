// How light each text that can be seen is against what stands behind it; those with too little contrast.
() => {
  const parse = (text) => {
    const parts = text.match(/-?[\d.]+(e-?\d+)?/g).map(Number);
    const scale = text.startsWith("color(") ? 255 : 1;
    return [...parts.slice(0, 3).map((part) => part * scale), parts.length > 3 ? parts[3] : 1];
  };
  const light = ([r, g, b]) => {
    const part = (v) => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; };
    return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  };
  const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3]));
  const behind = (element) => {
    const layers = [];
    for (let at = element; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour[3] > 0) layers.push(colour);
      if (colour[3] === 1) break;
    }
    return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255]);
  };
  const found = new Map();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(), left = 4000; node && left; node = walker.nextNode(), left -= 1) {
    const element = node.parentElement;
    if (!node.data.trim() || element.closest("svg, script, noscript, option, .visually-hidden, .skip, :disabled")) continue;
    if (!element.checkVisibility({ opacityProperty: true, visibilityProperty: true })) continue;
    const style = getComputedStyle(element);
    const back = behind(element);
    const ink = parse(style.color);
    const [a, b] = [light(over(ink, back)), light(back)];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const size = parseFloat(style.fontSize);
    const least = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700) ? 3 : 4.5;
    if (ratio < least) found.set(`${element.tagName}.${element.className} ${style.color}`, `${ratio.toFixed(2)}: ${node.data.trim().slice(0, 40)}`);
  }
  return Object.fromEntries(found);
}
