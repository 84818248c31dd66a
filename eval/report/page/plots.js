// Inline SVG plots, drawn at the width they are shown at, so that letters keep their size.

function ticks(low, high, count = 5) {
  const raw = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((size) => size >= raw);
  const found = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-9; value += step) found.push(Number(value.toPrecision(12)));
  return found;
}
function logTicks(low, high) {
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++)
    for (const m of [1, 2, 5]) if (m * 10 ** power >= low && m * 10 ** power <= high) found.push(Number((m * 10 ** power).toPrecision(6)));
  return found.length > 7 ? found.filter((_, i) => i % 2 === 0) : found;
}
function scale(values, from, to, log = false) {
  let low = Math.min(...values), high = Math.max(...values);
  const map = log ? Math.log10 : (value) => value;
  if (low === high) { low = log ? low / 2 : low - 1; high = log ? high * 2 : high + 1; }
  const room = 0.06 * (map(high) - map(low));
  const [a, b] = [map(low) - room, map(high) + room];
  const place = (value) => from + ((map(value) - a) / (b - a)) * (to - from);
  place.ticks = log ? logTicks(10 ** a, 10 ** b) : ticks(a, b);
  return place;
}

const LABELLED = 40;
const WIDTH = () => Math.max(280, Math.min(960, $("#main").clientWidth - 4));
const shapes = [
  (x, y) => s("circle", { class: "mark", cx: x, cy: y, r: 5, fill: "currentColor" }),
  (x, y) => s("rect", { class: "mark", x: x - 4.5, y: y - 4.5, width: 9, height: 9, fill: "currentColor" }),
  (x, y) => s("path", { class: "mark", d: `M${x} ${y - 6}l6 11h-12z`, fill: "currentColor" }),
  (x, y) => s("path", { class: "mark", d: `M${x} ${y - 6.5}l6.5 6.5l-6.5 6.5l-6.5 -6.5z`, fill: "currentColor" }),
  (x, y) => s("circle", { class: "mark", cx: x, cy: y, r: 4, fill: "none", stroke: "currentColor", "stroke-width": 2.5 }),
];
const dashes = [null, "6 3", "2 3"];

