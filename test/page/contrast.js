// Measures what WCAG 2.2 asks for: 4.5:1 for text, 3:1 for large text and for members' colors on a card.
(() => {
  const parse = (c) => {
    const n = c.match(/[\d.]+/g)?.map(Number) ?? [0, 0, 0, 0];
    return { r: n[0], g: n[1], b: n[2], a: n.length > 3 ? n[3] : 1 };
  };
  const over = (top, under) => ({ r: top.r * top.a + under.r * (1 - top.a), g: top.g * top.a + under.g * (1 - top.a), b: top.b * top.a + under.b * (1 - top.a), a: 1 });
  const channel = (v) => ((v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const luminance = (c) => 0.2126 * channel(c.r) + 0.7152 * channel(c.g) + 0.0722 * channel(c.b);
  const ratio = (a, b) => {
    const [x, y] = [luminance(a), luminance(b)];
    return (Math.max(x, y) + 0.05) / (Math.min(x, y) + 0.05);
  };
  const behind = (node) => {
    const layers = [];
    for (let n = node; n; n = n.parentElement) layers.push(parse(getComputedStyle(n).backgroundColor));
    return layers.reverse().reduce((under, top) => over(top, under), { r: 255, g: 255, b: 255, a: 1 });
  };
  let seen = 0;
  const weak = [];
  const check = (what, front, back, least) => {
    seen++;
    const found = ratio(over(front, back), back);
    if (found < least) weak.push(`${what}: ${found.toFixed(2)}:1, want ${least}:1`);
  };
  for (const node of document.querySelectorAll("body *")) {
    const own = [...node.childNodes].some((c) => c.nodeType === 3 && c.data.trim() !== "") || node.tagName === "INPUT";
    if (!own || node.closest("svg, noscript, datalist, .skip, .hidden") || !node.checkVisibility()) continue;
    const style = getComputedStyle(node);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    check(`${node.tagName}.${node.className} "${(node.textContent || node.placeholder).trim().slice(0, 30)}"`, parse(style.color), behind(node), large ? 3 : 4.5);
  }
  const card = document.querySelector(".card");
  const probe = document.body.appendChild(document.createElement("i"));
  for (let i = 0; i < 12; i++) {
    probe.style.color = `var(--m${i})`;
    check(`color m${i}`, parse(getComputedStyle(probe).color), behind(card), 3);
  }
  probe.remove();
  return { seen, weak };
})();