function axes(width, height, margin, x, y, xLabel, yLabel) {
  const bottom = height - margin.bottom;
  return s("g", { class: "ticks", "aria-hidden": "true" },
    s("path", { class: "axis", fill: "none", d: `M${margin.left} ${margin.top}V${bottom}H${width - margin.right}` }),
    x.ticks.map((t) => [s("path", { class: "axis", d: `M${x(t)} ${bottom}v4` }), s("text", { x: x(t), y: bottom + 17, "text-anchor": "middle" }, String(t))]),
    y.ticks.map((t) => [s("path", { class: "axis", d: `M${margin.left - 4} ${y(t)}h4` }), s("text", { x: margin.left - 7, y: y(t) + 4, "text-anchor": "end" }, String(t))]),
    s("text", { x: (margin.left + width - margin.right) / 2, y: height - 4, "text-anchor": "middle" }, xLabel),
    s("text", { transform: `translate(12 ${(margin.top + bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, yLabel));
}
const canvas = (width, height, title) =>
  s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": title });
const told = (node, text, hint) =>
  fill(node, { tabindex: 0, role: "img", "aria-label": text, onfocus: () => (hint.textContent = text), onmouseenter: () => (hint.textContent = text) }, [s("title", {}, text)]);

// points: {x, y, colour, shape, text}; fronts: lists of {x, y} that nothing beats.
function scatter({ points, fronts, xLabel, yLabel, title, log }) {
  const [width, height, margin] = [WIDTH(), 420, { left: 52, right: 12, top: 10, bottom: 42 }];
  const hint = h("p", { class: "hint", "aria-live": "polite" }, "Point at a mark, or move to it with Tab.");
  const x = scale(points.map((p) => p.x), margin.left + 8, width - margin.right - 8, log);
  const y = scale(points.map((p) => p.y), height - margin.bottom, margin.top);
  const drawing = canvas(width, height, title);
  drawing.append(axes(width, height, margin, x, y, xLabel, yLabel));
  for (const front of fronts)
    drawing.append(s("path", { d: "M" + front.map((p) => `${x(p.x)} ${y(p.y)}`).join("L"), fill: "none", stroke: "var(--muted)", "stroke-dasharray": "3 3" }));
  for (const p of points)
    drawing.append(told(s("g", { class: `s${p.colour}${p.style % 2 ? " hollow" : ""}` }, shapes[p.shape % shapes.length](x(p.x), y(p.y)),
      points.length <= LABELLED && s("text", { x: x(p.x) + (x(p.x) > width - 90 ? -9 : 9), y: y(p.y) + 4, "text-anchor": x(p.x) > width - 90 ? "end" : "start", "aria-hidden": "true" }, p.label)), p.text, hint));
  return h("figure", {}, drawing, hint);
}

// lines: {xs, ys, colour, style, label}
function linePlot({ lines, xLabel, yLabel, title, width = WIDTH(), height = 300 }) {
  const margin = { left: 56, right: 10, top: 10, bottom: 42 };
  const drawn = lines.filter((line) => line.xs.length);
  if (!drawn.length) return h("p", { class: "muted" }, `${yLabel}: no values recorded.`);
  const x = scale(drawn.flatMap((line) => [line.xs[0], line.xs.at(-1)]), margin.left, width - margin.right);
  const y = scale(drawn.flatMap((line) => [Math.min(...line.ys), Math.max(...line.ys)]), height - margin.bottom, margin.top);
  const drawing = canvas(width, height, title);
  drawing.append(axes(width, height, margin, x, y, xLabel, yLabel));
  for (const line of drawn) {
    const points = line.xs.map((step, i) => `${x(step).toFixed(1)} ${y(line.ys[i]).toFixed(1)}`);
    drawing.append(s("g", { class: `s${line.colour}` },
      s("path", { d: "M" + points.join("L"), fill: "none", stroke: "currentColor", "stroke-width": 1.8, "stroke-dasharray": dashes[line.style] }, s("title", {}, line.label)),
      line.xs.length <= 30 ? line.xs.map((step, i) => s("circle", { cx: x(step), cy: y(line.ys[i]), r: 2.5, fill: "currentColor" })) : null));
  }
  return h("figure", {}, drawing);
}

// marks: {value, low, high, label, colour, style, text}; guides: {value, label}
function intervalPlot({ marks, guides, title }) {
  const width = Math.max(280, Math.min(460, $("#main").clientWidth - 4));
  const margin = { left: 118, right: 12, top: 8, bottom: 40 };
  const height = margin.top + margin.bottom + 22 * marks.length;
  const hint = h("p", { class: "hint", "aria-live": "polite" });
  const x = scale([...marks.flatMap((m) => [m.low ?? m.value, m.high ?? m.value]), ...guides.map((g) => g.value)], margin.left, width - margin.right);
  const drawing = canvas(width, height, title);
  const bottom = height - margin.bottom;
  drawing.append(s("g", { class: "ticks", "aria-hidden": "true" },
    s("path", { class: "axis", fill: "none", d: `M${margin.left} ${bottom}H${width - margin.right}` }),
    x.ticks.map((t) => s("text", { x: x(t), y: bottom + 16, "text-anchor": "middle" }, String(t))),
    s("text", { x: (margin.left + width) / 2, y: height - 4, "text-anchor": "middle" }, "Accuracy (%)")));
  for (const guide of guides)
    drawing.append(s("path", { d: `M${x(guide.value)} ${margin.top}V${bottom}`, stroke: "var(--muted)", "stroke-dasharray": "3 3" }, s("title", {}, guide.label)));
  marks.forEach((mark, i) => {
    const y = margin.top + 22 * i + 11;
    drawing.append(s("text", { x: margin.left - 8, y: y + 4, "text-anchor": "end", "aria-hidden": "true" }, mark.label.slice(0, 17)));
    const bar = mark.low === undefined ? null : s("path", { d: `M${x(mark.low)} ${y}H${x(mark.high)}`, stroke: "currentColor", "stroke-width": 2 });
    drawing.append(told(s("g", { class: `s${mark.colour}` }, bar, shapes[mark.style](x(mark.value), y)), mark.text, hint));
  });
  return h("figure", {}, h("figcaption", {}, title), drawing, hint);
}

function marksLegend(methods) {
  return h("ul", { class: "legend" }, methods.map((method) => {
    const { colour, style } = series(method);
    return h("li", {}, s("svg", { class: `s${colour}${style % 2 ? " hollow" : ""}`, width: 16, height: 16, "aria-hidden": "true" }, shapes[0](8, 8)), " ", methodLabel(method));
  }));
}
function legend(methods) {
  return h("ul", { class: "legend" }, methods.map((method) => {
    const { colour, style } = series(method);
    return h("li", {}, s("svg", { class: `s${colour}`, width: 22, height: 10, "aria-hidden": "true" }, s("path", { d: "M0 5H22", stroke: "currentColor", "stroke-width": 3, "stroke-dasharray": dashes[style] })), " ", methodLabel(method));
  }));
}
